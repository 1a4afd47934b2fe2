// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func commits(s state.Store) int64 { return s.(state.Stats).Commits() }

// A plain life: its events, its phases, its commits, and nothing after it.
func TestPlainLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Hour, 0))
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("one"), j.hook("two")}
		began := time.Now()
		a := w.start()
		a.phase(taskrunner.Running)
		require.Equal(t, taskrunner.Running, a.Snapshot().State())
		s := a.end()
		require.Equal(t, time.Hour, time.Since(began))
		require.False(t, s.Failed)
		require.Equal(t, "completed", s.Reason)
		require.Equal(t, []string{"Received", "Task Setup", "Started", "Terminated"}, w.kinds.list())
		require.Equal(t, []string{"one prestart", "two prestart", "one poststart", "two poststart",
			"one exited", "two exited", "two stop", "one stop"}, j.list())
		require.Equal(t, int64(4), commits(w.store), "starting, running, exited, dead")

		// FF-001: an agent that restarts leaves it alone.
		b := w.start()
		require.Equal(t, s.Exit, b.end().Exit)
		require.Len(t, j.list(), 8)
		require.Equal(t, 1, w.fake.Lives())
		require.Equal(t, 0, w.fake.Count(drivertest.Recover))
		require.Len(t, w.kinds.list(), 4)
	})
}

// What waits for a long time before its start is seen: two commits more at most.
func TestSlowStartIsVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Minute, 0))
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "slow",
			Prestart: func(ctx context.Context, r *taskrunner.Request, _ *struct{}) (taskrunner.Contribution, error) {
				time.Sleep(time.Hour)
				return taskrunner.Contribution{}, nil
			}})}
		a := w.start()
		require.Empty(t, a.Snapshot().Events, "nothing is shown before it is on disk")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"Received", "Task Setup"}, w.kinds.list())
		require.Len(t, a.Snapshot().Events, 2)
		a.end()
		require.Equal(t, int64(5), commits(w.store))
	})
}

// ours counts the goroutines that run code of the runner.
func ours() (n int) {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "/taskrunner.") {
			n++
		}
	}
	return n
}

func TestGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("one")}
		a := w.start()
		a.phase(taskrunner.Running)
		require.Equal(t, 2, ours(), "the loop and its operation")
		a.killNow()
		a.end()
		synctest.Wait()
		require.Zero(t, ours())
	})
}

// FF-031: two hundred tasks that end by themselves leave nothing.
func TestNothingIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i := range 200 {
			w := newWorld(t)
			w.alloc = alloc(spec.JobBatch)
			w.fake.Script = script(exits(time.Second, i%2))
			j := &journal{}
			w.hooks = []taskrunner.HookFunc{j.hook("one"), j.hook("two")}
			w.start().end()
		}
		synctest.Wait()
		require.Zero(t, ours())
	})
}

