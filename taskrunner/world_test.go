// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// world is what outlives an agent: the disk, the tasks and the control plane.
type world struct {
	*testing.T
	store state.Store
	fake  *drivertest.Fake
	alloc *spec.Alloc
	hooks []taskrunner.HookFunc
	edit  func(*taskrunner.Config)
	kinds *kindLog
}

func newWorld(t *testing.T) *world {
	return &world{T: t, store: state.Memory(), fake: &drivertest.Fake{}, alloc: alloc(spec.JobService), kinds: &kindLog{}}
}

func alloc(jt spec.JobType) *spec.Alloc {
	return &spec.Alloc{
		ID: "a1", JobID: "job", JobType: jt, Group: "group", ModifyIndex: 1,
		Tasks: []spec.Task{{
			Name: "web", Driver: "fake", KillTimeout: 10 * time.Second,
			Config:  json.RawMessage(`{}`),
			Restart: &spec.RestartPolicy{Attempts: 2, Interval: 10 * time.Minute, Delay: 15 * time.Second, Mode: spec.RestartFail},
		}},
	}
}

func (w *world) task() *spec.Task { return &w.alloc.Tasks[0] }

// with is a later version of the alloc.
func (w *world) with(edit func(*spec.Alloc)) *spec.Alloc {
	a := w.alloc.Clone()
	a.ModifyIndex++
	edit(a)
	w.alloc = a
	return a
}

func (w *world) runner() *taskrunner.TaskRunner {
	w.Helper()
	cfg := taskrunner.Config{Alloc: w.alloc, Task: "web", Drivers: w.fake, Store: w.store, Hooks: w.hooks, Record: w.kinds.record}
	if w.edit != nil {
		w.edit(&cfg)
	}
	r, err := taskrunner.New(cfg)
	require.NoError(w, err)
	return r
}

// agent is one runner that runs.
type agent struct {
	*taskrunner.TaskRunner
	w      *world
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error
}

var errDetach = errors.New("detached by the test")

func (w *world) start() *agent {
	w.Helper()
	ctx, cancel := context.WithCancelCause(w.Context())
	a := &agent{TaskRunner: w.runner(), w: w, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		a.err = a.Run(ctx)
	}()
	synctest.Wait()
	return a
}

func (a *agent) detach() {
	a.w.Helper()
	a.cancel(errDetach)
	<-a.ended
	require.ErrorIs(a.w, a.err, errDetach)
}

// end waits until the task is dead and checks that nothing is left.
func (a *agent) end() taskrunner.Snapshot {
	a.w.Helper()
	<-a.ended
	require.NoError(a.w, a.err)
	a.w.fake.Check(a.w)
	s := a.Snapshot()
	require.Equal(a.w, taskrunner.Dead, s.Phase)
	require.True(a.w, s.Final)
	require.False(a.w, s.FinishedAt.IsZero())
	return s
}

func (a *agent) phase(p taskrunner.Phase) {
	a.w.Helper()
	synctest.Wait()
	require.Equal(a.w, p, a.Snapshot().Phase)
}

func (a *agent) killNow() {
	a.w.Helper()
	require.NoError(a.w, a.Kill(a.w.Context(), taskrunner.KillRequest{}))
}

// kindLog is the durable event log: each event once, in order, without a gap.
type kindLog struct {
	mu     sync.Mutex
	events []taskrunner.Event
	gaps   int
}

func (k *kindLog) record(_ state.Tx, old, new taskrunner.Snapshot) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	// What a transaction that was repeated, or never written, added is dropped.
	k.events = slices.DeleteFunc(k.events, func(e taskrunner.Event) bool { return e.Seq > old.Seq })
	for _, e := range new.Events {
		if e.Seq > old.Seq {
			if e.Seq != uint64(len(k.events))+1 {
				k.gaps++
			}
			k.events = append(k.events, e)
		}
	}
	return nil
}

func (k *kindLog) all() []taskrunner.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.events)
}

func (k *kindLog) list() (out []string) {
	for _, e := range k.all() {
		out = append(out, string(e.Kind))
	}
	return out
}

// last returns the latest event of that kind.
func (k *kindLog) last(kind taskrunner.Kind) (found taskrunner.Event) {
	for _, e := range k.all() {
		if e.Kind == kind {
			found = e
		}
	}
	return found
}

// journal notes what hooks are called with.
type journal struct {
	mu    sync.Mutex
	calls []string
}

func (j *journal) add(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, s)
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.calls)
}

func (j *journal) count(s string) (n int) {
	for _, c := range j.list() {
		if c == s {
			n++
		}
	}
	return n
}

// hook is one with every callback, which notes "<name> <callback>".
func (j *journal) hook(name string) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) { return j.full(name), nil }
}

func (j *journal) full(name string) *taskrunner.Hook[struct{}] {
	note := func(what string) func(context.Context, *taskrunner.Request, *struct{}) error {
		return func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
			j.add(name + " " + what)
			return nil
		}
	}
	return &taskrunner.Hook[struct{}]{
		Name: name,
		Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (taskrunner.Contribution, error) {
			what := "prestart"
			if r.Restored {
				what = "prestart restored"
			}
			j.add(name + " " + what)
			return taskrunner.Contribution{Env: map[string]string{"HOOK": name}}, nil
		},
		Poststart: note("poststart"), Update: note("update"), Prekill: note("prekill"), Exited: note("exited"), Stop: note("stop"),
	}
}

// hookOf makes a HookFunc of a hook.
func hookOf[S any](h *taskrunner.Hook[S]) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) { return h, nil }
}

// script gives the n-th life, and the last one again for all later.
func script(lives ...drivertest.Life) func(int, driver.TaskConfig) drivertest.Life {
	return func(n int, _ driver.TaskConfig) drivertest.Life { return lives[min(n, len(lives)-1)] }
}

func exits(after time.Duration, code int) drivertest.Life {
	return drivertest.Life{Run: after, Exit: driver.ExitResult{Code: code}}
}

func forever() drivertest.Life { return drivertest.Life{Run: drivertest.Forever} }

// flag is a bool that tests flip.
type flag struct{ atomic.Bool }
