// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// checks are set by hand.
type checks struct {
	mu      sync.Mutex
	all     []spec.CheckStatus
	changed chan struct{}
}

func (c *checks) Checks(string) ([]spec.CheckStatus, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.all, c.changed
}

func (c *checks) set(all ...spec.CheckStatus) {
	c.mu.Lock()
	if c.changed != nil {
		close(c.changed)
	}
	c.all, c.changed = all, nil
	c.mu.Unlock()
	synctest.Wait()
}

func passing(task string) spec.CheckStatus {
	return spec.CheckStatus{Name: "c", Task: task, State: spec.CheckPassing}
}

func failing(task string) spec.CheckStatus {
	return spec.CheckStatus{Name: "c", Task: task, State: spec.CheckFailing}
}

// watched is a world whose alloc's health is asked for.
func watched(t *testing.T, tasks string) *world {
	w := newWorld(t, spec.JobService, tasks)
	w.alloc.DeploymentID = "d1"
	w.alloc.Settings.Health = &spec.HealthPolicy{MinHealthy: 10 * time.Second, Deadline: 2 * time.Minute}
	return w
}

func (a *agent) kill() {
	a.w.t.Helper()
	require.NoError(a.w.t, a.Kill(a.w.t.Context(), allocrunner.KillRequest{}))
	<-a.Done()
}

// Healthy after min_healthy from the latest start; once, and for good, also when
// the agent restarts in between.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main log:preside")
		w.lives["web"] = []drivertest.Life{fails(8), {Run: drivertest.Forever}}
		a := w.start()
		time.Sleep(7 * time.Second)
		a.detach()
		a = w.start()
		time.Sleep(10 * time.Second) // started again 9 s after its first start, or a little later
		require.Nil(t, a.Snapshot().Health)
		a.detach()
		a = w.start()
		time.Sleep(4 * time.Second)
		h := a.Snapshot().Health
		require.NotNil(t, h, "the restart of the agent began it anew")
		require.True(t, h.Healthy)
		require.Equal(t, "d1", h.Deployment)

		// A failure later on changes nothing, here or after another restart.
		a.exit("web", 1)
		time.Sleep(time.Minute)
		a.detach()
		a = w.start()
		time.Sleep(time.Minute)
		require.True(t, h.Time.Equal(a.Snapshot().Health.Time) && a.Snapshot().Health.Healthy)
		require.ErrorIs(t, a.SetHealth(t.Context(), spec.Health{}), allocrunner.ErrHealthSettled)

		// A new deployment asks again.
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.DeploymentID = "d2" })))
		synctest.Wait()
		require.Equal(t, "d2", a.Snapshot().Health.Deployment, "it has run for long enough")
		a.kill()
	})
}

// At the deadline each offender's task has one event that says why; the deadline
// is not moved by restarts of the agent.
func TestUnhealthyAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main slow:main")
		w.alloc.Tasks[0].Restart.Attempts, w.alloc.Tasks[0].Restart.Delay = 1000, 3*time.Second
		w.lives["web"] = []drivertest.Life{fails(1)}
		a := w.start()
		for range 4 {
			time.Sleep(25 * time.Second)
			a.detach()
			a = w.start()
		}
		time.Sleep(19 * time.Second)
		require.Nil(t, a.Snapshot().Health)
		time.Sleep(2 * time.Second)
		h := a.Snapshot().Health
		require.NotNil(t, h)
		require.False(t, h.Healthy)
		require.LessOrEqual(t, w.count("web: Alloc Unhealthy")+w.count("slow: Alloc Unhealthy"), 1)
		require.Equal(t, 1, w.count("web: Alloc Unhealthy"), h.Reason)
		require.Equal(t, allocrunner.Running, a.Snapshot().Status, "health ends nothing")
		a.kill()
	})
}

// A main that fails is unhealthy at once, and the event is there although the
// alloc is on its way out.
func TestFailedMainIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main")
		w.alloc.Tasks[0].Restart.Attempts = 0
		w.lives["web"] = []drivertest.Life{fails(1)}
		a := w.start()
		s := a.end(allocrunner.Failed)
		require.False(t, s.Health.Healthy)
		require.Equal(t, `task "web": it failed`, s.Health.Reason)
		require.Equal(t, 1, w.count("web: Alloc Unhealthy"))
	})
}

// Checks must pass for as long; a restart of the agent, which has no results yet,
// interrupts nothing.
func TestChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main")
		c := &checks{}
		start := func() *agent {
			cfg := w.config()
			cfg.Checks = c
			return w.startWith(cfg)
		}
		c.set(failing("web"))
		a := start()
		time.Sleep(30 * time.Second)
		require.Nil(t, a.Snapshot().Health)
		c.set(passing("web"))
		time.Sleep(6 * time.Second)
		a.detach()
		c.set(spec.CheckStatus{Name: "c", Task: "web", State: spec.CheckPending})
		a = start()
		time.Sleep(2 * time.Second)
		c.set(passing("web"))
		time.Sleep(time.Second)
		require.Nil(t, a.Snapshot().Health)
		time.Sleep(1100 * time.Millisecond)
		require.True(t, a.Snapshot().Health.Healthy, "10 s in all")
		a.kill()
	})
}

// An alloc that is stopped is neither.
func TestStopSettlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main")
		a := w.start()
		require.NoError(t, a.Update(t.Context(), a.newer(stop)))
		require.Nil(t, a.end(allocrunner.Complete).Health)
	})
}

// Where the policy says manual the host decides, once.
func TestManualHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched(t, "web:main")
		w.alloc.Settings.Health.Check = "manual"
		a := w.start()
		time.Sleep(time.Hour)
		require.Nil(t, a.Snapshot().Health)
		require.NoError(t, a.SetHealth(t.Context(), spec.Health{Healthy: true, Reason: "looks good"}))
		require.ErrorIs(t, a.SetHealth(t.Context(), spec.Health{}), allocrunner.ErrHealthSettled)
		require.Equal(t, "looks good", a.Snapshot().Health.Reason)
		require.True(t, a.Snapshot().HealthSettled())
		require.ErrorIs(t, a.Emit(t.Context(), "none", taskrunner.AllocUnhealthy, nil), allocrunner.ErrUnknownTask)
		a.kill()
	})
}