// The event orders of one task.
func TestEventOrders(t *testing.T) {
	boom := errors.New("boom")
	setup := []string{"Received", "Task Setup"}
	for name, tc := range map[string]struct {
		lives  []drivertest.Life
		job    spec.JobType
		play   func(*world, *agent)
		edit   func(*spec.RestartPolicy)
		hook   *taskrunner.Hook[struct{}]
		want   string
		failed bool
	}{
		"batch, success": {lives: []drivertest.Life{exits(time.Minute, 0)}, job: spec.JobBatch, want: "Started, Terminated"},
		"stop": {lives: []drivertest.Life{forever()}, play: func(w *world, a *agent) { a.killNow() },
			want: "Started, Killing, Terminated, Killed"},
		"stop with shutdown delay": {lives: []drivertest.Life{forever()}, play: func(w *world, a *agent) {
			require.NoError(w, a.Update(w.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].ShutdownDelay = time.Minute })))
			a.killNow()
		}, want: "Started, Killing, Waiting for Shutdown Delay, Terminated, Killed"},
		"leader ends": {lives: []drivertest.Life{forever()}, play: func(w *world, a *agent) {
			require.NoError(w, a.Kill(w.Context(), taskrunner.KillRequest{Kind: taskrunner.LeaderDead, Reason: "task main ended"}))
		}, want: "Started, Leader Task Dead, Killing, Terminated, Killed"},
		"restart asked for": {lives: []drivertest.Life{forever(), exits(0, 0)}, job: spec.JobBatch, play: func(w *world, a *agent) {
			require.NoError(w, a.Restart(w.Context(), taskrunner.RestartRequest{Reason: "operator"}))
		}, want: "Started, Restart Signaled, Terminated, Restarting, Started, Terminated"},
		"crash loop": {lives: []drivertest.Life{exits(time.Second, 1)}, failed: true,
			want: "Started, Terminated, Restarting, Started, Terminated, Restarting, Started, Terminated, Not Restarting"},
		"start fails": {lives: []drivertest.Life{{Err: boom}}, failed: true, want: "Driver Failure, Not Restarting"},
		"start fails and may be repeated": {lives: []drivertest.Life{{Err: driver.Recoverable(boom)}, exits(0, 0)}, job: spec.JobBatch,
			want: "Driver Failure, Restarting, Started, Terminated"},
		"stop, and the shutdown delay is skipped": {lives: []drivertest.Life{forever()}, play: func(w *world, a *agent) {
			require.NoError(w, a.Update(w.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].ShutdownDelay = time.Minute })))
			a.killNow()
			a.phase(taskrunner.Running)
			require.NoError(w, a.Kill(w.Context(), taskrunner.KillRequest{NoShutdownDelay: true}))
		}, want: "Started, Killing, Waiting for Shutdown Delay, Skipping Shutdown Delay, Terminated, Killed"},
		"a rule fails the task": {lives: []drivertest.Life{exits(0, 78)}, failed: true, edit: func(p *spec.RestartPolicy) {
			p.OnExit = []spec.ExitRule{{Codes: []int{78}, Action: spec.ExitFail}}
		}, want: "Started, Terminated, Not Restarting"},
		"a rule completes the task": {lives: []drivertest.Life{exits(0, 3)}, edit: func(p *spec.RestartPolicy) {
			p.OnExit = []spec.ExitRule{{Codes: []int{3}, Action: spec.ExitComplete}}
		}, want: "Started, Terminated, Not Restarting"},
		"a rule restarts a batch": {lives: []drivertest.Life{exits(0, 0), exits(0, 1), exits(0, 2)}, job: spec.JobBatch, failed: true, edit: func(p *spec.RestartPolicy) {
			p.OnExit = []spec.ExitRule{{Codes: []int{0}, Action: spec.ExitRestart}}
		}, want: "Started, Terminated, Restarting, Started, Terminated, Restarting, Started, Terminated, Not Restarting"},
		"artifacts": {lives: []drivertest.Life{exits(0, 0)}, job: spec.JobBatch, hook: &taskrunner.Hook[struct{}]{Name: "artifact",
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				r.Emit(taskrunner.DownloadingArtifact, nil)
				return c, nil
			}}, want: "Downloading Artifacts, Started, Terminated"},
		"signal": {lives: []drivertest.Life{forever()}, play: func(w *world, a *agent) {
			require.NoError(w, a.Signal(w.Context(), "SIGUSR1", "reload"))
			a.killNow()
		}, want: "Started, Signaling, Killing, Terminated, Killed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.alloc = alloc(tc.job)
				w.fake.Script = script(tc.lives...)
				if tc.edit != nil {
					tc.edit(w.task().Restart)
				}
				if tc.hook != nil {
					w.hooks = []taskrunner.HookFunc{hookOf(tc.hook)}
				}
				a := w.start()
				if tc.play != nil {
					a.phase(taskrunner.Running)
					tc.play(w, a)
				}
				s := a.end()
				require.Equal(t, strings.Join(append(setup, tc.want), ", "), strings.Join(w.kinds.list(), ", "))
				require.Equal(t, tc.failed, s.Failed)
				require.Zero(t, w.kinds.gaps)
				for _, e := range w.kinds.all() {
					require.NotEmpty(t, e.Text())
				}
			})
		})
	}
}

// An alloc hook that fails before the tasks: the parent kills what never started.
func TestSetupFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Gated = true }
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		require.NoError(t, a.Kill(t.Context(), taskrunner.KillRequest{Kind: taskrunner.SetupFailure, Reason: "no network", Failed: true}))
		s := a.end()
		require.True(t, s.Failed)
		require.Equal(t, "no network", s.Reason)
		require.Equal(t, []string{"Received", "Setup Failure"}, w.kinds.list())
		require.Equal(t, []string{"h stop"}, j.list())
		require.Zero(t, w.fake.Count(drivertest.Start))
		require.Zero(t, w.fake.Count(drivertest.Destroy))
	})
}

