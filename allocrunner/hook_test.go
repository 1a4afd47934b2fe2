// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// one makes a HookFunc of a hook that every alloc gets.
func one[S any](h allocrunner.Hook[S]) allocrunner.HookFunc {
	return func(*spec.Alloc) (allocrunner.AnyHook, error) { return &h, nil }
}

// FF-010: hooks of the end run once and at once when the last task ends by itself,
// whatever update comes then.
func TestHooksOfANaturalEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main bye:stop")
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
		w.lives["web"], w.lives["bye"] = []drivertest.Life{second(30)}, []drivertest.Life{second(30)}
		a := w.start()
		time.Sleep(30 * time.Second)
		require.Equal(t, "web=dead bye=running", a.states())
		require.Equal(t, 1, w.count("h.prekill"), "services leave before poststop")
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		begin := time.Now()
		a.end(allocrunner.Complete)
		require.Equal(t, 30*time.Second, time.Since(begin))
		require.Equal(t, 1, w.count("h.prekill"))
		require.Equal(t, 1, w.count("h.postrun"))
	})
}

// FF-011: one cleanup hook that fails, or panics, keeps no other from its work.
func TestCleanupRunsToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(1)}
		boom := errors.New("boom")
		fail := map[string]error{"postrun": boom, "prekill": boom, "destroy": boom}
		panics := map[string]error{"postrun": errPanic, "prekill": errPanic, "destroy": errPanic}
		w.hooks = []allocrunner.HookFunc{
			w.hookOf("network", nil), w.hookOf("fails", fail), w.hookOf("panics", panics), w.hookOf("last", nil),
		}
		a := w.start()
		s := a.end(allocrunner.Complete)
		require.Equal(t, []string{"last.postrun", "panics.postrun", "fails.postrun", "network.postrun"}, w.noted()[len(w.noted())-4:])
		require.Equal(t, "hook \"panics\": postrun: panic: hook panics\nhook \"fails\": postrun: boom", s.Leftover)

		err := a.Destroy(t.Context())
		require.ErrorIs(t, err, boom)
		require.ErrorContains(t, err, `hook "panics": destroy: panic: hook panics`)
		require.Equal(t, 2, w.count("network.postrun"), "postrun is tried again")
		require.Equal(t, 1, w.count("network.destroy"))

		clear(fail)
		clear(panics)
		require.NoError(t, a.Destroy(t.Context()))
		n := len(w.noted())
		require.NoError(t, a.Destroy(t.Context()), "again is no error")
		require.Len(t, w.noted(), n)
	})
}

// What postrun could not give back is tried again by the next agent.
func TestPostrunIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(1)}
		fail := map[string]error{"postrun": errors.New("boom")}
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", fail)}
		a := w.start()
		require.NotEmpty(t, a.end(allocrunner.Complete).Leftover)
		clear(fail)
		a = w.start()
		require.Empty(t, a.end(allocrunner.Complete).Leftover)
		require.Equal(t, 2, w.count("h.postrun"))
		require.Equal(t, 1, w.count("h.prerun"), "a terminal alloc is not set up again")
		a = w.start()
		a.end(allocrunner.Complete)
		require.Equal(t, 2, w.count("h.postrun"))
	})
}

func TestHookOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(1)}
		staged := func(name string, s allocrunner.Stage) allocrunner.HookFunc {
			return one(allocrunner.Hook[struct{}]{Name: name, Stage: s,
				Prerun:  func(context.Context, *allocrunner.Request, *struct{}) error { w.note("%s up", name); return nil },
				Postrun: func(context.Context, *allocrunner.Request, *struct{}) error { w.note("%s down", name); return nil }})
		}
		w.hooks = []allocrunner.HookFunc{
			staged("health", allocrunner.StageHealth), staged("one", 0), nil, staged("two", 0),
			staged("services", allocrunner.StageServices), staged("network", allocrunner.StageNetwork),
			staged("volumes", allocrunner.StageVolumes), staged("migrate", allocrunner.StageMigrate),
			staged("dirs", allocrunner.StageDirs), staged("previous", allocrunner.StagePrevious),
			func(*spec.Alloc) (allocrunner.AnyHook, error) { return nil, nil },
		}
		a := w.start()
		a.end(allocrunner.Complete)
		require.Equal(t, []string{
			"previous up", "dirs up", "migrate up", "volumes up", "network up", "one up", "two up", "services up", "health up",
			"web: Received", "web: Task Setup", "web starts", "web: Started", "web: Terminated",
			"health down", "services down", "two down", "one down", "network down", "volumes down", "migrate down", "dirs down", "previous down",
		}, w.noted())
	})
}

func TestBadHooks(t *testing.T) {
	w := newWorld(t, spec.JobBatch, "web:main")
	boom := errors.New("boom")
	w.hooks = []allocrunner.HookFunc{
		one(allocrunner.Hook[struct{}]{Name: "a"}), one(allocrunner.Hook[struct{}]{Name: "a"}),
		one(allocrunner.Hook[struct{}]{Name: "b/c"}), one(allocrunner.Hook[func()]{Name: "d"}),
		func(*spec.Alloc) (allocrunner.AnyHook, error) { return nil, boom },
	}
	_, err := allocrunner.New(w.config())
	require.ErrorIs(t, err, boom)
	for _, part := range []string{`Hooks[1]: a second hook named "a"`, "Hooks[2]: name: ", "Hooks[3]: ", "Hooks[4]: boom"} {
		require.ErrorContains(t, err, part)
	}
}

