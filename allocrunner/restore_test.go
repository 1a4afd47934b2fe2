// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func TestDetachAndRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "init:pre proxy:preside web:main warm:post")
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
		w.lives["init"], w.lives["warm"] = []drivertest.Life{second(5)}, []drivertest.Life{second(5)}
		a := w.start()
		time.Sleep(time.Minute)
		before := a.states()
		a.detach()
		require.Equal(t, 1, w.count("h.shutdown"))
		require.Zero(t, w.count("h.prekill"), "FF-010: letting go is no end")
		require.Zero(t, w.count("h.postrun"))
		require.ErrorIs(t, a.Kill(t.Context(), allocrunner.KillRequest{}), taskrunner.ErrClosed)
		require.ErrorIs(t, a.Destroy(t.Context()), allocrunner.ErrNotOver)

		a = w.start()
		require.Equal(t, before, a.states())
		require.Equal(t, allocrunner.Running, a.Snapshot().Status)
		require.Equal(t, 2, w.count("h.prerun"))
		require.Equal(t, map[string]int{"init": 1, "proxy": 1, "web": 1, "warm": 1}, attempts(w))
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
		require.Equal(t, 1, w.count("h.prekill"))
		require.Equal(t, 1, w.count("h.postrun"))
		require.Equal(t, []allocrunner.Status{allocrunner.Pending, allocrunner.Running, allocrunner.Complete}, w.statuses)
	})
}

// A stop that was accepted and not carried out is carried out.
func TestStopSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "lead:main+leader web:main bye:stop")
		w.lives["lead"] = []drivertest.Life{{Run: drivertest.Forever, Term: 3 * time.Second}}
		w.lives["bye"] = []drivertest.Life{second(10)}
		a := w.start()
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		time.Sleep(time.Second)
		a.detach()
		a = w.start()
		a.end(allocrunner.Complete)
		require.Equal(t, map[string]int{"lead": 1, "web": 1, "bye": 1}, attempts(w))
	})
}

// FF-008, D2: only an unrecoverable prerun error ends a restored alloc, and then
// with all cleanup.
func TestPrerunFailsOnRestore(t *testing.T) {
	broken := errors.New("no such volume")
	for name, c := range map[string]struct {
		err  error
		want allocrunner.Status
	}{
		"final":       {broken, allocrunner.Failed},
		"recoverable": {driver.Recoverable(broken), allocrunner.Running},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "proxy:preside web:main")
				w.hooks = []allocrunner.HookFunc{w.hookOf("a", nil)}
				a := w.start()
				require.Equal(t, "proxy=running web=running", a.states())
				a.detach()

				fail := map[string]error{"prerun": c.err}
				w.hooks = []allocrunner.HookFunc{w.hookOf("a", nil), w.hookOf("b", fail)}
				a = w.start()
				if c.want == allocrunner.Failed {
					s := a.end(allocrunner.Failed)
					require.Contains(t, s.Description, "no such volume")
					require.Equal(t, 1, w.count("a.postrun"))
					require.Equal(t, 1, w.count("b.postrun"))
					require.Equal(t, 1, w.count("a.prekill"))
					require.NoError(t, a.Destroy(t.Context()))
					return
				}
				a.exit("web", 1)
				time.Sleep(90 * time.Second)
				require.Equal(t, "proxy=running web=pending", a.states(), "what runs goes on, what does not waits")
				require.Equal(t, 7, w.count("b.prerun"), "after 0, 1, 3, 7, 15, 31 and 63 s")
				a.detach()
				w.hooks = w.hooks[:1]
				a = w.start()
				time.Sleep(time.Minute)
				require.Equal(t, "proxy=running web=running", a.states())
				require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
				a.end(allocrunner.Complete)
			})
		})
	}
}

// A gate that was passed stays passed: mains do not wait for a one-shot again.
func TestRestoredGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "init:pre web:main warm:post tail:postside bye:stop")
		w.lives["init"], w.lives["warm"] = []drivertest.Life{second(5)}, []drivertest.Life{second(5)}
		w.lives["web"] = []drivertest.Life{second(60), second(60)}
		w.lives["bye"] = []drivertest.Life{second(5)}
		a := w.start()
		time.Sleep(30 * time.Second)
		a.detach()
		time.Sleep(time.Hour) // web ends while nobody looks
		a = w.start()
		s := a.end(allocrunner.Complete)
		require.Equal(t, 0, s.Tasks["web"].Exit.Code)
		require.Equal(t, map[string]int{"init": 1, "web": 1, "warm": 1, "tail": 1, "bye": 1}, attempts(w))
	})
}

