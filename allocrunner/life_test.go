// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
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

func TestPlainLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(60)}
		own := 0
		cfg := w.config()
		cfg.Trace.Commit = func(time.Duration, error) { own++ }
		a := w.startWith(cfg)
		require.Equal(t, "web=running", a.states())
		require.Equal(t, allocrunner.Running, a.Snapshot().Status)
		s := a.end(allocrunner.Complete)
		require.Equal(t, "all tasks have completed", s.Description)
		require.Equal(t, []allocrunner.Status{allocrunner.Pending, allocrunner.Running, allocrunner.Complete}, w.statuses)
		require.LessOrEqual(t, own, 3, "commits of the alloc itself")
		t.Logf("commits: %d of the alloc, %d in all", own, w.store.(state.Stats).Commits())
	})
}

// A host that has saved the alloc in a transaction of its own pays one less.
func TestSavedByTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(60)}
		require.NoError(t, w.store.Update(func(tx state.Tx) error { return allocrunner.Save(tx, w.alloc) }))
		own := 0
		cfg := w.config()
		cfg.Trace.Commit = func(time.Duration, error) { own++ }
		a := w.startWith(cfg)
		a.end(allocrunner.Complete)
		require.LessOrEqual(t, own, 2)
	})
	synctest.Test(t, func(t *testing.T) { // or after New
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(60)}
		own := 0
		cfg := w.config()
		cfg.Trace.Commit = func(time.Duration, error) { own++ }
		r, err := allocrunner.New(cfg)
		require.NoError(t, err)
		require.NoError(t, w.store.Update(func(tx state.Tx) error { return allocrunner.Save(tx, r.Snapshot().Alloc) }))
		r.Saved()
		require.NoError(t, r.Run(t.Context()))
		require.LessOrEqual(t, own, 2)
		w.fake.Check(t)
	})
}

// goroutines counts those that runners have.
func goroutines() int {
	buf := make([]byte, 4<<20)
	n := 0
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "nodekeep/allocrunner.(") || strings.Contains(g, "nodekeep/taskrunner.(") {
			n++
		}
	}
	return n
}

func TestGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		a := w.start()
		require.Equal(t, "web=running", a.states())
		require.Equal(t, 3, goroutines(), "alloc loop, task loop, operation")
		a.detach()
		synctest.Wait()
		require.Zero(t, goroutines())
		a = w.start()
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

// FF-031: tasks that end by themselves leave no goroutine.
func TestManyAllocsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*agent
		for range 200 {
			w := newWorld(t, spec.JobBatch, "web:main")
			w.lives["web"] = []drivertest.Life{second(1)}
			all = append(all, w.start())
		}
		require.Equal(t, 600, goroutines())
		for _, a := range all {
			a.end(allocrunner.Complete)
			require.NoError(t, a.Destroy(t.Context()))
		}
		synctest.Wait()
		require.Zero(t, goroutines())
	})
}

func TestLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "init:pre proxy:preside web:main warm:post tail:postside bye:stop")
		w.lives["init"] = []drivertest.Life{second(10)}
		w.lives["web"] = []drivertest.Life{second(60)}
		w.lives["warm"] = []drivertest.Life{second(5)}
		w.lives["bye"] = []drivertest.Life{second(7)}
		a := w.start()
		require.Equal(t, "init=running proxy=running web=pending warm=pending tail=pending bye=pending", a.states())
		time.Sleep(11 * time.Second)
		require.Equal(t, "init=dead proxy=running web=running warm=running tail=running bye=pending", a.states())
		time.Sleep(30 * time.Second)
		require.Equal(t, "init=dead proxy=running web=running warm=dead tail=running bye=pending", a.states())
		time.Sleep(30 * time.Second)
		require.Equal(t, "init=dead proxy=dead web=dead warm=dead tail=dead bye=running", a.states())
		require.Equal(t, allocrunner.Running, a.Snapshot().Status)
		require.Equal(t, allocrunner.CauseMains, a.Snapshot().Ending)
		s := a.end(allocrunner.Complete)
		require.Equal(t, time.Time{}, s.Tasks["init"].LastRestart)
		require.Equal(t, []string{"init starts", "proxy starts"}, startsOf(w)[:2])
		require.Equal(t, "bye starts", startsOf(w)[5])
	})
}

func startsOf(w *world) []string {
	starts := slices.DeleteFunc(w.noted(), func(s string) bool { return !strings.HasSuffix(s, " starts") })
	slices.Sort(starts[:min(2, len(starts))])
	return starts
}

