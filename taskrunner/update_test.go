// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskenv"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// updates is a hook that notes the versions it is shown.
func updates(seen *journal, block *atomic.Int64) taskrunner.HookFunc {
	return hookOf(&taskrunner.Hook[struct{}]{Name: "u",
		Update: func(ctx context.Context, r *taskrunner.Request, _ *struct{}) error {
			seen.add(r.Previous.Meta["v"] + ">" + r.Alloc.Meta["v"])
			select {
			case <-time.After(time.Duration(block.Load())):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}})
}

func (w *world) version(v string) *spec.Alloc {
	return w.with(func(a *spec.Alloc) { a.Meta = map[string]string{"v": v} })
}

func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.version("0")
		var seen journal
		var block atomic.Int64
		w.hooks = []taskrunner.HookFunc{updates(&seen, &block)}
		a := w.start()
		one := w.version("1")
		require.NoError(t, a.Update(t.Context(), one))
		synctest.Wait()
		require.Equal(t, []string{"0>1"}, seen.list())
		require.NoError(t, a.Update(t.Context(), one), "a repetition is ignored")
		synctest.Wait()
		require.Len(t, seen.list(), 1)

		// While one update is under way others coalesce; the latest wins.
		block.Store(int64(10 * time.Second))
		require.NoError(t, a.Update(t.Context(), w.version("2")))
		time.Sleep(time.Second)
		three := w.version("3")
		four := w.version("4")
		require.NoError(t, a.Update(t.Context(), four))
		require.NoError(t, a.Update(t.Context(), three))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"0>1", "1>2", "2>4"}, seen.list())
		require.Equal(t, 1, w.fake.Lives())

		other := w.version("5")
		other.ID = "a2"
		require.Error(t, a.Update(t.Context(), other))
		none := w.version("6")
		none.ID, none.Tasks = "a1", nil
		require.ErrorContains(t, a.Update(t.Context(), none), "web")
		a.killNow()
		a.end()
	})
}

// FF-024: a stop does not queue behind an update that blocks, whether the hook
// obeys its context or not.
func TestStopDuringUpdate(t *testing.T) {
	for name, deaf := range map[string]bool{"obedient": false, "deaf": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				var calls atomic.Int64
				w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "u",
					Update: func(ctx context.Context, _ *taskrunner.Request, _ *struct{}) error {
						calls.Add(1)
						select {
						case <-time.After(30 * time.Second):
						case <-map[bool]<-chan struct{}{false: ctx.Done()}[deaf]:
						}
						return nil
					}})}
				a := w.start()
				update := w.version("43")
				require.NoError(t, a.Update(t.Context(), update))
				time.Sleep(time.Second)
				began := time.Now()
				require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop })))
				if err := a.Update(t.Context(), update); !errors.Is(err, taskrunner.ErrClosed) {
					require.NoError(t, err)
				}
				for s := range a.Watch(t.Context()) {
					if s.Phase == taskrunner.Stopping {
						break
					}
				}
				require.Less(t, time.Since(began), 2*time.Second)
				a.end()
				require.EqualValues(t, 1, calls.Load())
				time.Sleep(time.Minute) // the deaf one comes back
			})
		})
	}
}

// The last accepted version is what a restart uses, also one that came while
// nothing ran.
func TestRestartUsesLastVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var seen journal
		var block atomic.Int64
		w.hooks = []taskrunner.HookFunc{updates(&seen, &block)}
		w.fake.Script = script(exits(0, 1), forever())
		a := w.start()
		a.phase(taskrunner.Pending)
		require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].Env = map[string]string{"V": "2"} })))
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		require.Empty(t, seen.list(), "prestart has seen it already")
		require.Contains(t, w.fake.Configs()[1].Env, "V=2")
		require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].Env = map[string]string{"V": "3"} })))
		synctest.Wait()
		require.Len(t, seen.list(), 1)
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{}))
		synctest.Wait()
		require.Contains(t, w.fake.Configs()[2].Env, "V=3")
		a.killNow()
		a.end()
	})
}