// After a reboot everything is gone; the order is that of a first start, and what
// had finished stays finished.
func TestReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "init:pre proxy:preside web:main")
		w.lives["init"] = []drivertest.Life{second(5)}
		contact := make(chan struct{})
		cfg := w.config()
		cfg.Tasks.FirstContact = contact
		a := w.startWith(cfg)
		time.Sleep(30 * time.Second)
		a.detach()
		w.fake.Reboot()
		a = w.startWith(cfg)
		time.Sleep(time.Minute)
		require.Equal(t, "init=dead proxy=pending web=pending", a.states(), "the control plane has not spoken")
		require.Equal(t, allocrunner.Running, a.Snapshot().Status, "running is a floor")
		close(contact)
		time.Sleep(time.Second)
		require.Equal(t, "init=dead proxy=running web=running", a.states())
		require.Equal(t, map[string]int{"init": 1, "proxy": 2, "web": 2}, attempts(w))
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

// D18: whatever commit fails, whoever is told, the alloc finds its end and what it
// shows is on disk.
func TestDiskFails(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
		for at := 1; at <= 40; at++ {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobBatch, "init:pre web:main log:preside")
				w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
				w.lives["init"], w.lives["web"] = []drivertest.Life{second(5)}, []drivertest.Life{second(60)}
				inner := w.store
				w.store = statetest.Faulty(inner, statetest.Faults{Err: cause, At: at, For: 9})
				a := w.start()
				time.Sleep(30 * time.Second)
				err := a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "1"} }))
				if err != nil {
					require.ErrorIs(t, err, state.ErrCommit)
				}
				s := a.end(allocrunner.Complete)
				require.True(t, s.Durable)
				require.Equal(t, map[string]int{"init": 1, "web": 1, "log": 1}, attempts(w), "at %d", at)
				require.Equal(t, 1, w.count("h.postrun"))
				for range 10 {
					if err = a.Destroy(t.Context()); err == nil {
						break
					}
				}
				require.NoError(t, err)
				require.NoError(t, inner.View(func(tx state.Tx) error {
					require.Empty(t, tx.Nodes(state.Path{"v1", "alloc"}))
					return nil
				}))
			})
		}
	}
}

// While the disk fails a stop is carried out from memory and nothing is shown
// that is not on disk.
func TestStopWithoutDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main log:preside")
		a := w.start()
		a.detach()
		w.store = statetest.Faulty(w.store, statetest.Faults{Err: syscall.EIO, At: 1, For: -1})
		a = w.start()
		require.Equal(t, "web=running log=running", a.states())
		require.ErrorIs(t, a.Restart(t.Context(), allocrunner.RestartRequest{}), state.ErrCommit, "not accepted")
		err := a.Update(t.Context(), a.newer(stop))
		require.ErrorIs(t, err, taskrunner.ErrNotDurable)
		time.Sleep(time.Minute)
		require.Empty(t, w.fake.Alive())
		s := a.Snapshot()
		require.False(t, s.Durable)
		require.Equal(t, allocrunner.Running, s.Status)
		require.Equal(t, spec.DesiredRun, s.Desired)
		require.False(t, s.Done)
		a.detach()
	})
}

// A newer version that comes with the restart of the agent is taken; an older one
// is not.
func TestRestoreVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		a := w.start()
		next := a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "2"} })
		require.NoError(t, a.Update(t.Context(), next))
		a.detach()
		a = w.start() // with the alloc of old
		require.Equal(t, "2", a.Snapshot().Alloc.Meta["v"])
		newest := a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "3"} })
		other := a.newer(func(n *spec.Alloc) { n.Tasks[0].Driver = "other" })
		a.detach()
		w.alloc = other
		_, err := allocrunner.New(w.config())
		require.ErrorIs(t, err, allocrunner.ErrNeedsReplacement)
		w.alloc = newest
		a = w.start()
		require.Equal(t, "3", a.Snapshot().Alloc.Meta["v"])
		require.NoError(t, w.store.View(func(tx state.Tx) error {
			got, err := allocrunner.Load(tx, "a")
			require.NoError(t, err)
			require.Equal(t, newest.ModifyIndex, got.ModifyIndex)
			none, err := allocrunner.Load(tx, "b")
			require.NoError(t, err)
			require.Nil(t, none)
			return nil
		}))
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

