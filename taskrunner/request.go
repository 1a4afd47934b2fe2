// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskenv"
)

// Request is what a callback is given. It is valid until the callback returns,
// but for Emit, Restart, Signal, Kill and Stats, which background work may go on
// using.
type Request struct {
	Alloc    *spec.Alloc // the last accepted version
	Previous *spec.Alloc // in Update: the version of the last callback
	Task     *spec.Task  // in Alloc
	TaskID   string      // the driver's: <alloc>/<task>/<attempt>
	Attempt  int
	Restored bool // the attempt was started by an earlier agent; in Prestart: the task runs already

	Driver driver.Info      // zero where the driver cannot be found
	Scope  string           // of the supervisor
	Cgroup string           // "" is none
	Dir    allocdir.TaskDir // on the host; zero without Config.Dir

	Handle *driver.Handle     // of the running task; nil before its start
	Exit   *driver.ExitResult // in Exited; in Stop that of the last attempt, if any
	Killed *KillRequest       // set once the task is being killed

	env   func() taskenv.Builder
	ctl   *control
	needs map[string]func() []byte
}

// Env is the environment as built so far, as the task sees it.
func (r *Request) Env() *taskenv.Env { return r.env().Env() }

// HostEnv is the same with directories as the agent sees them, for what a hook
// does on the task's behalf.
func (r *Request) HostEnv() *taskenv.Env {
	return r.env().WithDirs(hostDirs(r.Dir)).Env()
}

// Shared is the latest value of a key that an alloc hook publishes, encoded; nil
// if there is none yet. It is read by allocrunner.Key.Get. A key that the hook
// does not name in Needs is an error.
func (r *Request) Shared(key string) ([]byte, error) {
	f := r.needs[key]
	if f == nil {
		return nil, fmt.Errorf("taskrunner: hook %q reads key %q and does not name it in Needs", r.ctl.hook, key)
	}
	return f(), nil
}

// Checkpoint saves the hook's state now. Call it between acquiring something and
// using it. The error is the store's; the hook decides what it means.
func (r *Request) Checkpoint() error { return r.ctl.checkpoint() }

// Emit adds an event to the task's. It does not block for longer than the loop
// takes to write it; events that come fast are written together.
func (r *Request) Emit(kind Kind, attrs map[string]string) { r.ctl.emit(kind, attrs) }

// Restart, Signal and Kill ask for what the methods of TaskRunner do, without
// waiting for it. A request that cannot be met is logged.
func (r *Request) Restart(req RestartRequest) {
	r.ctl.ask("restart", func(l *loop) error { return l.restart(req) })
}

// Signal: see Restart.
func (r *Request) Signal(signal, reason string) {
	r.ctl.ask("signal", func(l *loop) error { return l.signal(signal, reason, nil) })
}

// Kill: see Restart.
func (r *Request) Kill(req KillRequest) {
	r.ctl.ask("kill", func(l *loop) error { return l.kill(req) })
}

// Stats is TaskRunner.Stats, for background work.
func (r *Request) Stats(ctx context.Context, interval time.Duration) iter.Seq2[driver.Usage, error] {
	return r.ctl.r.Stats(ctx, interval)
}

// Go runs f in the background until the attempt ends: ctx ends before the exited
// hooks are called (or at detach), and f has 1 s to return. A panic in it is
// logged and told as an event. It must not touch the hook's state.
func (r *Request) Go(name string, f func(ctx context.Context)) { r.ctl.background(name, f) }
