// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// attempts is how often each task was started.
func attempts(w *world) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for k, v := range w.starts {
		n[k] = v
	}
	return n
}

// FF-145, first half: a restart of what runs leaves finished tasks alone.
func TestRestartRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "init:pre proxy:preside web:main warm:post")
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
		w.lives["init"], w.lives["warm"] = []drivertest.Life{second(5)}, []drivertest.Life{second(5)}
		a := w.start()
		time.Sleep(time.Minute)
		require.Equal(t, "init=dead proxy=running web=running warm=dead", a.states())
		begun := len(w.noted())
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{Reason: "new certificate"}))
		time.Sleep(time.Second)
		require.Equal(t, "init=dead proxy=running web=running warm=dead", a.states())
		require.Equal(t, map[string]int{"init": 1, "proxy": 2, "web": 2, "warm": 1}, attempts(w))
		require.Equal(t, []string{
			"h.pretaskrestart",
			"web: Restart Signaled", "web: Terminated", "web: Restarting",
			"proxy: Restart Signaled", "proxy: Terminated", "proxy: Restarting",
			"proxy starts", "proxy: Started",
			"web starts", "web: Started",
		}, w.noted()[begun:], "kill order down, lifecycle order up")
		require.Equal(t, 1, w.count("h.prerun"))

		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "web"}))
		time.Sleep(time.Second)
		require.Equal(t, map[string]int{"init": 1, "proxy": 2, "web": 3, "warm": 1}, attempts(w))
		require.Equal(t, 2, w.count("h.pretaskrestart"))
		require.ErrorIs(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "init"}), taskrunner.ErrNotRunning)
		require.ErrorIs(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "x"}), allocrunner.ErrUnknownTask)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

// FF-145, second half: the lifecycle begins anew, with fresh attempts.
func TestRestartAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "init:pre proxy:preside one:main web:main warm:post bye:stop")
		w.lives["init"], w.lives["warm"] = []drivertest.Life{second(5)}, []drivertest.Life{second(5)}
		w.lives["one"] = []drivertest.Life{second(20)}
		w.lives["bye"] = []drivertest.Life{second(1)}
		a := w.start()
		time.Sleep(time.Minute)
		require.Equal(t, "init=dead proxy=running one=dead web=running warm=dead bye=pending", a.states())
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
		time.Sleep(3 * time.Second)
		require.Equal(t, "init=running proxy=running one=pending web=pending warm=pending bye=pending", a.states())
		require.Equal(t, allocrunner.Running, a.Snapshot().Status)
		time.Sleep(3 * time.Second)
		require.Equal(t, "init=dead proxy=running one=running web=running warm=running bye=pending", a.states())
		time.Sleep(time.Minute)
		require.Equal(t, "init=dead proxy=running one=dead web=running warm=dead bye=pending", a.states())
		require.Equal(t, map[string]int{"init": 2, "proxy": 2, "one": 2, "web": 2, "warm": 2}, attempts(w))
		a.exit("web", 0)
		s := a.end(allocrunner.Complete)
		require.Equal(t, 1, s.Tasks["init"].Restarts)
	})
}

func TestRestartAllWithAFailingPrestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "init:pre web:main bye:stop")
		w.alloc.Tasks[0].Restart.Attempts = 0
		w.lives["init"] = []drivertest.Life{second(5), fails(5)}
		w.lives["bye"] = []drivertest.Life{second(1)}
		a := w.start()
		time.Sleep(time.Minute)
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
		s := a.end(allocrunner.Failed)
		require.Equal(t, `task "init" failed`, s.Description)
		require.Equal(t, map[string]int{"init": 2, "web": 1, "bye": 1}, attempts(w), "the main never came back, poststop had its turn")
	})
}

// A task in a backoff comes back at once, and a gate is asked again at its restart.
func TestRestartEndsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "proxy:preside web:main")
		w.alloc.Tasks[1].Restart.Delay = time.Hour
		w.lives["web"] = []drivertest.Life{fails(10), {Run: drivertest.Forever}}
		a := w.start()
		time.Sleep(time.Minute)
		require.Equal(t, "proxy=running web=pending", a.states())
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
		time.Sleep(time.Second)
		require.Equal(t, "proxy=running web=running", a.states())
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

func TestMainWaitsForItsSidecarAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "proxy:preside web:main")
		w.alloc.Tasks[0].Restart.Delay = time.Minute
		a := w.start()
		require.Equal(t, "proxy=running web=running", a.states())
		a.exit("proxy", 1)
		a.exit("web", 1) // its own delay is a second
		time.Sleep(10 * time.Second)
		require.Equal(t, "proxy=pending web=pending", a.states())
		time.Sleep(70 * time.Second)
		require.Equal(t, "proxy=running web=running", a.states())
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

// An accepted restart is carried out by the next agent.
func TestRestartAllSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "init:pre web:main side:preside")
		w.lives["init"] = []drivertest.Life{second(5)}
		w.lives["web"] = []drivertest.Life{{Run: drivertest.Forever, Term: 3 * time.Second}}
		a := w.start()
		time.Sleep(time.Minute)
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
		time.Sleep(time.Second)
		require.Equal(t, "init=pending web=running side=running", a.states(), "web takes its time")
		a.detach()
		a = w.start()
		time.Sleep(time.Minute)
		require.Equal(t, "init=dead web=running side=running", a.states())
		require.Equal(t, map[string]int{"init": 2, "web": 2, "side": 2}, attempts(w))
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}

