// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
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

type counter struct{ N int }

// withCallback is a hook with one callback that is f and others that are noted.
func (j *journal) withCallback(name, cb string, f func(context.Context, *taskrunner.Request, *counter) error) *taskrunner.Hook[counter] {
	note := func(what string) func(context.Context, *taskrunner.Request, *counter) error {
		if what == cb {
			return func(ctx context.Context, r *taskrunner.Request, s *counter) error {
				j.add(name + " " + what)
				return f(ctx, r, s)
			}
		}
		return func(context.Context, *taskrunner.Request, *counter) error { j.add(name + " " + what); return nil }
	}
	pre := note("prestart")
	return &taskrunner.Hook[counter]{
		Name: name,
		Prestart: func(ctx context.Context, r *taskrunner.Request, s *counter) (taskrunner.Contribution, error) {
			return taskrunner.Contribution{}, pre(ctx, r, s)
		},
		Poststart: note("poststart"), Update: note("update"), Prekill: note("prekill"), Exited: note("exited"), Stop: note("stop"),
	}
}

// D25: every callback has its bound; a deaf one is abandoned, what it did to its
// state is dropped, an event says so, and only Stop is still called of that hook.
func TestBounds(t *testing.T) {
	for cb, tc := range map[string]struct {
		bound time.Duration
		after []string // calls of the deaf hook after the abandoned one
	}{
		"update":  {31 * time.Second, []string{"stop"}},
		"prekill": {9 * time.Second, []string{"stop"}}, // a tenth is kept for the other hook
		"exited":  {11 * time.Second, []string{"stop"}},
		"stop":    {31 * time.Second, nil},
	} {
		for _, timeout := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprintf("%s, timeout %s", cb, timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					j := &journal{}
					release := make(chan struct{})
					deaf := j.withCallback("deaf", cb, func(_ context.Context, _ *taskrunner.Request, s *counter) error {
						s.N = 99
						<-release
						return nil
					})
					deaf.Timeout = timeout
					w.hooks = []taskrunner.HookFunc{hookOf(deaf), j.hook("other")}
					a := w.start()
					began := time.Now()
					if cb == "update" {
						require.NoError(t, a.Update(t.Context(), w.version("2")))
						for j.count("other update") == 0 {
							time.Sleep(100 * time.Millisecond)
						}
						require.InDelta(t, limit(tc.bound, timeout, cb), time.Since(began), float64(200*time.Millisecond))
					}
					a.killNow()
					a.end()
					took := time.Since(began)
					if cb != "update" {
						require.Equal(t, limit(tc.bound, timeout, cb), took)
					}
					var after []string
					for _, c := range j.list() {
						if strings.HasPrefix(c, "deaf ") {
							after = append(after, strings.TrimPrefix(c, "deaf "))
						}
					}
					for i, c := range after {
						if c == cb {
							after = after[i+1:]
							break
						}
					}
					require.ElementsMatch(t, tc.after, after)
					e := w.kinds.last(taskrunner.HookFailed)
					require.Equal(t, map[string]string{"hook": "deaf", "callback": cb, "abandoned": "true"},
						map[string]string{"hook": e.Attrs["hook"], "callback": e.Attrs["callback"], "abandoned": e.Attrs["abandoned"]})
					require.Equal(t, counter{}, loadState(t, w.store, "deaf"), "what it did to its state is dropped")
					require.Equal(t, 1, j.count("other stop"))
					close(release)
				})
			})
		}
	}
}

func limit(bound, timeout time.Duration, cb string) time.Duration {
	if timeout == 0 {
		return bound
	}
	if cb == "prekill" {
		return timeout // the stop signal waits no longer
	}
	return timeout + time.Second
}

func loadState(t *testing.T, s state.Store, hook string) (c counter) {
	t.Helper()
	require.NoError(t, s.View(func(tx state.Tx) (err error) {
		c, _, err = state.Slot[counter]{Key: "hook." + hook, Version: 1}.Load(tx, state.Path{"v1", "alloc", "a1", "task-web"})
		return err
	}))
	return c
}

