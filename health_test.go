// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
)

// checks are what a host knows of the checks of its services.
type checks struct {
	mu      sync.Mutex
	state   spec.CheckState
	changed chan struct{}
}

func (c *checks) Checks(string) ([]spec.CheckStatus, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []spec.CheckStatus{{Name: "alive", Service: "web", Task: "t", State: c.state}}, c.changed
}

func (c *checks) set(s spec.CheckState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.state, c.changed = s, make(chan struct{})
}

// The host's checks decide the health of an alloc, which is in its status, on disk,
// and told to the control plane.
func TestChecksDecideHealth(t *testing.T) {
	c := &checks{state: spec.CheckPending, changed: make(chan struct{})}
	cfg := config(t, fake())
	cfg.Checks = c
	n := start(t, cfg)
	al := alloc("a", 1, spec.JobService)
	al.DeploymentID = "d1"
	al.Settings.Health = &spec.HealthPolicy{Check: "checks", MinHealthy: time.Millisecond, Deadline: time.Hour}
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	n = n.again()
	s, _ := n.Alloc("a")
	require.Nil(t, s.Health, "a check without a result holds the verdict up")
	c.set(spec.CheckPassing)
	s = n.until("a", "healthy", func(s AllocStatus, _ bool) bool { return s.Health != nil })
	require.True(t, s.Health.Healthy)
	require.Equal(t, "d1", s.Health.Deployment)
	all, _, err := n.Statuses()
	require.NoError(t, err)
	require.True(t, all[0].Health.Healthy)
	n = n.again()
	s, _ = n.Alloc("a")
	require.True(t, s.Health.Healthy)
	n.apply(2)
	n.absent("a")
}