func TestCorruptState(t *testing.T) {
	w := newWorld(t, spec.JobService, "web:main")
	p := state.Path{"v1", "alloc", "a"}
	for _, key := range []string{"alloc", "status", "hook.h"} {
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
		w.store = state.Memory()
		require.NoError(t, w.store.Update(func(tx state.Tx) error { return tx.Put(p, key, []byte("rubbish")) }))
		_, err := allocrunner.New(w.config())
		require.ErrorIs(t, err, state.ErrCorrupt, key)
	}
}

// A driver that does not let go delays the end of Run by a bounded time.
func TestDetachIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		release := make(chan struct{})
		w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[struct{}]{Name: "deaf", Postrun: func(context.Context, *allocrunner.Request, *struct{}) error {
				<-release
				return nil
			}}, nil
		}}
		a := w.start()
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		time.Sleep(time.Second)
		begin := time.Now()
		a.cancel()
		<-a.Done()
		<-a.ran
		require.LessOrEqual(t, time.Since(begin), 5*time.Second)
		close(release)
	})
}

// A poststop task that is still to come finds its alloc set up again; if that
// fails it fails too.
func TestPoststopAfterRestore(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		starts int
		want   allocrunner.Status
	}{
		"good": {nil, 1, allocrunner.Complete},
		"bad":  {errors.New("no network"), 0, allocrunner.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "web:main bye:stop")
				w.lives["web"] = []drivertest.Life{{Run: drivertest.Forever, Term: 3 * time.Second}}
				w.lives["bye"] = []drivertest.Life{second(10)}
				w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
				a := w.start()
				require.NoError(t, a.Update(t.Context(), a.newer(stop)))
				time.Sleep(time.Second)
				a.detach()
				w.hooks = []allocrunner.HookFunc{w.hookOf("h", map[string]error{"prerun": c.err})}
				a = w.start()
				require.Equal(t, 1, w.count("h.prerun"), "nothing is set up for what is being killed")
				s := a.end(c.want)
				require.Equal(t, c.starts, attempts(w)["bye"])
				require.Equal(t, 2, w.count("h.prerun"))
				require.Equal(t, c.err != nil, s.Tasks["bye"].Failed)
				require.False(t, s.Tasks["web"].Failed)
			})
		})
	}
}

// A hook that is waiting when the agent lets go has not failed, whichever of the two
// is seen first.
func TestDetachIsNoFailureOfPrerun(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, spec.JobService, "web:main")
			wait := true
			w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
				return &allocrunner.Hook[struct{}]{Name: "wait", Prerun: func(ctx context.Context, _ *allocrunner.Request, _ *struct{}) error {
					if !wait {
						return nil
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}}, nil
			}}
			cfg := w.config()
			cfg.Observe = func(s allocrunner.Snapshot) {
				if s.Tasks["web"].Seq > 1 {
					time.Sleep(time.Second) // the loop finds both when it comes back
				}
			}
			a := w.startWith(cfg)
			require.NoError(t, a.Emit(t.Context(), "web", taskrunner.TaskSetup, nil))
			a.detach()
			require.Equal(t, allocrunner.Pending, a.Snapshot().Status, a.Snapshot().Description)
			wait = false
			a = w.start()
			require.Equal(t, "web=running", a.states())
			require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
			a.end(allocrunner.Complete)
		})
	}
}

// What ended while the agent was away is told with its true result, also of a task
// that ended before its alloc does; the others go on, and the rules of the alloc are
// applied to it now.
func TestExitsWhileAway(t *testing.T) {
	for name, tc := range map[string]struct {
		code   int
		states string
		end    allocrunner.Status
	}{
		"well":  {0, "once=dead web=running", allocrunner.Complete},
		"badly": {3, "once=dead web=dead", allocrunner.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobBatch, "once:main web:main")
				w.alloc.Tasks[0].Restart.Attempts = 0
				w.lives["once"] = []drivertest.Life{{Run: time.Minute, Exit: driver.ExitResult{Code: tc.code}}}
				a := w.start()
				a.detach()
				time.Sleep(time.Hour)
				a = w.start()
				require.Equal(t, tc.states, a.states())
				require.Equal(t, 1, w.count("once: Terminated"))
				require.Equal(t, tc.code, a.Snapshot().Tasks["once"].Exit.Code)
				require.Equal(t, map[string]int{"once": 1, "web": 1}, attempts(w))
				if tc.code == 0 {
					require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
				}
				a.end(tc.end)
			})
		})
	}
}