// The stop signal waits for all prekill hooks together no longer than the bound.
func TestPrekillTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		for i := range 5 {
			w.hooks = append(w.hooks, hookOf(j.withCallback("h"+strconv.Itoa(i), "prekill",
				func(context.Context, *taskrunner.Request, *counter) error { time.Sleep(4 * time.Second); return nil })))
		}
		a := w.start()
		began := time.Now()
		a.killNow()
		a.end()
		require.Equal(t, 10*time.Second, time.Since(began))
		time.Sleep(time.Minute)
	})
}

// An abandoned hook takes part again once its callback has returned; before that
// no attempt is started without it.
func TestAbandonedHookAtNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		release := make(chan struct{})
		w.hooks = []taskrunner.HookFunc{hookOf(j.withCallback("deaf", "update", func(context.Context, *taskrunner.Request, *counter) error {
			<-release
			return nil
		}))}
		a := w.start()
		require.NoError(t, a.Update(t.Context(), w.version("2")))
		time.Sleep(time.Minute)
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{}))
		a.phase(taskrunner.Pending)
		require.Equal(t, 1, j.count("deaf prestart"))
		require.Contains(t, a.Snapshot().Reason, "has not returned yet")
		close(release)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		require.Equal(t, 2, j.count("deaf prestart"))
		a.killNow()
		a.end()
	})
}

// A panic is an error of that hook and goes no further. So is a callback that
// ends its own goroutine.
func TestPanics(t *testing.T) {
	for _, cb := range []string{"prestart", "poststart", "update", "prekill", "exited", "stop"} {
		for how, f := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
			t.Run(cb+" "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					j := &journal{}
					bad := j.withCallback("bad", cb, func(_ context.Context, _ *taskrunner.Request, s *counter) error {
						s.N++
						f()
						return nil
					})
					w.hooks = []taskrunner.HookFunc{hookOf(bad), j.hook("other")}
					a := w.start()
					if cb == "prestart" {
						require.True(t, a.end().Failed)
						require.Equal(t, 1, j.count("other stop"))
						return
					}
					require.NoError(t, a.Update(t.Context(), w.version("2")))
					synctest.Wait()
					a.killNow()
					require.False(t, a.end().Failed)
					for _, c := range []string{"poststart", "update", "prekill", "exited", "stop"} {
						require.Equal(t, 1, j.count("other "+c), c)
						require.Equal(t, 1, j.count("bad "+c), c)
					}
					require.Equal(t, counter{1}, loadState(t, w.store, "bad"), "saved also when it failed")
				})
			})
		}
	}
}

// State: loaded before, saved after, checkpointed between, not written unchanged.
func TestHookState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[counter]{Name: "h",
			Prestart: func(_ context.Context, r *taskrunner.Request, s *counter) (taskrunner.Contribution, error) {
				s.N++
				require.NoError(t, r.Checkpoint())
				require.Equal(t, *s, loadState(t, w.store, "h"))
				require.NoError(t, r.Checkpoint(), "again, unchanged")
				s.N++
				if s.N == 2 {
					return taskrunner.Contribution{}, driver.Recoverable(errors.New("saved also when it failed"))
				}
				return taskrunner.Contribution{}, nil
			},
			Poststart: func(_ context.Context, r *taskrunner.Request, s *counter) error {
				j.add(fmt.Sprint(s.N))
				return nil
			},
		})}
		a := w.start()
		require.Equal(t, counter{2}, loadState(t, w.store, "h"))
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		before := commits(w.store)
		a.detach()
		require.Equal(t, before, commits(w.store))
		w.fake.Forget()
		b := w.start()
		b.phase(taskrunner.Running)
		require.Equal(t, []string{"4", "6"}, j.list())
		b.killNow()
		b.end()
	})
}

func TestHookMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type old struct{ Count int }
		w := newWorld(t)
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[old]{Name: "h", Version: 1,
			Prestart: func(_ context.Context, _ *taskrunner.Request, s *old) (c taskrunner.Contribution, err error) {
				s.Count = 7
				return c, nil
			}})}
		w.start().detach()
		got := 0
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[counter]{Name: "h", Version: 2,
			Migrate: func(from int, data []byte) (counter, error) {
				require.Equal(t, 1, from)
				require.JSONEq(t, `{"Count":7}`, string(data))
				return counter{7}, nil
			},
			Stop: func(_ context.Context, _ *taskrunner.Request, s *counter) error { got = s.N; return nil },
		})}
		a := w.start()
		a.killNow()
		a.end()
		require.Equal(t, 7, got)
	})
}

// D29: by stage, and in the given order within one; cleanup in reverse.
func TestStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		staged := func(name string, s taskrunner.Stage) taskrunner.HookFunc {
			h := j.full(name)
			h.Stage = s
			return hookOf(h)
		}
		w.hooks = []taskrunner.HookFunc{
			staged("stats", taskrunner.StageStats), j.hook("host1"), staged("template", taskrunner.StageTemplate),
			staged("logs", taskrunner.StageLogs), staged("validate", taskrunner.StageValidate), j.hook("host2"),
			staged("services", taskrunner.StageServices), staged("dirs", taskrunner.StageDirs), staged("early", taskrunner.StageDirs-1),
		}
		a := w.start()
		a.killNow()
		a.end()
		var order, cleanup []string
		for _, c := range j.list() {
			if name, ok := strings.CutSuffix(c, " prestart"); ok {
				order = append(order, name)
			}
			if name, ok := strings.CutSuffix(c, " stop"); ok {
				cleanup = append([]string{name}, cleanup...)
			}
		}
		require.Equal(t, []string{"validate", "early", "dirs", "logs", "template", "host1", "host2", "services", "stats"}, order)
		require.Equal(t, order, cleanup)
	})
	require.Zero(t, int(taskrunner.StageHost), "the zero value")
	require.Less(t, taskrunner.StageValidate, taskrunner.StageDirs)
	require.Less(t, taskrunner.StageTemplate, taskrunner.StageHost)
}

// Events of hooks are seen soon, in order, and not one commit each.
func TestEmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.MaxEvents = 5 }
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "h",
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				for i := range 300 {
					r.Emit(taskrunner.DownloadingArtifact, map[string]string{"message": strconv.Itoa(i)})
					time.Sleep(10 * time.Millisecond)
				}
				return c, nil
			}})}
		a := w.start()
		require.Len(t, a.Snapshot().Events, 3, "the first at once")
		time.Sleep(1500 * time.Millisecond)
		require.Greater(t, a.Snapshot().Seq, uint64(90))
		require.Len(t, a.Snapshot().Events, 5)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		require.Len(t, w.kinds.all(), 303, "none is missing in the durable log")
		require.Zero(t, w.kinds.gaps)
		require.LessOrEqual(t, commits(w.store), int64(8))
		a.killNow()
		a.end()
	})
}

// Background work lives as long as its attempt and is waited for.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.fake.Script = script(exits(time.Minute, 1), forever())
		var late *taskrunner.Request
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "h",
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				late = r
				r.Go("watch", func(ctx context.Context) {
					j.add("begin " + r.TaskID)
					<-ctx.Done()
					time.Sleep(500 * time.Millisecond)
					j.add("end " + r.TaskID)
				})
				r.Go("short", func(context.Context) {})
				r.Go("bad", func(context.Context) { panic("background") })
				return c, nil
			},
			Exited: func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
				r.Go("too late", func(context.Context) { j.add("never") })
				j.add("exited " + r.TaskID)
				return nil
			}})}
		a := w.start()
		time.Sleep(2 * time.Minute)
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"begin a1/web/0", "end a1/web/0", "exited a1/web/0", "begin a1/web/1"}, j.list())
		require.Equal(t, map[string]string{"hook": "bad", "callback": "background", "error": "panic: background"},
			w.kinds.last(taskrunner.HookFailed).Attrs)
		began := time.Now()
		a.detach()
		require.Equal(t, 500*time.Millisecond, time.Since(began), "detach waits for it too")
		late.Emit("after the end", nil)
		late.Go("after the end", func(context.Context) { j.add("never") })
		w.fake.Forget()
		b := w.start()
		b.phase(taskrunner.Running)
		require.Equal(t, "begin a1/web/1", j.list()[len(j.list())-1], "rebuilt after a restart of the agent")
		b.killNow()
		b.end()
		require.Zero(t, j.count("never"))
	})
}

