// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// cgroupLog notes what is made and removed.
type cgroupLog struct {
	mu    sync.Mutex
	there []string
	made  int
	fail  error
}

func (c *cgroupLog) Path(alloc, task string) string { return "/cg/" + alloc + "." + task + ".scope" }

func (c *cgroupLog) Make(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return c.fail
	}
	c.made++
	c.there = append(c.there, path)
	return nil
}

func (c *cgroupLog) Remove(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.there = slices.DeleteFunc(c.there, func(p string) bool { return p == path })
	return nil
}

func (c *cgroupLog) left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.there)
}

// D12: a fresh cgroup before every start, gone after every destroy.
func TestCgroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := &cgroupLog{}
		w.edit = func(cfg *taskrunner.Config) { cfg.Cgroups = c }
		w.fake.Script = script(exits(time.Minute, 1), drivertest.Life{Err: errors.New("no such command")})
		a := w.start()
		require.Equal(t, []string{"/cg/a1.web.scope"}, c.left())
		require.Equal(t, "/cg/a1.web.scope", w.fake.Configs()[0].Cgroup)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Pending)
		require.Empty(t, c.left())
		a.end()
		require.Equal(t, 2, c.made)
		require.Empty(t, c.left(), "a start that failed leaves none")
	})
}

func TestCgroupCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(cfg *taskrunner.Config) { cfg.Cgroups = &cgroupLog{fail: errors.New("read-only")} }
		s := w.start().end()
		require.True(t, s.Failed)
		require.Equal(t, 2, s.Restarts, "it may work later: the policy decides")
		require.Zero(t, w.fake.Count(drivertest.Start))
	})
}
