// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// world is what outlives an agent: the store, the machine, what was seen.
type world struct {
	t     testing.TB
	store state.Store
	fake  *drivertest.Fake
	alloc *spec.Alloc
	hooks []allocrunner.HookFunc
	lives map[string][]drivertest.Life // by task; the last one repeats

	mu       sync.Mutex
	starts   map[string]int
	log      []string // of hooks and of events, in order
	statuses []allocrunner.Status
}

// newWorld makes a world with an alloc of tasks "name:kind[+leader]"; kinds as in
// views.
func newWorld(t testing.TB, jobType spec.JobType, tasks string) *world {
	w := &world{t: t, store: state.Memory(), starts: map[string]int{}, lives: map[string][]drivertest.Life{}}
	w.fake = &drivertest.Fake{Script: w.script}
	w.alloc = &spec.Alloc{ID: "a", JobID: "job", Group: "g", JobType: jobType, ModifyIndex: 10, CreateTime: time.Now()}
	for _, f := range strings.Fields(tasks) {
		name, kind, _ := strings.Cut(f, ":")
		kind, leader := strings.CutSuffix(kind, "+leader")
		task := spec.Task{Name: name, Driver: "fake", Leader: leader, KillTimeout: 5 * time.Second,
			Restart: &spec.RestartPolicy{Attempts: 2, Interval: time.Hour, Delay: time.Second, Mode: spec.RestartFail}}
		switch kind {
		case "pre":
			task.Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePrestart}
		case "preside":
			task.Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePrestart, Sidecar: true}
		case "post":
			task.Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePoststart}
		case "postside":
			task.Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePoststart, Sidecar: true}
		case "stop":
			task.Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePoststop}
		case "main":
		default:
			t.Fatalf("kind %q", kind)
		}
		w.alloc.Tasks = append(w.alloc.Tasks, task)
	}
	return w
}

func (w *world) script(_ int, cfg driver.TaskConfig) drivertest.Life {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.starts[cfg.Name]
	w.starts[cfg.Name]++
	w.log = append(w.log, cfg.Name+" starts")
	lives := w.lives[cfg.Name]
	if len(lives) == 0 {
		return drivertest.Life{Run: drivertest.Forever}
	}
	return lives[min(n, len(lives)-1)]
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) noted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

// count is how often something was noted.
func (w *world) count(what string) int {
	n := 0
	for _, s := range w.noted() {
		if s == what {
			n++
		}
	}
	return n
}

func (w *world) config() allocrunner.Config {
	return allocrunner.Config{
		Alloc: w.alloc, Store: w.store, Hooks: w.hooks,
		Tasks: taskrunner.Config{Drivers: w.fake, MaxEvents: 100},
		Record: func(_ state.Tx, old, new allocrunner.Snapshot) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.statuses) == 0 || w.statuses[len(w.statuses)-1] != new.Status {
				w.statuses = append(w.statuses, new.Status)
			}
			return nil
		},
		RecordTask: func(_ state.Tx, task string, old, new taskrunner.Snapshot) error {
			for _, e := range new.Events {
				if e.Seq > old.Seq {
					w.note("%s: %s", task, e.Kind)
				}
			}
			return nil
		},
	}
}

// agent is one life of the agent with the alloc in it.
type agent struct {
	*allocrunner.AllocRunner
	w      *world
	cancel context.CancelFunc
	ran    chan error // what Run returned
}

func (w *world) start() *agent {
	w.t.Helper()
	return w.startWith(w.config())
}

func (w *world) startWith(cfg allocrunner.Config) *agent {
	w.t.Helper()
	r, err := allocrunner.New(cfg)
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	a := &agent{AllocRunner: r, w: w, cancel: cancel, ran: make(chan error, 1)}
	go func() { a.ran <- r.Run(ctx) }()
	synctest.Wait()
	return a
}

// detach ends the agent, not the tasks; the driver of the next one is new.
func (a *agent) detach() {
	a.w.t.Helper()
	a.cancel()
	if err := <-a.ran; err != nil {
		require.ErrorIs(a.w.t, err, context.Canceled)
	}
	a.w.fake.Forget()
}

// end waits for the alloc to be over and checks that nothing is left.
func (a *agent) end(want allocrunner.Status) allocrunner.Snapshot {
	a.w.t.Helper()
	require.NoError(a.w.t, <-a.ran)
	a.cancel()
	<-a.Done()
	s := a.Snapshot()
	require.Equal(a.w.t, want, s.Status, s.Description)
	require.True(a.w.t, s.Done)
	require.False(a.w.t, s.FinishedAt.IsZero())
	for name, task := range s.Tasks {
		require.Equal(a.w.t, taskrunner.Dead, task.Phase, name)
		require.False(a.w.t, task.FinishedAt.IsZero(), name)
	}
	a.w.fake.Check(a.w.t)
	return s
}

// states is what tasks are doing: "web=running side=pending".
func (a *agent) states() string {
	synctest.Wait()
	var all []string
	s := a.Snapshot()
	for i := range a.w.alloc.Tasks {
		name := a.w.alloc.Tasks[i].Name
		all = append(all, fmt.Sprintf("%s=%s", name, s.Tasks[name].State()))
	}
	return strings.Join(all, " ")
}

// exit ends the current attempt of a task.
func (a *agent) exit(task string, code int) {
	a.w.t.Helper()
	s := a.Snapshot().Tasks[task]
	require.True(a.w.t, a.w.fake.Exit(fmt.Sprintf("%s/%s/%d", a.w.alloc.ID, task, s.Attempt), driver.ExitResult{Code: code}), task)
	synctest.Wait()
}

// newer is the alloc with its next index and a change.
func (a *agent) newer(change func(*spec.Alloc)) *spec.Alloc {
	next := a.Snapshot().Alloc.Clone()
	next.ModifyIndex++
	change(next)
	return next
}

func stop(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop }

// hookOf makes a hook that notes each callback and fails as told.
func (w *world) hookOf(name string, fail map[string]error) allocrunner.HookFunc {
	type counts struct{ N map[string]int }
	f := func(what string) func(context.Context, *allocrunner.Request, *counts) error {
		return func(_ context.Context, _ *allocrunner.Request, c *counts) error {
			if c.N == nil {
				c.N = map[string]int{}
			}
			c.N[what]++
			w.note("%s.%s", name, what)
			if err := fail[what]; errors.Is(err, errPanic) {
				panic("hook " + name)
			} else if err != nil {
				return err
			}
			return nil
		}
	}
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		return &allocrunner.Hook[counts]{Name: name,
			Prerun: f("prerun"), Update: f("update"), PreTaskRestart: f("pretaskrestart"), Prekill: f("prekill"),
			Postrun: f("postrun"), Destroy: f("destroy"), Shutdown: f("shutdown")}, nil
	}
}

var errPanic = errors.New("panic, please")

func second(n int) drivertest.Life {
	return drivertest.Life{Run: time.Duration(n) * time.Second}
}

func fails(after int) drivertest.Life {
	return drivertest.Life{Run: time.Duration(after) * time.Second, Exit: driver.ExitResult{Code: 1}}
}