// State: a fresh copy for each callback, saved also after a failure, checkpoints in
// the middle, nothing written that did not change.
func TestHookState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type st struct {
			N    int
			List []int
		}
		w := newWorld(t, spec.JobService, "web:main")
		commits := w.store.(state.Stats).Commits
		saved := func() (v st) {
			require.NoError(t, w.store.View(func(tx state.Tx) (err error) {
				v, _, err = state.Slot[st]{Key: "hook.h", Version: 2}.Load(tx, state.Path{"v1", "alloc", "a"})
				return err
			}))
			return v
		}
		var leak *st
		w.hooks = []allocrunner.HookFunc{one(allocrunner.Hook[st]{Name: "h", Version: 2,
			Prerun: func(_ context.Context, r *allocrunner.Request, s *st) error {
				leak, s.N, s.List = s, s.N+1, append(s.List, 1)
				require.NoError(t, r.Checkpoint())
				require.Equal(t, s.N, saved().N, "in the middle")
				before := commits()
				require.NoError(t, r.Checkpoint())
				require.Equal(t, before, commits(), "nothing new")
				s.N += 10
				return nil
			},
			Update: func(_ context.Context, r *allocrunner.Request, s *st) error {
				require.Equal(t, 11, s.N, "not what leaked")
				s.N = 50
				return errors.New("failed")
			},
			Prekill: func(_ context.Context, _ *allocrunner.Request, s *st) error { w.note("prekill %d", s.N); return nil },
		})}
		a := w.start()
		leak.N = 1000
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "1"} })))
		synctest.Wait()
		require.Equal(t, 50, saved().N)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
		require.Equal(t, 1, w.count("prekill 50"))
	})
}

// D25: a callback that ignores the end of its context is abandoned, its state
// dropped, its stack logged; of that hook only the cleanup is called from then on.
func TestAbandonedHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		w := newWorld(t, spec.JobService, "web:main")
		release := make(chan struct{})
		late := make(chan error, 1)
		w.hooks = []allocrunner.HookFunc{w.hookOf("good", nil), one(allocrunner.Hook[int]{Name: "deaf", Timeout: 3 * time.Second,
			Update: func(_ context.Context, r *allocrunner.Request, n *int) error {
				*n = 7
				thisIsTheStackOfADeafHook(release)
				late <- r.Checkpoint()
				return nil
			},
			Prekill: func(context.Context, *allocrunner.Request, *int) error { w.note("deaf.prekill"); return nil },
			Postrun: func(_ context.Context, _ *allocrunner.Request, n *int) error {
				w.note("deaf.postrun %d", *n)
				return nil
			},
		})}
		cfg := w.config()
		cfg.Log = hclog.New(&hclog.LoggerOptions{Output: &logged})
		a := w.startWith(cfg)
		begin := time.Now()
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "1"} })))
		time.Sleep(5 * time.Second)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.Zero(t, w.count("deaf.prekill"))
		require.Equal(t, 1, w.count("deaf.postrun 0"))
		require.Contains(t, logged.String(), "thisIsTheStackOfADeafHook")
		close(release)
		require.Error(t, <-late, "too late to save anything")
	})
}

//go:noinline
func thisIsTheStackOfADeafHook(c chan struct{}) { <-c }

// All prekill hooks together have no more time than the slowest of them may take.
func TestPrekillIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		for _, name := range []string{"a", "b", "c"} {
			w.hooks = append(w.hooks, one(allocrunner.Hook[struct{}]{Name: name,
				Prekill: func(ctx context.Context, _ *allocrunner.Request, _ *struct{}) error {
					w.note("%s.prekill", name)
					<-ctx.Done()
					return nil
				}}))
		}
		a := w.start()
		begin := time.Now()
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
		require.LessOrEqual(t, time.Since(begin), 10*time.Second)
		require.Equal(t, 1, w.count("a.prekill"))
	})
}

// Hooks reach their alloc through the request, from callbacks and background work.
func TestHookControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.hooks = []allocrunner.HookFunc{one(allocrunner.Hook[struct{}]{Name: "watch",
			Prerun: func(_ context.Context, r *allocrunner.Request, _ *struct{}) error {
				r.Go("health", func(ctx context.Context) {
					for s := range r.Watch(ctx) {
						if s.Tasks["web"].StartedAt.IsZero() {
							continue
						}
						w.note("seen %s", r.Snapshot().Status)
						break
					}
					w.note("signal %v", r.Signal(ctx, "web", "SIGHUP", "test"))
					w.note("restart %v", r.Restart(ctx, allocrunner.RestartRequest{Task: "web"}))
					time.Sleep(time.Minute)
					w.note("kill %v", r.Kill(ctx, allocrunner.KillRequest{Force: allocrunner.Failed, Reason: "unhealthy"}))
					<-ctx.Done()
					w.note("background ends")
					panic("and how")
				})
				return nil
			},
			Postrun: func(ctx context.Context, r *allocrunner.Request, _ *struct{}) error {
				w.note("postrun")
				r.Go("late", func(context.Context) { w.note("never") })
				return nil
			}})}
		a := w.start()
		s := a.end(allocrunner.Failed)
		require.Equal(t, "unhealthy", s.Description)
		require.Equal(t, 2, attempts(w)["web"])
		for _, what := range []string{"signal <nil>", "restart <nil>", "kill <nil>", "background ends", "postrun"} {
			require.Equal(t, 1, w.count(what), what)
		}
		require.Zero(t, w.count("never"))
		log := w.noted()
		require.Equal(t, []string{"background ends", "postrun"}, log[len(log)-2:])
	})
}