// FF-006: nothing can be asked of an alloc that has ended, also after a restore.
func TestTerminalIsTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.lives["web"] = []drivertest.Life{second(5)}
		w.hooks = []allocrunner.HookFunc{w.hookOf("h", nil)}
		a := w.start()
		a.end(allocrunner.Complete)
		refused := func(a *agent) {
			before, log := a.Snapshot(), w.noted()
			for _, req := range []allocrunner.RestartRequest{{}, {Task: "web"}, {All: true}} {
				require.ErrorIs(t, a.Restart(t.Context(), req), allocrunner.ErrTerminal)
			}
			require.ErrorIs(t, a.Signal(t.Context(), "web", "SIGHUP", ""), allocrunner.ErrTerminal)
			require.ErrorIs(t, a.Kill(t.Context(), allocrunner.KillRequest{}), allocrunner.ErrTerminal)
			require.ErrorIs(t, a.Update(t.Context(), a.newer(stop)), allocrunner.ErrTerminal)
			synctest.Wait()
			require.Equal(t, before, a.Snapshot())
			require.Equal(t, log, w.noted())
		}
		refused(a)
		a = w.start()
		a.end(allocrunner.Complete)
		refused(a)
		require.Equal(t, 1, attempts(w)["web"], "FF-001")
		require.Equal(t, 1, w.count("h.prerun"))
		require.Equal(t, 1, w.count("h.postrun"))
	})
}

// What is being ended cannot be restarted; it can still be signalled.
func TestEndingIsNotRestarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.lives["web"] = []drivertest.Life{{Run: drivertest.Forever, Term: drivertest.Forever}}
		w.alloc.Tasks[0].KillTimeout = time.Minute
		a := w.start()
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		synctest.Wait()
		require.ErrorIs(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "web"}), allocrunner.ErrTerminal)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Grace: -1}), "a later kill shortens the grace")
		begin := time.Now()
		s := a.end(allocrunner.Complete)
		require.Less(t, time.Since(begin), time.Second)
		require.False(t, s.Tasks["web"].Failed)
	})
}

func TestSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main log:preside bye:stop")
		w.lives["bye"] = []drivertest.Life{second(1)}
		a := w.start()
		require.NoError(t, a.Signal(t.Context(), "web", "SIGHUP", "reload"))
		require.NoError(t, a.Signal(t.Context(), "", "SIGUSR1", ""))
		require.Equal(t, []string{"SIGHUP", "SIGUSR1", "SIGUSR1"}, w.fake.Signals())
		require.ErrorIs(t, a.Signal(t.Context(), "web", "SIGNOTHING", ""), driver.ErrUnknownSignal)
		err := a.Signal(t.Context(), "", "SIGNOTHING", "")
		require.ErrorIs(t, err, driver.ErrUnknownSignal)
		require.Regexp(t, `^tasks "(web", "log|log", "web)": `, err.Error())
		require.Equal(t, 1, strings.Count(err.Error(), "known are"), "the list is told once: %v", err)
		require.ErrorIs(t, a.Signal(t.Context(), "bye", "SIGHUP", ""), taskrunner.ErrNotRunning)
		require.ErrorIs(t, a.Signal(t.Context(), "x", "SIGHUP", ""), allocrunner.ErrUnknownTask)
		a.exit("web", 0)
		a.end(allocrunner.Complete)
	})
}

// A main that is just being prepared waits for the lifecycle to come round again.
func TestRestartAllCatchesWhatIsOnItsWay(t *testing.T) {
	for name, disturb := range map[string]drivertest.Method{"prestart hooks": "", "prepare": drivertest.Prepare, "start": drivertest.Start} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "init:pre web:main")
				w.lives["init"] = []drivertest.Life{second(5), second(100)}
				cfg := w.config()
				if disturb == "" {
					cfg.Tasks.Hooks = []taskrunner.HookFunc{func(_ *spec.Alloc, task *spec.Task) (taskrunner.AnyHook, error) {
						return &taskrunner.Hook[struct{}]{Name: "slow", Prestart: func(context.Context, *taskrunner.Request, *struct{}) (c taskrunner.Contribution, err error) {
							if task.IsMain() {
								time.Sleep(time.Minute)
							}
							return c, nil
						}}, nil
					}}
				}
				a := w.startWith(cfg)
				time.Sleep(time.Second)
				if disturb != "" {
					w.fake.Slow(disturb, time.Minute)
				}
				time.Sleep(20 * time.Second)
				require.Equal(t, "init=dead web=pending", a.states())
				if disturb != "" {
					w.fake.Slow(disturb, 0)
				}
				require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
				time.Sleep(90 * time.Second)
				require.Equal(t, "init=running web=pending", a.states())
				time.Sleep(200 * time.Second)
				require.Equal(t, "init=dead web=running", a.states())
				require.Equal(t, 2, attempts(w)["init"])
				require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
				a.end(allocrunner.Complete)
			})
		})
	}
}
