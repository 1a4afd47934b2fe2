// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package taskrunnertest tests task hooks: HookTest runs one through all that can
// happen to it.
//
//	plain life      two attempts and a stop: what it took is given back, and the
//	                second attempt has the outputs of the first
//	restore         the agent lets go and a new one takes over: outputs are made
//	                again, what it holds stays, the task is not disturbed
//	never started   killed before prestart: stop copes without a state
//	crash           the agent dies before, or after, each write; the next brings
//	                the task to its end. Between what a hook acquires and the write
//	                of its state lies one of these: so acquiring must be by a key
//	                that survives, and doing it twice the same as doing it once.
package taskrunnertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// HookConfig says which hook is tested and in what world. New is required.
type HookConfig struct {
	// New makes the world outside the agent afresh, in memory or in t.TempDir, and
	// returns a hook over it and a func that names what the hook holds there now.
	// It is called in virtual time, once per scene. The hook is made anew for each
	// agent; only the world and the hook's state outlive one.
	New func(t *testing.T) (hook taskrunner.HookFunc, held func() []string)
	// Alloc and Task: nil is a service with one task, "task", of driver "fake".
	Alloc *spec.Alloc
	Task  string
	// Edit changes the runner's configuration, such as its directory; may be nil.
	Edit func(*testing.T, *taskrunner.Config)
	// Varies says that outputs may differ from attempt to attempt.
	Varies bool
}

// HookTest fails t if the hook leaks, doubles or loses anything. It runs in
// virtual time: a hook that waits for others must wait for what is made in New.
func HookTest(t *testing.T, cfg HookConfig) {
	t.Helper()
	run(t, cfg, func(t *testing.T, format string, args ...any) {
		t.Helper()
		t.Errorf(format, args...)
	})
}

// scene is one story of one task.
type scene struct {
	*testing.T
	cfg    HookConfig
	fault  func(t *testing.T, format string, args ...any)
	hook   taskrunner.HookFunc
	held   func() []string
	store  state.Store
	fake   *drivertest.Fake
	agents int
	most   int // the most it held at a time
	failed []string
}

func run(t *testing.T, cfg HookConfig, fault func(*testing.T, string, ...any)) {
	if cfg.Alloc == nil {
		cfg.Task = "task"
		cfg.Alloc = &spec.Alloc{ID: "hooktest", JobID: "job", Group: "group", ModifyIndex: 1, Tasks: []spec.Task{{Name: "task", Driver: "fake"}}}
	}
	most := 0
	for _, tc := range []struct {
		name string
		play func(*scene)
	}{
		{"plain life", (*scene).plainLife}, {"restore", (*scene).restore}, {"never started", (*scene).neverStarted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, cfg, fault)
				tc.play(s)
				s.end()
				most = max(most, s.most)
			})
		})
	}
	for name, crash := range map[string]func(state.Store, int) *statetest.Crash{"before": statetest.CrashAt, "after": statetest.CrashAfter} {
		t.Run("crash "+name+" a write", func(t *testing.T) {
			for n, crashed := 1, true; crashed && !t.Failed(); n++ {
				synctest.Test(t, func(t *testing.T) {
					s := newScene(t, cfg, fault)
					if crashed = s.agent(crash(s.store, n), s.twoAttempts); crashed {
						s.agent(statetest.CrashAt(s.store, 0), s.kill)
					}
					s.end()
					if s.most > most {
						s.fault(t, "write %d: held %d things at once, in a life without a crash %d", n, s.most, most)
					}
				})
			}
		})
	}
}

func newScene(t *testing.T, cfg HookConfig, fault func(*testing.T, string, ...any)) *scene {
	s := &scene{T: t, cfg: cfg, fault: fault, store: state.Memory(), fake: &drivertest.Fake{Name: cfg.Alloc.Task(cfg.Task).Driver}}
	s.hook, s.held = cfg.New(t)
	return s
}