// The end of the agent ends background work, too.
func TestBackgroundEndsWithDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.hooks = []allocrunner.HookFunc{one(allocrunner.Hook[struct{}]{Name: "h",
			Prerun: func(_ context.Context, r *allocrunner.Request, _ *struct{}) error {
				r.Go("b", func(ctx context.Context) { <-ctx.Done(); w.note("background ends") })
				return nil
			},
			Shutdown: func(ctx context.Context, r *allocrunner.Request, _ *struct{}) error {
				w.note("shutdown %v", r.Kill(ctx, allocrunner.KillRequest{}))
				return nil
			}})}
		a := w.start()
		a.detach()
		log := w.noted()
		require.Equal(t, []string{"background ends", "shutdown taskrunner: not running any more"}, log[len(log)-2:])
		require.Len(t, w.fake.Alive(), 1)
	})
}

// Destroy removes the directory too, and keeps the state until it could.
func TestDestroy(t *testing.T) {
	root := t.TempDir()
	dir, err := allocdir.New(allocdir.Config{Root: root, AllocID: "a"})
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(1)}
		fail := map[string]error{"destroy": errors.New("busy")}
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", fail), one(allocrunner.Hook[struct{}]{Name: "dirs", Stage: allocrunner.StageDirs,
			Prerun: func(ctx context.Context, r *allocrunner.Request, _ *struct{}) error { return r.Dir.Build(ctx) }})}
		cfg := w.config()
		cfg.Dir = dir
		a := w.startWith(cfg)
		require.DirExists(t, dir.Shared())
		require.ErrorIs(t, a.Destroy(t.Context()), allocrunner.ErrNotOver)
		a.end(allocrunner.Complete)
		require.DirExists(t, dir.Shared(), "kept for inspection")
		require.ErrorContains(t, a.Destroy(t.Context()), "busy")
		require.NoDirExists(t, dir.Path())
		kept := func() (n int) {
			require.NoError(t, w.store.View(func(tx state.Tx) error { n = len(tx.Nodes(state.Path{"v1", "alloc"})); return nil }))
			return n
		}
		require.Equal(t, 1, kept())

		// The next agent goes on with it.
		clear(fail)
		a = w.startWith(cfg)
		a.end(allocrunner.Complete)
		require.NoError(t, a.Destroy(t.Context()))
		require.Zero(t, kept())
		require.NoError(t, a.Destroy(t.Context()))
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(10)}
		cfg := w.config()
		var observed []uint64
		cfg.Observe = func(s allocrunner.Snapshot) { observed = append(observed, s.Rev) }
		cfg.Trace.Transition = func(old, new allocrunner.Snapshot) {
			require.Equal(t, old.Rev+1, new.Rev)
			panic("a host's bug")
		}
		a := w.startWith(cfg)
		var seen []allocrunner.Status
		rev := uint64(0)
		for s := range a.Watch(t.Context()) {
			require.Greater(t, s.Rev, rev)
			rev = s.Rev
			if len(seen) == 0 || seen[len(seen)-1] != s.Status {
				seen = append(seen, s.Status)
			}
		}
		require.Equal(t, []allocrunner.Status{allocrunner.Running, allocrunner.Complete}, seen)
		a.end(allocrunner.Complete)
		require.Equal(t, a.Snapshot().Rev, observed[len(observed)-1])
		require.IsIncreasing(t, observed)
		require.Equal(t, uint64(1), observed[0], "what Run begins with")
		require.Error(t, a.Run(t.Context()), "once")
	})
}

func TestConfigFaults(t *testing.T) {
	_, err := allocrunner.New(allocrunner.Config{})
	for _, part := range []string{"Config.Alloc: is required", "Config.Store: is required", "Config.Tasks.Drivers: is required"} {
		require.ErrorContains(t, err, part)
	}
	_, err = allocrunner.New(allocrunner.Config{Alloc: &spec.Alloc{ID: "a/b", Tasks: []spec.Task{{Name: "x"}, {Name: "X"}}}})
	require.ErrorContains(t, err, "Config.Alloc.ID")
	require.ErrorContains(t, err, `two tasks are named "X"`)
	_, err = allocrunner.New(allocrunner.Config{Alloc: &spec.Alloc{ID: "a"}})
	require.ErrorContains(t, err, "Config.Alloc.Tasks")
}
