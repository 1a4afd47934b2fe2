// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func (w *world) depends(task int, on string, c spec.Condition) {
	w.alloc.Tasks[task].DependsOn = append(w.alloc.Tasks[task].DependsOn, spec.Dependency{Task: on, Condition: c})
}

// A free order inside a stage: completed, healthy, started; kept by restarts of
// the agent and asked again at every start.
func TestDependsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "schema:main db:main app:main tail:main")
		w.depends(0, "db", spec.DependHealthy)
		w.depends(2, "schema", spec.DependCompleted)
		w.depends(2, "db", spec.DependHealthy)
		w.depends(3, "app", spec.DependStarted)
		w.lives["schema"] = []drivertest.Life{second(5)}
		require.NoError(t, w.alloc.Validate())
		a := w.start()
		require.Equal(t, "schema=pending db=running app=pending tail=pending", a.states())
		time.Sleep(9 * time.Second)
		require.Equal(t, "schema=pending db=running app=pending tail=pending", a.states())
		a.detach()
		a = w.start()
		time.Sleep(1100 * time.Millisecond) // 10 s in all, however often the agent restarted
		require.Equal(t, "schema=running db=running app=pending tail=pending", a.states())
		time.Sleep(5 * time.Second)
		require.Equal(t, "schema=dead db=running app=running tail=running", a.states())

		// The whole group again, in the same order.
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{All: true}))
		require.Equal(t, "schema=pending db=running app=pending tail=pending", a.states())
		time.Sleep(11 * time.Second)
		require.Equal(t, "schema=running db=running app=pending tail=pending", a.states())
		time.Sleep(5 * time.Second)
		require.Equal(t, "schema=dead db=running app=running tail=running", a.states())

		// One task: it waits for what it depends on, as that is now.
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "db"}))
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{Task: "app"}))
		time.Sleep(9 * time.Second)
		require.Equal(t, "schema=dead db=running app=pending tail=running", a.states())
		time.Sleep(3 * time.Second)
		require.Equal(t, "schema=dead db=running app=running tail=running", a.states())
		a.kill()
	})
}

// What is waited for fails: nothing hangs. A failed dependency ends the alloc.
func TestDependencyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "schema:main app:main bye:stop after:stop")
		w.depends(1, "schema", spec.DependCompleted)
		w.depends(2, "schema", spec.DependCompleted)
		w.depends(3, "bye", spec.DependCompleted)
		w.alloc.Tasks[0].Restart.Attempts, w.alloc.Tasks[2].Restart.Attempts = 0, 0
		w.lives["schema"] = []drivertest.Life{fails(5)}
		w.lives["bye"], w.lives["after"] = []drivertest.Life{fails(5)}, []drivertest.Life{second(1)}
		require.NoError(t, w.alloc.Validate())
		a := w.start()
		a.end(allocrunner.Failed)
		require.Zero(t, w.starts["app"])
		require.Equal(t, 1, w.starts["bye"], "poststop tasks run after a failure too")
		require.Equal(t, 1, w.starts["after"], "… and wait for the end of each other, not for its kind")
	})
}

// A dependency on checks: healthy is more than running for a while.
func TestDependsOnChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "db:main app:main")
		w.depends(1, "db", spec.DependHealthy)
		c := &checks{}
		c.set(failing("db"))
		cfg := w.config()
		cfg.Checks = c
		a := w.startWith(cfg)
		time.Sleep(time.Hour)
		require.Equal(t, "db=running app=pending", a.states())
		c.set(passing("db"), failing("app"))
		require.Equal(t, "db=running app=running", a.states())
		a.kill()
	})
}

// The maximum run time counts from the alloc's creation, over restarts of the
// agent, and ends poststop tasks too.
func TestMaxRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main bye:stop")
		w.alloc.Settings.MaxRun = time.Hour
		w.alloc.CreateTime = time.Now().Add(-20 * time.Minute)
		begin := time.Now()
		a := w.start()
		time.Sleep(30 * time.Minute)
		a.detach()
		time.Sleep(5 * time.Minute)
		a = w.start()
		time.Sleep(4 * time.Minute)
		require.Equal(t, "web=running bye=pending", a.states())
		s := a.end(allocrunner.Complete)
		require.Equal(t, 40*time.Minute, time.Since(begin))
		require.Equal(t, "its maximum run time of 1h0m0s has passed", s.Description)
		require.Equal(t, allocrunner.CauseMaxRun, s.Ending)
		require.Zero(t, w.starts["bye"])
	})
}

func TestMaxRunWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		w.alloc.Settings.MaxRun = time.Hour
		a := w.start()
		a.detach()
		time.Sleep(2 * time.Hour)
		a = w.start()
		a.end(allocrunner.Complete)
		require.Equal(t, 1, w.starts["web"])
	})
}

// A poststop task at work when the time is up ends; the cause of the end stays.
func TestMaxRunEndsPoststop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main bye:stop")
		w.alloc.Settings.MaxRun = time.Hour
		w.lives["web"] = []drivertest.Life{second(60)}
		a := w.start()
		time.Sleep(2 * time.Minute)
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		require.Equal(t, "web=dead bye=running", a.states())
		time.Sleep(57 * time.Minute)
		require.Equal(t, "web=dead bye=running", a.states())
		a.end(allocrunner.Complete)
		require.Equal(t, []string{"bye: Killing", "bye: Terminated", "bye: Killed"}, w.noted()[len(w.noted())-3:])
	})
}

// A limit may come, go and change in place; it always counts from the beginning.
func TestMaxRunChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "web:main")
		begin := time.Now()
		a := w.start()
		limit := func(d time.Duration) {
			require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Settings.MaxRun = d })))
		}
		time.Sleep(30 * time.Minute)
		limit(time.Hour)
		time.Sleep(20 * time.Minute)
		limit(2 * time.Hour)
		time.Sleep(20 * time.Minute)
		require.Equal(t, "web=running", a.states())
		a.end(allocrunner.Complete)
		require.Equal(t, 2*time.Hour, time.Since(begin))
	})
}

// What would happen if it exited now: the host asks the snapshot.
func TestIfExited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.alloc.Tasks[0].Restart.OnExit = []spec.ExitRule{{Codes: []int{78}, Action: spec.ExitFail}}
		a := w.start()
		ask := func(code int) spec.ExitAction {
			s := a.Snapshot()
			return s.Tasks["web"].IfExited(s.Alloc.Task("web"), s.Alloc.JobType, exitOf(code), time.Now()).Action
		}
		require.Equal(t, spec.ExitRestart, ask(137))
		require.Equal(t, spec.ExitFail, ask(78))
		for range 2 {
			a.exit("web", 137)
			time.Sleep(2 * time.Second)
		}
		require.Equal(t, spec.ExitFail, ask(137), "its restarts are used up")
		require.Equal(t, taskrunner.Running, a.Snapshot().Tasks["web"].Phase, "asking changes nothing")
		a.exit("web", 78)
		a.end(allocrunner.Failed)
		require.Equal(t, spec.ExitFail, ask(0), "it will not start again")
	})
}
