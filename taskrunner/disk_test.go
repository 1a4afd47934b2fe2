// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// D18: whichever commit fails, for a while or for long, with the write lost or
// not, the life goes on when the disk is well again and nothing is lost.
func TestDiskFailsAtEveryCommit(t *testing.T) {
	for _, kind := range []error{syscall.ENOSPC, syscall.EIO} {
		for _, long := range []int{1, 8} {
			for _, written := range []bool{false, true} {
				for at := 1; ; at++ {
					reached := false
					t.Run(fmt.Sprintf("%v, %d times from %d, written %v", kind, long, at, written), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							reached = diskFails(newWorld(t), statetest.Faults{Err: kind, At: at, For: long, Written: written})
						})
					})
					if !reached || t.Failed() {
						break
					}
				}
			}
		}
	}
}

// diskFails plays a life with an exit, a restart and a kill. It says whether the
// fault was reached.
func diskFails(w *world, faults statetest.Faults) bool {
	disk := statetest.Faulty(w.store, faults)
	w.store = disk
	w.fake.Script = script(exits(time.Minute, 1), forever())
	leases := &pool{}
	w.hooks = []taskrunner.HookFunc{leases.hook(newDeath(0))}
	degraded := false
	w.edit = func(c *taskrunner.Config) {
		c.Observe = func(s taskrunner.Snapshot) {
			degraded = degraded || !s.Durable
			require.Empty(w, missing(s, w), "shown, but not on disk")
		}
	}
	a := w.start()
	time.Sleep(5 * time.Minute)
	a.phase(taskrunner.Running)
	err := a.Kill(w.Context(), taskrunner.KillRequest{})
	if err != nil {
		require.ErrorIs(w, err, taskrunner.ErrNotDurable)
	}
	s := a.end()
	reached := disk.Updates() >= faults.At
	require.Equal(w, reached, degraded)
	require.True(w, s.Durable)
	require.False(w, s.Failed)
	require.Equal(w, "Received, Task Setup, Started, Terminated, Restarting, Started, Killing, Terminated, Killed", strings.Join(w.kinds.list(), ", "))
	require.Zero(w, w.kinds.gaps)
	require.Equal(w, 2, w.fake.Lives())
	require.Empty(w, leases.out())
	return reached
}

// missing is what s shows and the disk has not.
func missing(s taskrunner.Snapshot, w *world) string {
	var disk taskrunner.Snapshot
	_ = w.store.View(func(tx state.Tx) (err error) {
		disk, _, err = state.Slot[taskrunner.Snapshot]{Key: "task", Version: 1}.Load(tx, state.Path{"v1", "alloc", "a1", "task-web"})
		return err
	})
	switch {
	case s.Seq > disk.Seq:
		return fmt.Sprintf("event %d, on disk %d", s.Seq, disk.Seq)
	case s.Kill != nil && disk.Kill == nil:
		return "kill"
	case s.Handle != nil && disk.Handle == nil:
		return "handle"
	}
	return ""
}

// While the disk fails nothing new is started; a kill is carried out from memory
// and answered with what is true; the exit waits on its driver until it is on disk.
func TestKillOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(forever())
		disk := &fullDisk{Store: w.store}
		w.store = disk
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		disk.full.Store(true)
		require.ErrorIs(t, a.Kill(t.Context(), taskrunner.KillRequest{}), taskrunner.ErrNotDurable)
		synctest.Wait()
		require.Empty(t, w.fake.Alive(), "killed from memory")
		s := a.Snapshot()
		require.False(t, s.Durable)
		require.Equal(t, taskrunner.Running, s.Phase, "what is shown is what is on disk")
		require.Nil(t, s.Kill)
		require.Equal(t, 1, j.count("h prekill"))
		time.Sleep(time.Hour)
		require.Zero(t, w.fake.Count(drivertest.Destroy), "the exit is not acknowledged")
		require.Zero(t, j.count("h stop"))
		disk.full.Store(false)
		time.Sleep(10 * time.Second)
		s = a.end()
		require.Equal(t, 143, s.Exit.Code)
		require.Equal(t, "Killing, Terminated, Killed", strings.Join(w.kinds.list()[3:], ", "))
		require.Less(t, disk.tries.Load(), int64(400), "a try every 10 s")
	})
}

// A start waits for the disk, and a kill meanwhile ends it without one.
func TestStartOnFullDisk(t *testing.T) {
	for _, kill := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			disk := &fullDisk{Store: w.store}
			disk.full.Store(true)
			w.store = disk
			leases := &pool{}
			j := &journal{}
			w.hooks = []taskrunner.HookFunc{leases.hook(newDeath(0)), j.hook("after")}
			a := w.start()
			time.Sleep(time.Hour)
			require.Zero(t, w.fake.Count(drivertest.Start))
			require.Zero(t, j.count("after prestart"), "the chain waits for the first hook's state")
			if kill {
				require.ErrorIs(t, a.Kill(t.Context(), taskrunner.KillRequest{}), taskrunner.ErrNotDurable)
			}
			time.Sleep(time.Minute)
			disk.full.Store(false)
			time.Sleep(10 * time.Second)
			if !kill {
				a.phase(taskrunner.Running)
				a.killNow()
			}
			a.end()
			require.Equal(t, map[bool]int{false: 1, true: 0}[kill], w.fake.Lives())
			require.Empty(t, leases.out())
		})
	}
}

// An agent that ends while the disk fails finds the task again and its exit too.
func TestDetachOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Minute, 0))
		mem := w.store
		disk := &fullDisk{Store: mem}
		w.store = disk
		a := w.start()
		disk.full.Store(true)
		time.Sleep(time.Hour)
		require.False(t, a.Snapshot().Durable)
		a.detach()
		w.fake.Forget()
		w.store = mem
		s := w.start().end()
		require.False(t, s.Failed)
		require.Equal(t, 1, w.fake.Lives())
		require.Equal(t, "Received, Task Setup, Started, Terminated", strings.Join(w.kinds.list(), ", "))
	})
}

// Checkpoint tells a hook that its state is not on disk.
func TestCheckpointOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		disk := &fullDisk{Store: w.store}
		disk.full.Store(true)
		w.store = disk
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[counter]{Name: "h",
			Prestart: func(_ context.Context, r *taskrunner.Request, s *counter) (c taskrunner.Contribution, err error) {
				s.N = 1
				if err := r.Checkpoint(); err != nil {
					return c, driver.Recoverable(err)
				}
				return c, nil
			}})}
		a := w.start()
		time.Sleep(time.Minute)
		disk.full.Store(false)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		require.Equal(t, counter{1}, loadState(t, w.store, "h"))
		a.killNow()
		a.end()
	})
}

// fullDisk fails every Update while it is full.
type fullDisk struct {
	state.Store
	full  flag
	tries counter64
}

func (d *fullDisk) Update(fn func(state.Tx) error) error {
	d.tries.Add(1)
	if d.full.Load() {
		return errors.Join(state.ErrCommit, syscall.ENOSPC)
	}
	return d.Store.Update(fn)
}

func (d *fullDisk) Commits() int64 { return commits(d.Store) }