// Terminated tells all there is to know of an exit.
func TestTerminatedAttributes(t *testing.T) {
	for _, tc := range []struct {
		exit driver.ExitResult
		want map[string]string
		text string
	}{
		{driver.ExitResult{Code: 3}, map[string]string{"exit_code": "3"}, "Exit code 3"},
		{driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true}, map[string]string{"exit_code": "137", "signal": "9", "oom_killed": "true"},
			"Exit code 137, signal 9, killed by the kernel for want of memory"},
		{driver.ExitResult{Code: -1, Err: "exit not seen"}, map[string]string{"exit_code": "-1", "error": "exit not seen"}, "Exit code -1: exit not seen"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.task().Restart = &spec.RestartPolicy{}
			w.fake.Script = script(drivertest.Life{Exit: tc.exit})
			require.True(t, w.start().end().Failed)
			e := w.kinds.last(taskrunner.Terminated)
			require.Equal(t, tc.want, e.Attrs)
			require.Equal(t, tc.text, e.Text())
		})
	}
}

// FF-142: what is announced is waited for. Failures wait the delay and up to a
// quarter more and use up an attempt; what people and templates ask for is free
// and immediate; a kill ends the wait without a start.
func TestRestartDelays(t *testing.T) {
	boom := driver.Recoverable(errors.New("boom"))
	restart := func(req taskrunner.RestartRequest) func(*world, *agent) {
		return func(w *world, a *agent) { require.NoError(w, a.Restart(w.Context(), req)) }
	}
	for name, tc := range map[string]struct {
		first   drivertest.Life
		hookErr error
		play    func(*world, *agent)
		free    bool
	}{
		"exit 1":            {first: exits(time.Minute, 1)},
		"exit 0, a service": {first: exits(time.Minute, 0)},
		"health check":      {first: forever(), play: restart(taskrunner.RestartRequest{Counted: true, Reason: "check failed"})},
		"hook error":        {first: forever(), hookErr: boom},
		"driver error":      {first: drivertest.Life{Err: boom}},
		"template":          {first: forever(), play: restart(taskrunner.RestartRequest{Reason: "template changed"}), free: true},
		"person":            {first: forever(), play: restart(taskrunner.RestartRequest{}), free: true},
	} {
		for _, kill := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					w.fake.Script = script(tc.first, forever())
					fails := tc.hookErr
					var at []time.Time
					w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "h",
						Prestart: func(context.Context, *taskrunner.Request, *struct{}) (taskrunner.Contribution, error) {
							at = append(at, time.Now())
							err := fails
							fails = nil
							return taskrunner.Contribution{}, err
						}})}
					a := w.start()
					if tc.play != nil {
						tc.play(w, a)
					}
					for s := range a.Watch(t.Context()) {
						if s.Restarts > 0 {
							break
						}
					}
					decided := a.Snapshot().LastRestart
					if kill {
						lives := w.fake.Lives()
						a.killNow()
						require.Zero(t, time.Since(decided))
						a.end()
						if !tc.free {
							require.Equal(t, lives, w.fake.Lives(), "started after a kill")
						}
						return
					}
					for s := range a.Watch(t.Context()) {
						if s.Phase == taskrunner.Running {
							break
						}
					}
					waited := at[len(at)-1].Sub(decided)
					if tc.free {
						require.Zero(t, waited)
						require.Zero(t, a.Snapshot().Resume.WindowCount)
					} else {
						require.GreaterOrEqual(t, waited, 15*time.Second)
						require.LessOrEqual(t, waited, 18750*time.Millisecond)
						require.Equal(t, 1, a.Snapshot().Resume.WindowCount)
						require.Equal(t, waited.String(), w.kinds.last(taskrunner.Restarting).Attrs["delay"])
					}
					a.killNow()
					a.end()
				})
			})
		}
	}
}

// An agent restart gives a crash loop no fresh budget.
func TestCrashLoopOverAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(time.Second, 1))
		for range 2 {
			a := w.start()
			time.Sleep(3 * time.Second)
			a.phase(taskrunner.Pending)
			a.detach()
			time.Sleep(20 * time.Second) // the backoff goes on without an agent
			w.kinds.list()
		}
		require.True(t, w.start().end().Failed)
		require.Equal(t, 3, w.fake.Lives())
	})
}