// Background work that is deaf keeps nothing back.
func TestDeafBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan struct{})
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "h",
			Poststart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
				r.Go("deaf", func(context.Context) { <-release })
				return nil
			}})}
		a := w.start()
		began := time.Now()
		a.killNow()
		a.end()
		require.Equal(t, time.Second, time.Since(began))
		close(release)
	})
}

// Hooks ask for a restart, a signal or a kill without waiting for it.
func TestHookControls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var step atomic.Int64
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "h",
			Poststart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
				switch step.Add(1) {
				case 1:
					r.Restart(taskrunner.RestartRequest{Reason: "template"})
				case 2:
					r.Signal("SIGHUP", "template")
					r.Go("later", func(ctx context.Context) {
						time.Sleep(time.Minute)
						r.Kill(taskrunner.KillRequest{Reason: "fail_on_error", Failed: true})
						r.Restart(taskrunner.RestartRequest{}) // in vain, and logged
					})
				}
				return nil
			}})}
		a := w.start()
		time.Sleep(time.Second)
		require.Equal(t, []string{"SIGHUP"}, w.fake.Signals())
		s := a.end()
		require.True(t, s.Failed)
		require.Equal(t, "fail_on_error", s.Reason)
		require.Equal(t, 2, w.fake.Lives())
	})
}

// A poststart hook that takes for ever hides neither the exit nor a kill.
func TestSlowPoststart(t *testing.T) {
	for _, kill := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.alloc = alloc(spec.JobBatch)
			w.fake.Script = script(exits(time.Minute, 0))
			j := &journal{}
			w.hooks = []taskrunner.HookFunc{hookOf(j.withCallback("slow", "poststart", func(ctx context.Context, _ *taskrunner.Request, _ *counter) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})), j.hook("other")}
			a := w.start()
			a.phase(taskrunner.Running)
			began := time.Now()
			if kill {
				a.killNow()
			}
			a.end()
			require.Equal(t, map[bool]time.Duration{true: 0, false: time.Minute}[kill], time.Since(began))
			require.Zero(t, j.count("other poststart"))
			require.Equal(t, 1, j.count("other exited"))
		})
	}
}

// Errors of poststart, update and prekill are events; the task goes on.
func TestHookErrorsAreEvents(t *testing.T) {
	for _, cb := range []string{"poststart", "update", "prekill"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			j := &journal{}
			w.hooks = []taskrunner.HookFunc{hookOf(j.withCallback("h", cb, func(context.Context, *taskrunner.Request, *counter) error {
				return errors.New("boom")
			}))}
			a := w.start()
			require.NoError(t, a.Update(t.Context(), w.version("2")))
			a.phase(taskrunner.Running)
			a.killNow()
			require.False(t, a.end().Failed)
			e := w.kinds.last(taskrunner.HookFailed)
			require.Equal(t, map[string]string{"hook": "h", "callback": cb, "error": "boom"}, e.Attrs)
			require.Equal(t, "Hook h failed in "+cb+": boom", e.Text())
		})
	}
}

// The prestart chain of a killed task ends at once, and nothing is started.
func TestPrestartIgnoresKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{hookOf(j.withCallback("deaf", "prestart", func(context.Context, *taskrunner.Request, *counter) error {
			time.Sleep(time.Minute)
			return nil
		})), j.hook("other")}
		a := w.start()
		began := time.Now()
		a.killNow()
		a.end()
		require.Equal(t, time.Second, time.Since(began))
		require.Zero(t, j.count("other prestart"))
		require.Equal(t, 1, j.count("deaf stop"))
		require.Zero(t, w.fake.Count(drivertest.Start))
		time.Sleep(time.Hour)
	})
}