// With a parent the desired status is the parent's to carry out, and the gate is
// asked at every start.
func TestGated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Gated = true }
		w.fake.Script = script(exits(time.Minute, 1), forever())
		a := w.start()
		time.Sleep(time.Hour)
		a.phase(taskrunner.Pending)
		a.SetGate(true)
		a.SetGate(true)
		a.phase(taskrunner.Running)
		require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop })))
		a.phase(taskrunner.Running)
		a.SetGate(false)
		a.phase(taskrunner.Running)
		time.Sleep(time.Hour)
		a.phase(taskrunner.Pending)
		a.detach()
		a = w.start()
		a.phase(taskrunner.Pending)
		a.SetGate(true)
		a.phase(taskrunner.Running)
		a.detach()
		w.fake.Forget()
		a = w.start()
		a.phase(taskrunner.Running) // started before: no gate holds it back
		require.Equal(t, 1, w.fake.Count(drivertest.Recover))
		a.killNow()
		a.end()
		require.LessOrEqual(t, commits(w.store), int64(12))
	})
}

// A gate that closes while the task is being prepared holds the start back, also
// when it opens and closes again.
func TestGateClosesDuringPreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Gated = true }
		w.fake.Slow(drivertest.Prepare, time.Minute)
		a := w.start()
		for range 3 {
			a.SetGate(true)
			time.Sleep(time.Second)
			a.phase(taskrunner.Ready)
			a.SetGate(false)
			time.Sleep(time.Hour)
			a.phase(taskrunner.Ready)
		}
		require.Zero(t, w.fake.Count(drivertest.Start))
		a.SetGate(true)
		time.Sleep(time.Hour)
		a.phase(taskrunner.Running)
		require.LessOrEqual(t, w.fake.Count(drivertest.Prepare), 4)
		a.killNow()
		a.end()
	})
}

// Restored is closed once the task of an earlier runner was looked for, and in
// any case when Run returns.
func TestRestoredIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := func(a *agent) bool {
			select {
			case <-a.Restored():
				return true
			default:
				return false
			}
		}
		w := newWorld(t)
		a := w.start()
		require.True(t, closed(a))
		a.detach()
		w.fake.Forget()
		w.fake.Slow(drivertest.Recover, time.Minute)
		a = w.start()
		require.False(t, closed(a))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, closed(a))
		a.detach()
		a = w.start()
		require.False(t, closed(a))
		a.detach()
		require.True(t, closed(a))
		w.fake.Slow(drivertest.Recover, 0)
		a = w.start()
		a.killNow()
		a.end()
	})
}

// Run returns in time, whatever is under way, and leaves the task alone.
func TestDetachIsBounded(t *testing.T) {
	hang := func(m drivertest.Method) func(*world) func() {
		return func(w *world) func() { return w.fake.Hang(m) }
	}
	hook := func(w *world) func() {
		c := make(chan struct{})
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "deaf",
			Poststart: func(context.Context, *taskrunner.Request, *struct{}) error { <-c; return nil }})}
		return func() { close(c) }
	}
	for name, tc := range map[string]struct {
		disturb func(*world) func()
		kill    bool
		limit   time.Duration
	}{
		"nothing":      {func(*world) func() { return func() {} }, false, 0},
		"deaf wait":    {hang(drivertest.Wait), false, 5 * time.Second},
		"deaf start":   {hang(drivertest.Start), false, 5 * time.Second},
		"deaf prepare": {hang(drivertest.Prepare), false, 5 * time.Second},
		"deaf stop":    {hang(drivertest.Stop), true, 5 * time.Second},
		"deaf destroy": {hang(drivertest.Destroy), true, 5 * time.Second},
		"deaf hook":    {hook, false, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				release := tc.disturb(w)
				a := w.start()
				if tc.kill {
					a.killNow()
					synctest.Wait()
				}
				began := time.Now()
				a.cancel(errDetach)
				<-a.ended
				require.LessOrEqual(t, time.Since(began), tc.limit)
				require.ErrorIs(t, a.err, errDetach)
				lives := w.fake.Lives()
				release()
				synctest.Wait()
				w.fake.Forget()
				b := w.start()
				if !tc.kill {
					b.phase(taskrunner.Running)
					b.killNow()
				}
				b.end()
				require.LessOrEqual(t, w.fake.Lives(), lives+1)
			})
		})
	}
}

