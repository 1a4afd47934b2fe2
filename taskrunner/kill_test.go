// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// prekill hooks, shutdown delay, stop signal, kill timeout, SIGKILL, exited
// hooks, destroy, stop hooks: in that order and at their time.
func TestKillOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.task().ShutdownDelay = time.Minute
		w.task().KillSignal = "SIGINT"
		w.fake.Script = script(drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever})
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		began := time.Now()
		a.killNow()
		a.phase(taskrunner.Running)
		require.Equal(t, taskrunner.Running, a.Snapshot().State(), "while the delay lasts the task runs")
		require.Equal(t, 1, j.count("h prekill"))
		require.Empty(t, w.fake.Stops())
		time.Sleep(time.Minute)
		a.phase(taskrunner.Stopping)
		require.Equal(t, []drivertest.StopCall{{ID: "a1/web/0", Signal: "SIGINT", Grace: 10 * time.Second}}, w.fake.Stops())
		s := a.end()
		require.Equal(t, time.Minute+10*time.Second, time.Since(began))
		require.Equal(t, &driver.ExitResult{Code: 137, Signal: 9}, s.Exit)
		require.False(t, s.Failed, "a kill is no failure, whatever the code")
		require.Equal(t, []string{"h prestart", "h poststart", "h prekill", "h exited", "h stop"}, j.list())
	})
}

func TestShutdownDelayCutShort(t *testing.T) {
	for name, tc := range map[string]struct {
		cut  func(*world, *agent)
		took time.Duration
		kind taskrunner.Kind
	}{
		"by the task's own exit": {func(w *world, _ *agent) { w.fake.Exit("a1/web/0", driver.ExitResult{Code: 4}) }, 10 * time.Second, taskrunner.Terminated},
		"by a kill that skips it": {func(w *world, a *agent) {
			require.NoError(w, a.Kill(w.Context(), taskrunner.KillRequest{NoShutdownDelay: true}))
		}, 10 * time.Second, taskrunner.SkippingDelay},
		"by nothing": {func(*world, *agent) {}, time.Minute, taskrunner.ShutdownDelay},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.task().ShutdownDelay = time.Minute
				a := w.start()
				began := time.Now()
				a.killNow()
				time.Sleep(10 * time.Second)
				tc.cut(w, a)
				require.False(t, a.end().Failed)
				require.Equal(t, tc.took, time.Since(began))
				require.NotZero(t, w.kinds.last(tc.kind).Seq)
			})
		})
	}
	t.Run("never begins", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.task().ShutdownDelay = time.Minute
			a := w.start()
			began := time.Now()
			require.NoError(t, a.Kill(t.Context(), taskrunner.KillRequest{NoShutdownDelay: true}))
			a.end()
			require.Zero(t, time.Since(began))
			require.NotZero(t, w.kinds.last(taskrunner.SkippingDelay).Seq)
		})
	})
}

// FF-067: the operator's maximum holds, also against an update.
func TestMaxKillTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.MaxKillTimeout = 5 * time.Second }
		w.fake.Script = script(drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever})
		a := w.start()
		require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].KillTimeout = time.Minute })))
		began := time.Now()
		a.killNow()
		a.end()
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}

// A later kill may only shorten the grace.
func TestLaterKillShortens(t *testing.T) {
	for name, tc := range map[string]struct {
		second time.Duration
		took   time.Duration
	}{
		"shorter": {2 * time.Second, 5 * time.Second},
		"at once": {-1, 3 * time.Second},
		"longer":  {time.Hour, 10 * time.Second},
		"none":    {0, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.fake.Script = script(drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever})
				a := w.start()
				began := time.Now()
				a.killNow()
				time.Sleep(3 * time.Second)
				require.NoError(t, a.Kill(t.Context(), taskrunner.KillRequest{Grace: tc.second}))
				a.end()
				require.Equal(t, tc.took, time.Since(began))
				require.NoError(t, a.Kill(t.Context(), taskrunner.KillRequest{}), "dead already")
			})
		})
	}
}

// Killed before it ran: no process ever starts, at whatever point.
func TestKillBeforeStart(t *testing.T) {
	for name, edit := range map[string]func(*world){
		"gate":    func(w *world) { w.edit = func(c *taskrunner.Config) { c.Gated = true } },
		"driver":  func(w *world) { w.edit = func(c *taskrunner.Config) { c.Drivers = slowDrivers{} } },
		"prepare": func(w *world) { w.fake.Slow(drivertest.Prepare, time.Hour) },
		"prestart": func(w *world) {
			w.hooks = append(w.hooks, hookOf(&taskrunner.Hook[struct{}]{Name: "slow",
				Prestart: func(ctx context.Context, _ *taskrunner.Request, _ *struct{}) (taskrunner.Contribution, error) {
					<-ctx.Done()
					return taskrunner.Contribution{}, context.Cause(ctx)
				}}))
		},
		"backoff": func(w *world) { w.fake.Script = script(drivertest.Life{Err: driver.Recoverable(errors.New("boom"))}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				j := &journal{}
				w.hooks = []taskrunner.HookFunc{j.hook("h")}
				edit(w)
				a := w.start()
				time.Sleep(time.Second)
				began := time.Now()
				a.killNow()
				s := a.end()
				require.Zero(t, time.Since(began))
				require.Zero(t, w.fake.Lives())
				require.False(t, s.Failed)
				require.Equal(t, 1, j.count("h stop"))
				require.Equal(t, "Killed", w.kinds.list()[len(w.kinds.list())-1])
			})
		})
	}
}