// The event orders of a leader's end and of a sibling's failure.
func TestEventOrder(t *testing.T) {
	for name, c := range map[string]struct {
		tasks string
		lives map[string]drivertest.Life
		kill  bool
		want  []string
		end   allocrunner.Status
	}{
		"leader": {
			tasks: "lead:main+leader web:main log:preside",
			lives: map[string]drivertest.Life{"lead": second(30)},
			want: []string{
				"lead: Terminated",
				"web: Leader Task Dead", "web: Killing", "web: Terminated", "web: Killed",
				"log: Leader Task Dead", "log: Killing", "log: Terminated", "log: Killed",
			},
			end: allocrunner.Complete,
		},
		"sibling": {
			tasks: "bad:main web:main log:preside",
			lives: map[string]drivertest.Life{"bad": fails(30)},
			want: []string{
				"bad: Terminated", "bad: Not Restarting",
				"web: Sibling Task Failed", "web: Killing", "web: Terminated", "web: Killed",
				"log: Sibling Task Failed", "log: Killing", "log: Terminated", "log: Killed",
			},
			end: allocrunner.Failed,
		},
		"mains": {
			tasks: "web:main log:preside",
			lives: map[string]drivertest.Life{"web": second(30)},
			want:  []string{"web: Terminated", "log: Main Tasks Dead", "log: Killing", "log: Terminated", "log: Killed"},
			end:   allocrunner.Complete,
		},
		"stop": {
			tasks: "lead:main+leader web:main log:preside bye:stop",
			lives: map[string]drivertest.Life{"bye": second(3)},
			kill:  true,
			want: []string{
				"lead: Killing", "lead: Terminated", "lead: Killed",
				"web: Killing", "web: Terminated", "web: Killed",
				"log: Killing", "log: Terminated", "log: Killed",
				"bye: Task Setup", "bye starts", "bye: Started", "bye: Terminated",
			},
			end: allocrunner.Complete,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobBatch, c.tasks)
				for i := range w.alloc.Tasks {
					w.alloc.Tasks[i].Restart.Attempts = 0
				}
				for task, l := range c.lives {
					w.lives[task] = []drivertest.Life{l}
				}
				a := w.start()
				time.Sleep(10 * time.Second)
				begun := len(w.noted())
				if c.kill {
					require.NoError(t, a.Update(t.Context(), a.newer(stop)))
				}
				a.end(c.end)
				require.Equal(t, c.want, w.noted()[begun:])
			})
		})
	}
}

func TestStopBeforeAnythingRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main bye:stop")
		w.alloc.DesiredStatus = spec.DesiredStop
		a := w.start()
		s := a.end(allocrunner.Complete)
		require.Empty(t, w.fake.Configs())
		require.Equal(t, "the control plane wants it stopped", s.Description)
		require.ErrorIs(t, a.Kill(t.Context(), allocrunner.KillRequest{}), allocrunner.ErrTerminal)
	})
}

func TestShutdownDelay(t *testing.T) {
	for name, skip := range map[string]bool{"kept": false, "skipped": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "web:main")
				w.alloc.Settings.ShutdownDelay = 20 * time.Second
				w.alloc.Tasks[0].ShutdownDelay = 10 * time.Second
				w.hooks = []allocrunner.HookFunc{w.hookOf("services", nil)}
				a := w.start()
				begin := time.Now()
				require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Reason: "test"}))
				synctest.Wait()
				require.Equal(t, 1, w.count("services.prekill"), "services leave before the delay")
				require.Equal(t, "web=running", a.states())
				want := 30 * time.Second
				if skip {
					time.Sleep(5 * time.Second)
					require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{NoShutdownDelay: true}))
					want = 5 * time.Second
				}
				s := a.end(allocrunner.Complete)
				require.Equal(t, want, time.Since(begin))
				require.Equal(t, "test", s.Description)
				require.Equal(t, 1, w.count("services.prekill"))
			})
		})
	}
}

// The delay goes on where it was when the agent comes back.
func TestShutdownDelaySurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.alloc.Settings.ShutdownDelay = 20 * time.Second
		a := w.start()
		begin := time.Now()
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		time.Sleep(15 * time.Second)
		require.Equal(t, "web=running", a.states())
		a.detach()
		a = w.start()
		a.end(allocrunner.Complete)
		require.Equal(t, 20*time.Second, time.Since(begin))
	})
}

func TestForcedStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main bye:stop")
		a := w.start()
		require.Error(t, a.Kill(t.Context(), allocrunner.KillRequest{Force: allocrunner.Running}))
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Force: allocrunner.Complete, Reason: "maximum run time", Poststop: true}))
		s := a.end(allocrunner.Complete)
		require.Equal(t, "maximum run time", s.Description)
		require.Zero(t, w.starts["bye"])
	})
}

// Poststop tasks outlive a stop and end with a kill that names them.
func TestPoststop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main bye:stop")
		a := w.start()
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		time.Sleep(time.Hour)
		require.Equal(t, "web=dead bye=running", a.states())
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Poststop: true}))
		a.end(allocrunner.Complete)
	})
}