// A start that is under way at detach is given time: its handle is not lost.
func TestDetachDuringStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Slow(drivertest.Start, 2*time.Second)
		a := w.start()
		a.phase(taskrunner.Starting)
		began := time.Now()
		a.detach()
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, taskrunner.Running, a.Snapshot().Phase)
		w.fake.Forget()
		b := w.start()
		b.phase(taskrunner.Running)
		require.Equal(t, 1, w.fake.Count(drivertest.Start))
		b.killNow()
		b.end()
	})
}

func TestWatchAndObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Minute, 0))
		var observed []taskrunner.Snapshot
		var traced, hooks, writes int
		w.edit = func(c *taskrunner.Config) {
			c.Observe = func(s taskrunner.Snapshot) {
				observed = append(observed, s)
				panic("of the host")
			}
			c.Trace.Transition = func(_, _ taskrunner.Snapshot) { traced++; panic("of the host") }
			c.Trace.Hook = func(hook, callback string, _ time.Duration, err error) { hooks++ }
			c.Trace.Commit = func(_ time.Duration, err error) { writes++ }
		}
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		var phases []taskrunner.Phase
		for s := range a.Watch(t.Context()) {
			phases = append(phases, s.Phase)
		}
		require.Equal(t, taskrunner.Dead, phases[len(phases)-1], "the last one is always seen")
		a.end()
		select {
		case <-a.Done():
		default:
			t.Error("not done")
		}
		rev := uint64(0)
		for i, s := range observed {
			require.True(t, i == 0 || s.Rev > rev)
			rev = s.Rev
			require.True(t, s.Durable)
		}
		require.Equal(t, len(observed), traced+1)
		require.Equal(t, 4, hooks)
		require.EqualValues(t, commits(w.store), writes)
		require.Error(t, a.Run(t.Context()), "Run may be called once")

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errDetach)
		b := w.runner() // nobody runs it
		require.ErrorIs(t, b.Kill(ctx, taskrunner.KillRequest{}), errDetach)
		for range b.Watch(ctx) {
		}
	})
}

// badLogger panics at every line.
type badLogger struct{ hclog.Logger }

func (badLogger) With(...any) hclog.Logger { panic("of the host") }
func (badLogger) Info(string, ...any)      { panic("of the host") }
func (badLogger) Warn(string, ...any)      { panic("of the host") }
func (badLogger) Error(string, ...any)     { panic("of the host") }

// D35: a panic in what the host hands in goes no further.
func TestHostPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Minute, 0))
		records := 0
		w.edit = func(c *taskrunner.Config) {
			c.Log = badLogger{hclog.NewNullLogger()}
			c.Observe = func(taskrunner.Snapshot) { panic("of the host") }
			c.Record = func(state.Tx, taskrunner.Snapshot, taskrunner.Snapshot) error {
				if records++; records < 4 {
					panic("of the host")
				}
				return nil
			}
		}
		require.False(t, w.start().end().Failed)
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Env = func(*spec.Alloc) taskenv.Builder { panic("of the host") } }
		s := w.start().end()
		require.True(t, s.Failed)
		require.Contains(t, s.Reason, "of the host")
	})
}