// A new policy counts from the next exit on.
func TestPolicyUpdatedInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(time.Minute, 1))
		a := w.start()
		require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.Tasks[0].Restart = &spec.RestartPolicy{} })))
		require.True(t, a.end().Failed)
		require.Equal(t, 1, w.fake.Lives())
	})
}

func TestPrestartErrors(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		err   error
		calls int
		want  string
	}{
		"final":     {boom, 1, "Task Hook Failed, Not Restarting"},
		"may retry": {driver.Recoverable(boom), 3, "Task Hook Failed, Restarting, Task Hook Failed, Restarting, Task Hook Failed, Not Restarting"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				j := &journal{}
				calls := 0
				bad := hookOf(&taskrunner.Hook[struct{}]{Name: "bad",
					Prestart: func(context.Context, *taskrunner.Request, *struct{}) (taskrunner.Contribution, error) {
						calls++
						return taskrunner.Contribution{}, tc.err
					}})
				w.hooks = []taskrunner.HookFunc{j.hook("first"), bad, j.hook("last")}
				s := w.start().end()
				require.True(t, s.Failed)
				require.Contains(t, s.Reason, "boom")
				require.Equal(t, tc.calls, calls)
				require.Zero(t, j.count("last prestart"), "the first error ends the chain")
				require.Equal(t, 1, j.count("last stop"), "stop hooks run also where prestart did not")
				require.Zero(t, j.count("first exited"))
				require.Zero(t, w.fake.Lives())
				require.Equal(t, "Received, Task Setup, "+tc.want, strings.Join(w.kinds.list(), ", "))
				e := w.kinds.last(taskrunner.HookFailed)
				require.Equal(t, "bad", e.Attrs["hook"])
				require.Equal(t, "prestart", e.Attrs["callback"])
			})
		})
	}
}

// The driver's configuration is checked before anything is started.
func TestConfigIsEvaluated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) {
			c.Eval = func(*driver.Schema, json.RawMessage, map[string]spec.Origin, map[string]string) (json.RawMessage, error) {
				return nil, errors.New("job.hcl:3: no variable x")
			}
		}
		s := w.start().end()
		require.True(t, s.Failed)
		require.Contains(t, s.Reason, "job.hcl:3")
		require.Equal(t, []string{"Received", "Task Setup", "Failed Validation", "Not Restarting"}, w.kinds.list())
		require.Zero(t, w.fake.Count(drivertest.Start))
	})
}

func TestUnknownDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.task().Driver = "docker"
		s := w.start().end()
		require.True(t, s.Failed)
		require.Contains(t, s.Reason, `driver "docker"`)
		require.Equal(t, []string{"Received", "Task Setup", "Driver Failure", "Not Restarting"}, w.kinds.list())
	})
}

// A driver that prepares can be interrupted and can fail like a start.
func TestPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Fail(drivertest.Prepare, 1, driver.Recoverable(errors.New("registry is away")))
		a := w.start()
		a.phase(taskrunner.Pending)
		w.fake.Slow(drivertest.Prepare, time.Hour)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Ready)
		a.killNow()
		began := time.Now()
		a.end()
		require.Zero(t, time.Since(began))
		require.Zero(t, w.fake.Count(drivertest.Start))
	})
}

// creeping is a clock that has moved on whenever it is looked at.
type creeping struct{ looks atomic.Int64 }

func (c *creeping) Now() bootclock.Instant {
	return bootclock.Instant{Boot: "b", Up: time.Duration(c.looks.Add(1)) * 400 * time.Microsecond, Wall: time.Now()}
}

// A backoff that ends between two looks at the clock is over: nothing waits for it
// any more.
func TestBackoffEndsBetweenLooks(t *testing.T) {
	for delay := range 20 {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.task().Restart = &spec.RestartPolicy{Attempts: 3, Delay: time.Duration(delay) * 200 * time.Microsecond}
			w.fake.Script = script(exits(time.Second, 1))
			w.edit = func(c *taskrunner.Config) { c.Clock = &creeping{} }
			a := w.start()
			select {
			case <-a.ended:
			case <-time.After(time.Hour):
				t.Errorf("delay %d: the task is not started again", delay)
				a.killNow()
			}
			a.end()
		})
	}
}