// agent runs one agent until the task or the agent has ended; it says whether the
// latter was first.
func (s *scene) agent(store *statetest.Crash, play func(context.Context, *taskrunner.TaskRunner)) bool {
	s.agents++
	cfg := taskrunner.Config{Alloc: s.cfg.Alloc, Task: s.cfg.Task, Drivers: s.fake, Store: store, Hooks: []taskrunner.HookFunc{s.hook}, Observe: s.look}
	if s.cfg.Edit != nil {
		s.cfg.Edit(s.T, &cfg)
	}
	r, err := taskrunner.New(cfg)
	if err != nil {
		s.fault(s.T, "New: %v", err)
		return false
	}
	ctx, cancel := context.WithCancelCause(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	go func() {
		select {
		case <-store.Crashed():
			cancel(statetest.ErrCrash)
		case <-r.Done():
		}
	}()
	go func() {
		play(ctx, r)
		if ctx.Err() == nil && r.Snapshot().Phase != taskrunner.Dead {
			cancel(errLeft)
		}
	}()
	err = <-ended
	cancel(nil)
	synctest.Wait()
	return err != nil
}

var errLeft = errors.New("taskrunnertest: the agent lets go")

// look is shown every snapshot.
func (s *scene) look(snap taskrunner.Snapshot) {
	s.most = max(s.most, len(s.held()))
	for _, e := range snap.Events {
		id := fmt.Sprint(e.Seq, e.Time)
		if e.Kind == taskrunner.HookFailed && !slices.Contains(s.failed, id) {
			s.failed = append(s.failed, id)
			s.fault(s.T, "%s", e.Text())
		}
	}
}

// until waits for the phase.
func until(ctx context.Context, r *taskrunner.TaskRunner, ok func(taskrunner.Snapshot) bool) bool {
	for s := range r.Watch(ctx) {
		if ok(s) {
			return true
		}
	}
	return false
}

func running(attempts int) func(taskrunner.Snapshot) bool {
	return func(s taskrunner.Snapshot) bool { return s.Phase == taskrunner.Running && s.Restarts == attempts }
}

func (s *scene) kill(ctx context.Context, r *taskrunner.TaskRunner) {
	if r.Kill(ctx, taskrunner.KillRequest{}) == nil {
		<-r.Done()
	}
}

// twoAttempts is a life with a restart and a kill, some time apart.
func (s *scene) twoAttempts(ctx context.Context, r *taskrunner.TaskRunner) {
	if !until(ctx, r, running(0)) {
		return
	}
	pause(ctx)
	if r.Restart(ctx, taskrunner.RestartRequest{Reason: "test"}) != nil || !until(ctx, r, running(1)) {
		return
	}
	pause(ctx)
	s.kill(ctx, r)
}

func pause(ctx context.Context) {
	select {
	case <-time.After(time.Minute):
	case <-ctx.Done():
	}
}

func (s *scene) plainLife() {
	if s.agent(statetest.CrashAt(s.store, 0), s.twoAttempts) {
		s.fault(s.T, "the task did not run: its hook kept it from starting")
	}
	s.sameOutputs(2)
}

func (s *scene) restore() {
	var before []string
	s.agent(statetest.CrashAt(s.store, 0), func(ctx context.Context, r *taskrunner.TaskRunner) {
		until(ctx, r, running(0))
		pause(ctx)
		before = s.held()
	})
	if now := s.held(); !slices.Equal(before, now) {
		s.fault(s.T, "held %v while the task ran, %v when the agent had let go", before, now)
	}
	s.fake.Forget()
	s.agent(statetest.CrashAt(s.store, 0), func(ctx context.Context, r *taskrunner.TaskRunner) {
		pause(ctx)
		if now := s.held(); !slices.Equal(before, now) {
			s.fault(s.T, "held %v before the restart of the agent, %v after it", before, now)
		}
		if n := s.fake.Count(drivertest.Stop) + s.fake.Count(drivertest.Destroy); n > 0 || s.fake.Lives() != 1 {
			s.fault(s.T, "the restored task was disturbed")
		}
		if r.Restart(ctx, taskrunner.RestartRequest{Reason: "test"}) == nil && until(ctx, r, running(1)) {
			s.kill(ctx, r)
		}
	})
	s.sameOutputs(2)
}

func (s *scene) neverStarted() {
	edit := s.cfg.Edit
	s.cfg.Edit = func(t *testing.T, c *taskrunner.Config) {
		if edit != nil {
			edit(t, c)
		}
		c.Gated = true
	}
	s.agent(statetest.CrashAt(s.store, 0), s.kill)
}

// end is what must hold when the task is dead.
func (s *scene) end() {
	if held := s.held(); len(held) > 0 {
		s.fault(s.T, "still held after the task's end: %v", held)
	}
	if left := append(s.fake.Left(), s.fake.Faults()...); len(left) > 0 {
		s.fault(s.T, "tasks: %v", left)
	}
}

// sameOutputs compares what the attempts were started with.
func (s *scene) sameOutputs(n int) {
	cs := s.fake.Configs()
	if len(cs) != n {
		s.fault(s.T, "%d starts, not %d", len(cs), n)
		return
	}
	if a, b := outputs(cs[0]), outputs(cs[1]); a != b && !s.cfg.Varies {
		s.fault(s.T, "outputs of the first attempt:\n%s\nof the second:\n%s", a, b)
	}
}

func outputs(c driver.TaskConfig) string {
	return fmt.Sprintf("env %s\nmounts %v\ndevices %v\nstdio %v\nuser %q", strings.Join(c.Env, " "), c.Mounts, c.Devices, c.Stdio, c.User)
}