type slowDrivers struct{}

func (slowDrivers) Driver(ctx context.Context, _ string) (driver.Driver, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Killed while the driver starts the task: what comes of it is ended.
func TestKillDuringStart(t *testing.T) {
	for name, disturb := range map[string]func(*drivertest.Fake) func(){
		"the driver obeys":   func(f *drivertest.Fake) func() { f.Slow(drivertest.Start, time.Hour); return func() {} },
		"the driver is deaf": func(f *drivertest.Fake) func() { return f.Hang(drivertest.Start) },
		"deaf, but not for long": func(f *drivertest.Fake) func() {
			r := f.Hang(drivertest.Start)
			time.AfterFunc(5*time.Second, r)
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				release := disturb(w.fake)
				a := w.start()
				a.phase(taskrunner.Starting)
				a.killNow()
				<-a.ended
				require.NoError(t, a.err)
				release()
				synctest.Wait()
				a.end()
				require.Equal(t, []string{"Received", "Task Setup", "Killing"}, w.kinds.list()[:3])
				require.Equal(t, "Killed", w.kinds.list()[len(w.kinds.list())-1])
			})
		})
	}
}

// FF-005: hooks and start go together, whenever the stop comes.
func TestStopRacesPrestart(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			w := newWorld(t)
			j := &journal{}
			block := hookOf(&taskrunner.Hook[struct{}]{Name: "block", Stage: taskrunner.StageValidate,
				Prestart: func(context.Context, *taskrunner.Request, *struct{}) (taskrunner.Contribution, error) {
					time.Sleep(time.Duration(rnd.IntN(1000)))
					return taskrunner.Contribution{}, nil
				}})
			w.hooks = []taskrunner.HookFunc{block, j.hook("one"), j.hook("two")}
			stop := time.Duration(rnd.IntN(1000))
			a := w.start()
			time.Sleep(stop)
			require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop })))
			a.end()
			if w.fake.Count(drivertest.Start) > 0 {
				require.Equal(t, []string{"one prestart", "two prestart"}, j.list()[:2])
			}
			require.Equal(t, 1, j.count("two stop"))
		})
	}
}

// A driver that cannot stop the task is asked five times; then it is told, loudly.
func TestStopFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Fail(drivertest.Stop, -1, errors.New("no"))
		a := w.start()
		began := time.Now()
		a.killNow()
		s := a.end()
		require.Equal(t, 5*time.Second+20*time.Second+80*time.Second+2*time.Minute, time.Since(began))
		require.Equal(t, 5, w.fake.Count(drivertest.Stop))
		require.Equal(t, -1, s.Exit.Code)
		require.Equal(t, "no", w.kinds.last(taskrunner.Leaked).Attrs["error"])
	})
}

// A signal that the driver does not know is replaced by the driver's own, at once;
// one that it keeps failing with from the third try on.
func TestStopSignalUnknown(t *testing.T) {
	for err, fails := range map[error]int{driver.ErrUnknownSignal: 1, errors.New("no"): 2} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.alloc.Tasks[0].KillSignal = "SIGFOO"
			a := w.start()
			w.fake.Fail(drivertest.Stop, fails, err)
			a.killNow()
			a.end()
			require.Equal(t, fails+1, w.fake.Count(drivertest.Stop))
			require.Len(t, w.fake.Stops(), 1)
			require.Empty(t, w.fake.Stops()[0].Signal)
		})
	}
}

// … unless the task ends meanwhile.
func TestStopFailsAndTheTaskEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Fail(drivertest.Stop, -1, errors.New("no"))
		a := w.start()
		began := time.Now()
		a.killNow()
		time.Sleep(7 * time.Second)
		w.fake.Exit("a1/web/0", driver.ExitResult{Code: 5})
		s := a.end()
		require.Equal(t, 7*time.Second, time.Since(began))
		require.Equal(t, 5, s.Exit.Code)
		require.Zero(t, w.kinds.last(taskrunner.Leaked).Seq)
	})
}

// What cannot be destroyed is not started again: that could be a second life.
func TestDestroyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(time.Second, 1))
		w.fake.Fail(drivertest.Destroy, 5, errors.New("busy"))
		a := w.start()
		<-a.ended
		require.NoError(t, a.err)
		s := a.Snapshot()
		require.True(t, s.Failed)
		require.Equal(t, 1, w.fake.Lives())
		require.Equal(t, "busy", w.kinds.last(taskrunner.Leaked).Attrs["error"])
		require.Empty(t, w.fake.Faults())
	})
}

func TestDestroyFailsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Second, 0))
		w.fake.Fail(drivertest.Destroy, 2, errors.New("busy"))
		require.False(t, w.start().end().Failed)
		require.Equal(t, 3, w.fake.Count(drivertest.Destroy))
	})
}

// A driver that does not answer keeps no kill back.
func TestDeafDriver(t *testing.T) {
	for _, m := range []drivertest.Method{drivertest.Wait, drivertest.Stop, drivertest.Destroy} {
		t.Run(string(m), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				release := w.fake.Hang(m)
				a := w.start()
				a.phase(taskrunner.Running)
				a.killNow()
				<-a.ended
				require.NoError(t, a.err)
				require.Equal(t, taskrunner.Dead, a.Snapshot().Phase)
				release()
			})
		})
	}
}

func TestRestartRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.task().ShutdownDelay = time.Minute
		j := &journal{}
		asked := make(chan struct{})
		w.hooks = []taskrunner.HookFunc{j.hook("h"), hookOf(&taskrunner.Hook[struct{}]{Name: "slow",
			Prekill: func(context.Context, *taskrunner.Request, *struct{}) error { <-asked; return nil }})}
		a := w.start()
		began := time.Now()
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{Reason: "one"}))
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{Reason: "two"}), "it is being restarted already")
		close(asked)
		synctest.Wait()
		require.Zero(t, time.Since(began), "no shutdown delay")
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"h prestart", "h poststart", "h prekill", "h exited", "h prestart", "h poststart"}, j.list()[:6])
		a.killNow()
		require.ErrorIs(t, a.Restart(t.Context(), taskrunner.RestartRequest{AlsoDead: true}), taskrunner.ErrNotRunning, "a kill is final")
		require.ErrorIs(t, a.Signal(t.Context(), "SIGHUP", ""), taskrunner.ErrNotRunning)
		a.end()
		require.ErrorIs(t, a.Restart(t.Context(), taskrunner.RestartRequest{}), taskrunner.ErrClosed)
		require.ErrorIs(t, a.Signal(t.Context(), "SIGHUP", ""), taskrunner.ErrClosed)
		require.ErrorIs(t, a.Update(t.Context(), w.with(func(*spec.Alloc) {})), taskrunner.ErrClosed)
	})
}

func TestRestartOfWhatDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(0, 1), forever())
		a := w.start()
		a.phase(taskrunner.Pending)
		require.ErrorIs(t, a.Restart(t.Context(), taskrunner.RestartRequest{}), taskrunner.ErrNotRunning)
		require.ErrorIs(t, a.Signal(t.Context(), "SIGHUP", ""), taskrunner.ErrNotRunning)
		began := time.Now()
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{AlsoDead: true}))
		a.phase(taskrunner.Running)
		require.Zero(t, time.Since(began), "the backoff is over")
		a.killNow()
		a.end()
	})
}

// A finished task can be started afresh as long as its alloc lives.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.edit = func(c *taskrunner.Config) { c.Linger = true }
		w.fake.Script = script(exits(time.Second, 1), exits(time.Second, 0), exits(time.Second, 0), forever())
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		time.Sleep(time.Hour)
		a.phase(taskrunner.Dead)
		require.Equal(t, 1, a.Snapshot().Restarts)
		require.ErrorIs(t, a.Restart(t.Context(), taskrunner.RestartRequest{}), taskrunner.ErrNotRunning)
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{AlsoDead: true, Reason: "again"}))
		synctest.Wait()
		require.Equal(t, taskrunner.Running, a.Snapshot().Phase)
		require.Zero(t, a.Snapshot().Resume.WindowCount, "a fresh budget")
		require.True(t, a.Snapshot().FinishedAt.IsZero())
		time.Sleep(time.Hour)
		a.phase(taskrunner.Dead)
		a.detach()

		a = w.start() // also after a restart of the agent
		a.phase(taskrunner.Dead)
		require.NoError(t, a.Restart(t.Context(), taskrunner.RestartRequest{AlsoDead: true}))
		a.phase(taskrunner.Running)
		a.killNow()
		a.end()
		require.Equal(t, 3, j.count("h stop"))
		require.Equal(t, 4, w.fake.Lives())
	})
}

func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(forever())
		a := w.start()
		require.NoError(t, a.Signal(t.Context(), "SIGUSR1", "rotate"))
		require.Equal(t, map[string]string{"signal": "SIGUSR1", "reason": "rotate"}, w.kinds.last(taskrunner.Signaling).Attrs)
		err := a.Signal(t.Context(), "SIGFOO", "")
		require.ErrorIs(t, err, driver.ErrUnknownSignal)
		require.ErrorContains(t, err, "SIGHUP")
		require.Equal(t, []string{"SIGUSR1"}, w.fake.Signals(), "nothing is sent in its place")
		a.phase(taskrunner.Running)

		// One that ends the task is an exit like any other.
		require.NoError(t, a.Signal(t.Context(), "SIGKILL", ""))
		a.phase(taskrunner.Pending)
		require.Equal(t, 1, a.Snapshot().Resume.WindowCount)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		a.killNow()
		a.end()
	})
}
