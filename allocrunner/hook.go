// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Hook extends one alloc's life. S is its persisted state, stored as JSON under
// "hook.<Name>" in the alloc's node; nil callbacks are skipped.
//
//	                when                                          ctx ends with
//	Prerun          before the first task, and in every later     kill, detach
//	                Run beside whatever lives; in order
//	Update          the alloc changed; in order                   kill, detach, 30 s
//	PreTaskRestart  before a restart somebody asked for           kill, detach, 10 s
//	Prekill         before the first kill, or when all but        10 s, for all hooks together
//	                poststop tasks have ended; reversed
//	Postrun         all tasks are dead; reversed                  60 s
//	Destroy         by AllocRunner.Destroy; reversed              its caller, 2 min
//	Shutdown        the agent lets go, the tasks live on; reversed   4 s, for all together
//
// Rules:
//
//   - At least once: an agent that dies repeats the callback. What a hook acquires
//     it acquires by a key that survives (the alloc), so that doing it again is the
//     same as doing it once.
//   - S is a copy, loaded before the callback and saved after it, failed or not,
//     if it changed. Request.Checkpoint saves in the middle.
//   - The first error of Prerun ends the chain and fails every task. In a later
//     Run (Request.Restored) an error marked driver.Recoverable is tried again
//     with backoff, 1 s to 1 min, while tasks that run go on and others wait.
//   - What gives back (all that runs reversed) runs to its end whatever fails; the
//     errors are joined. Postrun runs also if Prerun failed or never ran, and works
//     from S. A Postrun that failed is repeated by Destroy and by the next Run.
//   - Callbacks of one alloc never run at the same time, but beside those of its
//     tasks. One that panics has failed. One that is not back 1 s after its ctx
//     ended is abandoned: what it did to S is dropped, and of that hook only
//     Postrun, Destroy and Shutdown are called from then on.
//   - That Update, PreTaskRestart or Prekill failed, or any was abandoned while
//     tasks live, is an event of each living task.
type Hook[S any] struct {
	Name  string // unique within an alloc
	Stage Stage  // where in the order
	// Timeout replaces the bounds above; it does not bound Prerun.
	Timeout time.Duration
	// Version and Migrate are those of state.Slot; 0 is 1.
	Version int
	Migrate func(from int, data []byte) (S, error)
	// Publishes names the keys whose values the hook hands to task hooks (Key). A
	// key has one publisher: a second is an error in New.
	Publishes []string

	Prerun         func(context.Context, *Request, *S) error
	Update         func(context.Context, *Request, *S) error
	PreTaskRestart func(context.Context, *Request, *S) error
	Prekill        func(context.Context, *Request, *S) error
	Postrun        func(context.Context, *Request, *S) error
	Destroy        func(context.Context, *Request, *S) error
	Shutdown       func(context.Context, *Request, *S) error
}

// AnyHook is *Hook[S] for every S, and nothing else.
type AnyHook interface{ bind() *bound }

// HookFunc makes the hook for one alloc, or nil if it has no use for it. It is
// called once, in New; an in-place update does not call it again.
type HookFunc func(*spec.Alloc) (AnyHook, error)

// Stage places a hook among the others. Values between the named ones are free.
type Stage int

// The stages in order. The zero value is StageHost.
const (
	StagePrevious Stage = 10 * (iota - 5)
	StageDirs
	StageMigrate
	StageVolumes
	StageNetwork
	StageHost // hooks of the host
	StageServices
	StageHealth
)

// Request is what a callback is given. It is valid until the callback returns,
// but for Kill, Restart, Signal, Emit, SetHealth, Checks, Snapshot and Watch, which
// background work may go on using.
type Request struct {
	Alloc    *spec.Alloc   // the last accepted version
	Previous *spec.Alloc   // in Update: the version of the last callback
	Dir      *allocdir.Dir // nil without Config.Dir
	Restored bool          // in Prerun: an earlier Run had begun with this alloc
	Cause    Cause         // in Prekill: why the alloc ends; "" if its tasks ended by themselves
	Tasks    []string      // in PreTaskRestart: who is restarted
	Log      hclog.Logger

	r       *AllocRunner
	save    func() error
	publish func(key string, raw []byte) error
}

// Checkpoint saves the hook's state now. Call it between acquiring something and
// using it. The error is the store's; a Prerun that returns it is tried again.
func (q *Request) Checkpoint() error { return q.save() }

// Kill, Restart, Signal, Emit and SetHealth do what the methods of AllocRunner do.
// In Shutdown they are taskrunner.ErrClosed.
func (q *Request) Kill(ctx context.Context, req KillRequest) error { return q.r.Kill(ctx, req) }