func TestConfigFaults(t *testing.T) {
	_, err := taskrunner.New(taskrunner.Config{MaxKillTimeout: -1, MaxEvents: -1})
	for _, f := range []string{"Alloc", "Task", "Drivers", "Store", "MaxKillTimeout", "MaxEvents"} {
		require.ErrorContains(t, err, "Config."+f)
	}
	w := newWorld(t)
	_, err = taskrunner.New(taskrunner.Config{Alloc: w.alloc, Task: "db", Drivers: w.fake, Store: w.store})
	require.ErrorContains(t, err, `no task "db"`)
	w.alloc.ID = "../a"
	_, err = taskrunner.New(taskrunner.Config{Alloc: w.alloc, Task: "web", Drivers: w.fake, Store: w.store})
	require.ErrorContains(t, err, "Config.Alloc.ID")
	w = newWorld(t)
	j := &journal{}
	bad := func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) { return nil, errors.New("no such pool") }
	none := func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) { return nil, nil }
	typed := func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) { return (*taskrunner.Hook[int])(nil), nil }
	_, err = taskrunner.New(taskrunner.Config{Alloc: w.alloc, Task: "web", Drivers: w.fake, Store: w.store,
		Hooks: []taskrunner.HookFunc{j.hook("h"), bad, none, nil, typed, j.hook("h"), j.hook("a/b")}})
	require.ErrorContains(t, err, "no such pool")
	require.ErrorContains(t, err, `second hook named "h"`)
	require.ErrorContains(t, err, "Hooks[6]: name")
}

// The driver gets all there is to know of the task, and the hooks' work.
func TestTaskConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.with(func(a *spec.Alloc) {
			a.Tasks[0].User = "${NOMAD_META_user}-${nothing}"
			a.Tasks[0].Meta = map[string]string{"user": "app"}
			a.Tasks[0].Env = map[string]string{"A": "task", "B": "task", "C": "${NOMAD_TASK_NAME}"}
			a.Tasks[0].Resources = spec.Resources{CPU: 500, CoreIDs: []int{1, 2}, MemoryMB: 64, MemoryMaxMB: 128}
		})
		one := &taskrunner.Hook[struct{}]{Name: "one", Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (taskrunner.Contribution, error) {
			require.Equal(t, "task", r.Env().Map()["B"])
			require.Equal(t, "a1/web/0", r.TaskID)
			require.Equal(t, "fake", r.Driver.Name)
			return taskrunner.Contribution{Env: map[string]string{"B": "one", "X": "one"}, Mounts: []driver.Mount{{Source: "/s", Target: "/t"}},
				Stdio: &driver.Stdio{Stdout: "/out", Stderr: "/err"}, Template: map[string]string{"T": "template"}}, nil
		}}
		two := &taskrunner.Hook[struct{}]{Name: "two", Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (taskrunner.Contribution, error) {
			require.Equal(t, "one", r.Env().Map()["B"])
			require.Equal(t, "one", r.HostEnv().Map()["B"])
			return taskrunner.Contribution{Env: map[string]string{"X": "two", "T": "hook"}, User: "other", DNS: &driver.DNS{Servers: []string{"10.0.0.1"}},
				Network: &driver.Network{Mode: "group"}, Devices: []driver.Device{{HostPath: "/dev/x"}}}, nil
		}}
		w.hooks = []taskrunner.HookFunc{hookOf(one), hookOf(two)}
		a := w.start()
		c := w.fake.Configs()[0]
		require.Equal(t, driver.Owner{AllocID: "a1", Task: "web", Group: "group", JobID: "job", JobName: "job", Namespace: "default", Region: "global"}, c.Owner)
		require.Equal(t, driver.Resources{CPU: 500, Cores: []int{1, 2}, MemoryMB: 64, MemoryMax: 128}, c.Res)
		require.Equal(t, driver.Stdio{Stdout: "/out", Stderr: "/err"}, c.Stdio)
		require.Equal(t, "other", c.User)
		require.Equal(t, "a1.web", c.Scope)
		require.Len(t, c.Mounts, 1)
		require.Len(t, c.Devices, 1)
		require.NotNil(t, c.Network)
		require.NotNil(t, c.DNS)
		for _, v := range []string{"A=task", "B=one", "C=web", "X=two", "T=template"} {
			require.Contains(t, c.Env, v)
		}
		require.Equal(t, "nothing", w.kinds.last(taskrunner.Started).Attrs["unknown_names"])
		a.killNow()
		a.end()
	})
}
