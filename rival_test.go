// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
)

func tells(s AllocStatus, text string) bool {
	for _, ev := range s.Tasks["t"].Events {
		if strings.Contains(ev.Attrs["message"], text) {
			return true
		}
	}
	return false
}

// Of two allocs that name one predecessor the eldest takes the disk, whichever comes
// first and whatever restarts in between; the other one is told.
func TestTwoAllocsReplaceOne(t *testing.T) {
	for name, restart := range map[string]bool{"in one life": false, "over a restart": true} {
		t.Run(name, func(t *testing.T) {
			f := fake()
			n := start(t, config(t, f))
			n.apply(1, alloc("old", 1, spec.JobService))
			n.status("old", allocrunner.Running)
			leaveData(t, n, "old", "rows")
			release := f.Hang(drivertest.Stop)
			list := []*spec.Alloc{successor("younger", "old", 3), successor("elder", "old", 2)}
			n.apply(3, list...)
			for _, al := range list {
				n.until(al.ID, "waiting", func(s AllocStatus, _ bool) bool { return tells(s, "Waiting for the end of alloc old") })
			}
			if restart {
				n.stop()
			}
			release()
			if restart {
				n = start(t, n.cfg)
				n.apply(3, list...)
			}
			n.status("elder", allocrunner.Running)
			requireData(t, n, "elder", "rows")
			s := n.status("younger", allocrunner.Running)
			requireData(t, n, "younger", "")
			require.True(t, tells(s, "went to alloc elder, which replaces it too"), "%+v", s.Tasks["t"].Events)
			n.absent("old")
			n.apply(4)
			n.absent("elder")
			n.absent("younger")
			f.Check(t)
		})
	}
}

// The eldest that cannot take the disk leaves it to the next.
func TestEldestGivesUp(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	old := alloc("old", 1, spec.JobService)
	n.apply(1, old)
	n.status("old", allocrunner.Running)
	leaveData(t, n, "old", "rows")
	elder, younger := successor("elder", "old", 2), successor("younger", "old", 3)
	n.apply(2, old, elder, younger)
	n.until("younger", "waiting", func(s AllocStatus, _ bool) bool { return tells(s, "Waiting for the end of alloc old") })
	n.apply(3, old, stopped(elder, 3), younger)
	n.over("elder")
	n.apply(4, stopped(old, 4), younger)
	n.status("younger", allocrunner.Running)
	requireData(t, n, "younger", "rows")
}

// A collection that fails before anything is removed leaves the disk to be had.
func TestFailedCollectionKeepsTheDisk(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	disk := &breakable{}
	n := start(t, config(t, f), func(a *Agent) {
		disk.Store = a.store
		a.store = disk
		a.box = a.newBox()
	})
	n.apply(1, alloc("old", 1, spec.JobBatch))
	n.over("old")
	leaveData(t, n, "old", "rows")
	disk.broken.Store(true)
	require.Error(t, n.GC(t.Context()))
	disk.broken.Store(false)
	var out bytes.Buffer
	require.NoError(t, n.SendDisk(t.Context(), "old", &out))
	n.apply(2, successor("new", "old", 2))
	n.until("new", "started", func(s AllocStatus, _ bool) bool { return !s.Tasks["t"].StartedAt.IsZero() })
	requireData(t, n, "new", "rows")
}

func TestElder(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	a, b := alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService)
	n.apply(1, a, b)
	n.status("a", allocrunner.Running)
	ea, err := n.entry("a")
	require.NoError(t, err)
	eb, err := n.entry("b")
	require.NoError(t, err)
	require.True(t, elder(ea, eb), "by id where the time is the same")
	require.False(t, elder(eb, ea))
	c := alloc("c", 2, spec.JobService)
	c.CreateTime = time.Unix(0, 0)
	n.apply(2, a, b, c)
	ec, err := n.entry("c")
	require.NoError(t, err)
	require.True(t, elder(ec, ea))
	require.False(t, elder(ea, ec))
}

// An alloc that leaves the list while it is being collected is gone with it: nobody
// has to send another list.
func TestLeavesTheListWhileCollected(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	cfg := config(t, f)
	cfg.MaxFinished = -1
	begun, release := make(chan struct{}, 1), make(chan struct{})
	cfg.AllocHooks = func(std []allocrunner.HookFunc) []allocrunner.HookFunc {
		return append(std, func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[struct{}]{Name: "slow", Destroy: func(context.Context, *allocrunner.Request, *struct{}) error {
				begun <- struct{}{}
				<-release
				return nil
			}}, nil
		})
	}
	n := start(t, cfg)
	n.apply(1, alloc("a", 1, spec.JobBatch))
	<-begun
	n.apply(2)
	close(release)
	n.absent("a")
	n.stop()
	n.cfg.AllocHooks = nil
	n = start(t, n.cfg)
	require.Empty(t, n.Allocs(), "also on disk")
}