// Restart: see Kill.
func (q *Request) Restart(ctx context.Context, req RestartRequest) error {
	return q.r.Restart(ctx, req)
}

// Signal: see Kill.
func (q *Request) Signal(ctx context.Context, task, signal, reason string) error {
	return q.r.Signal(ctx, task, signal, reason)
}

// Emit: see Kill.
func (q *Request) Emit(ctx context.Context, task string, kind taskrunner.Kind, attrs map[string]string) error {
	return q.r.Emit(ctx, task, kind, attrs)
}

// SetHealth: see Kill.
func (q *Request) SetHealth(ctx context.Context, h spec.Health) error { return q.r.SetHealth(ctx, h) }

// Checks are those of Config, nil where it has none.
func (q *Request) Checks() Checks { return q.r.cfg.Checks }

// Snapshot and Watch are those of AllocRunner.
func (q *Request) Snapshot() Snapshot { return q.r.Snapshot() }

// Watch: see Snapshot.
func (q *Request) Watch(ctx context.Context) iter.Seq[Snapshot] { return q.r.Watch(ctx) }

// Go runs f in the background until all tasks are dead: ctx ends before postrun
// hooks are called (or at detach), and f has 1 s to return. A panic in it is
// logged. It must not touch the hook's state. In Postrun, Destroy and Shutdown it
// does nothing.
func (q *Request) Go(name string, f func(ctx context.Context)) {
	_ = q.r.send(func(l *loop) error { l.background.Start(name, f); return nil })
}

// phase is one of a hook's callbacks.
type phase uint8

const (
	prerun phase = iota
	update
	preTaskRestart
	prekill
	postrun
	destroy
	shutdown
	phases // how many there are
)

func (p phase) String() string {
	return [...]string{"prerun", "update", "pretaskrestart", "prekill", "postrun", "destroy", "shutdown"}[p]
}

// bound is how long the callback may take where the hook does not say; 0 is for
// ever.
func (p phase) bound() time.Duration {
	return [...]time.Duration{update: 30 * time.Second, preTaskRestart: 10 * time.Second, prekill: 10 * time.Second,
		postrun: 60 * time.Second, destroy: 2 * time.Minute, shutdown: 4 * time.Second}[p]
}

// givesBack says that the phase runs reversed and to its end.
func (p phase) givesBack() bool { return p >= prekill }

// together says that the bound is that of all hooks, not of each.
func (p phase) together() bool { return p == prekill || p == shutdown }

// bound is a hook without its type. Its state is owned by the operation that is
// under way, and by the loop while none is.
type bound struct {
	name    string
	stage   Stage
	timeout time.Duration
	key     string // of its state
	has     [phases]bool
	saved   []byte            // the state as it is, or is to be, in the store
	zero    []byte            // the state of a hook that has none yet
	dirty   bool              // saved is not in the store
	lost    bool              // a callback was abandoned
	shared  map[string][]byte // by the keys it publishes; as saved, nil: nothing yet
	open    func(saved []byte) (session, error)
}

// session is one callback's copy of a hook's state.
type session struct {
	call   func(context.Context, phase, *Request) error
	encode func() ([]byte, error)
}

func (h *bound) boundOf(p phase) time.Duration {
	if h.timeout > 0 && p != prerun {
		return h.timeout
	}
	return p.bound()
}

// wants says whether the phase is to be called.
func (h *bound) wants(p phase) bool { return h.has[p] && (!h.lost || p >= postrun) }

func (h *Hook[S]) bind() *bound {
	if h == nil {
		return nil
	}
	slot := state.Slot[S]{Key: "hook." + h.Name, Version: max(1, h.Version), Migrate: h.Migrate}
	funcs := [phases]func(context.Context, *Request, *S) error{prerun: h.Prerun, update: h.Update,
		preTaskRestart: h.PreTaskRestart, prekill: h.Prekill, postrun: h.Postrun, destroy: h.Destroy, shutdown: h.Shutdown}
	b := &bound{name: h.Name, stage: h.Stage, timeout: h.Timeout, key: slot.Key, shared: map[string][]byte{}}
	for _, key := range h.Publishes {
		b.shared[key] = nil
	}
	for p, f := range funcs {
		b.has[p] = f != nil
	}
	b.open = func(saved []byte) (session, error) {
		st := new(S)
		if saved != nil {
			v, err := slot.Decode(saved)
			if err != nil {
				return session{}, fmt.Errorf("hook %q: %w", h.Name, err)
			}
			*st = v
		}
		return session{
			call:   func(ctx context.Context, p phase, req *Request) error { return funcs[p](ctx, req, st) },
			encode: func() ([]byte, error) { return slot.Encode(*st) },
		}, nil
	}
	return b
}