func TestPrerunFails(t *testing.T) {
	for name, err := range map[string]error{"final": errors.New("no network"), "recoverable": driver.Recoverable(errors.New("no network")), "panic": errPanic} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "init:pre web:main bye:stop")
				w.hooks = []allocrunner.HookFunc{
					w.hookOf("a", nil), w.hookOf("b", map[string]error{"prerun": err}), w.hookOf("c", nil),
				}
				a := w.start()
				s := a.end(allocrunner.Failed)
				require.Contains(t, s.Description, `hook "b": prerun`)
				require.Empty(t, w.fake.Configs())
				for name, task := range s.Tasks {
					require.True(t, task.Failed, name)
				}
				got := w.noted()
				slices.Sort(got[5:9]) // c.prekill and so on came before
				require.Equal(t, []string{
					"a.prerun", "b.prerun",
					"init: Received", "init: Setup Failure", "web: Received", "web: Setup Failure",
					"bye: Received", "bye: Setup Failure",
					"c.postrun", "b.postrun", "a.postrun",
				}, withoutPrekill(got))
			})
		})
	}
}

func withoutPrekill(log []string) []string {
	return slices.DeleteFunc(log, func(s string) bool { return strings.HasSuffix(s, ".prekill") })
}

// FF-025: a stop ends a prerun hook that waits, whatever updates come beside it.
func TestStopWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[struct{}]{Name: "previous", Prerun: func(ctx context.Context, _ *allocrunner.Request, _ *struct{}) error {
				<-ctx.Done()
				w.note("unblocked")
				return context.Cause(ctx)
			}}, nil
		}}
		a := w.start()
		update := a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "2"} })
		halt := a.newer(stop)
		halt.ModifyIndex++
		errs := make(chan error, 8)
		for _, next := range []*spec.Alloc{update, update, update, halt, halt} {
			go func() { errs <- a.Update(t.Context(), next) }()
		}
		a.end(allocrunner.Complete)
		stale := 0
		for range 5 {
			if err := <-errs; err != nil {
				require.True(t, errors.Is(err, allocrunner.ErrStale) || errors.Is(err, allocrunner.ErrTerminal), "%v", err)
				stale++
			}
		}
		require.GreaterOrEqual(t, stale, 3)
		require.Equal(t, 1, w.count("unblocked"))
		require.Empty(t, w.fake.Configs())
	})
}

// FF-024: a stop is carried out before the update hooks that are under way.
func TestStopOvertakesUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[struct{}]{Name: "slow", Update: func(ctx context.Context, r *allocrunner.Request, _ *struct{}) error {
				w.note("update %s after %s", r.Alloc.Meta["v"], r.Previous.Meta["v"])
				<-ctx.Done()
				return context.Cause(ctx)
			}}, nil
		}}
		a := w.start()
		meta := func(v string) func(*spec.Alloc) {
			return func(n *spec.Alloc) { n.Meta = map[string]string{"v": v} }
		}
		first := a.newer(meta("1"))
		require.NoError(t, a.Update(t.Context(), first))
		synctest.Wait()
		require.NoError(t, a.Update(t.Context(), a.newer(meta("2"))))
		require.NoError(t, a.Update(t.Context(), a.newer(meta("3"))))
		time.Sleep(40 * time.Second) // the first is over after 30
		require.Equal(t, []string{"update 1 after ", "update 3 after 1"}, updates(w), "the latest wins")
		begin := time.Now()
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		require.Error(t, a.Update(t.Context(), first), "stale, or over")
		a.end(allocrunner.Complete)
		require.Less(t, time.Since(begin), 2*time.Second)
		require.Len(t, updates(w), 2)
	})
}

func updates(w *world) []string {
	return slices.DeleteFunc(w.noted(), func(s string) bool { return !strings.HasPrefix(s, "update ") })
}

func TestUpdateReachesTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		seen := ""
		cfg := w.config()
		cfg.Tasks.Hooks = []taskrunner.HookFunc{func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
			return &taskrunner.Hook[struct{}]{Name: "h", Update: func(_ context.Context, r *taskrunner.Request, _ *struct{}) error {
				seen = r.Alloc.Meta["v"]
				return nil
			}}, nil
		}}
		a := w.startWith(cfg)
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "7"} })))
		synctest.Wait()
		require.Equal(t, "7", seen)
		require.Equal(t, uint64(11), a.Snapshot().ModifyIndex)

		var replace *allocrunner.ReplaceError
		err := a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Tasks[0].Driver, n.Tasks[0].User = "other", "nobody" }))
		require.ErrorAs(t, err, &replace)
		require.ErrorIs(t, err, allocrunner.ErrNeedsReplacement)
		require.Equal(t, []string{"tasks[web].driver", "tasks[web].user"}, replace.Fields)
		require.Equal(t, uint64(11), a.Snapshot().ModifyIndex, "nothing was changed")

		// A stop is a stop, whatever else came with it.
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) {
			stop(n)
			n.Tasks[0].Driver, n.DesiredReason = "other", "moved away"
		})))
		s := a.end(allocrunner.Complete)
		require.Equal(t, "moved away", s.Description)
		require.Equal(t, "fake", s.Alloc.Tasks[0].Driver)
		require.Equal(t, spec.DesiredStop, s.Desired)
	})
}
