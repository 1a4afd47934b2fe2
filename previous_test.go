// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// successor is an alloc that replaces another and takes its disk.
func successor(id, previous string, modify uint64) *spec.Alloc {
	al := alloc(id, modify, spec.JobService)
	al.PreviousAlloc = previous
	al.Settings.Disk.Sticky = true
	return al
}

func leaveData(t *testing.T, n *node, id, text string) {
	dir, ok := n.Dir(id)
	require.True(t, ok)
	require.NoError(t, os.WriteFile(filepath.Join(dir.Shared(), "data", "db"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir.Task("t").Local, "own"), []byte(text), 0o600))
}

func requireData(t *testing.T, n *node, id, text string) {
	t.Helper()
	dir, ok := n.Dir(id)
	require.True(t, ok)
	for _, name := range []string{"alloc/data/db", "t/local/own"} {
		data, err := os.ReadFile(filepath.Join(dir.Path(), name))
		if text == "" {
			require.ErrorIs(t, err, os.ErrNotExist)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, text, string(data))
	}
}

// The new alloc of a slot starts when the old one is over and has its data; the old
// one is kept until then, also by an agent that is restarted in between.
func TestPreviousAlloc(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		f := fake()
		n := start(t, config(t, f))
		old := alloc("old", 1, spec.JobService)
		n.apply(1, old)
		n.status("old", allocrunner.Running)
		leaveData(t, n, "old", "rows")

		release := f.Hang(drivertest.Stop)
		n.apply(2, successor("new", "old", 2))
		n.until("old", "being stopped", func(s AllocStatus, _ bool) bool { return s.Tasks["t"].Phase == taskrunner.Stopping })
		require.Equal(t, 1, f.Lives())
		if restarted {
			n.stop()
			release()
			n = start(t, n.cfg)
			require.Equal(t, 1, f.Lives())
			n.apply(2, successor("new", "old", 2))
		} else {
			release()
		}
		n.status("new", allocrunner.Running)
		requireData(t, n, "new", "rows")
		n.absent("old")
		require.Equal(t, 2, f.Lives())
		n = n.again()
		requireData(t, n, "new", "rows")
		n.apply(3, successor("third", "new", 3))
		n.status("third", allocrunner.Running)
		requireData(t, n, "third", "rows")
		n.apply(4)
		n.absent("third")
		f.Check(t)
	}
}

// A wait for the previous alloc ends with a stop of the new one, and the old one
// is collected then.
func TestPreviousAllocStopEndsWait(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	old := alloc("old", 1, spec.JobService)
	n.apply(1, old)
	n.status("old", allocrunner.Running)
	al := successor("new", "old", 2)
	n.apply(2, old, al)
	n.until("new", "waiting", func(s AllocStatus, _ bool) bool { return s.Status == allocrunner.Pending })
	n.apply(3, old, stopped(al, 3))
	n.over("new")
	require.Equal(t, 1, f.Lives())
	n.apply(4)
	n.absent("old")
	n.absent("new")
}

// Allocs that were replaced before they could start: the last one waits for the
// first, which runs, and takes its data. The one between is refused, or waits
// itself; updates of it change nothing.
func TestPreviousLine(t *testing.T) {
	for name, between := range map[string]func(*spec.Alloc){
		"waits":   func(*spec.Alloc) {},
		"refused": func(al *spec.Alloc) { al.Tasks[0].Driver = "none" },
	} {
		t.Run(name, func(t *testing.T) {
			f := fake()
			n := start(t, config(t, f))
			n.apply(1, alloc("one", 1, spec.JobService))
			n.status("one", allocrunner.Running)
			leaveData(t, n, "one", "rows")
			release := f.Hang(drivertest.Stop)
			two := successor("two", "one", 2)
			between(two)
			_ = n.Apply(t.Context(), Desired{Index: 2, Full: true, Allocs: []*spec.Alloc{two}})
			n.apply(3, successor("three", "two", 3))
			n.until("three", "waiting", func(s AllocStatus, _ bool) bool {
				return slices.ContainsFunc(s.Tasks["t"].Events, func(ev taskrunner.Event) bool {
					return strings.Contains(ev.Attrs["message"], "Waiting for the end of alloc ")
				})
			})
			require.Equal(t, 1, f.Lives())
			n.stop()
			release()
			n = start(t, n.cfg)
			n.apply(3, successor("three", "two", 3))
			n.status("three", allocrunner.Running)
			require.Equal(t, 2, f.Lives())
			requireData(t, n, "three", "rows")
			n.absent("one")
			n.absent("two")
			n.apply(4)
			n.absent("three")
			f.Check(t)
		})
	}
}

// What could not be taken over is not lost: it is kept for the next one.
func TestPreviousTakeOverFails(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	occupied := true
	cfg.AllocHooks = func(std []allocrunner.HookFunc) []allocrunner.HookFunc {
		return append(std, func(al *spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[struct{}]{Name: "occupy", Stage: allocrunner.StageDirs + 1,
				Prerun: func(_ context.Context, r *allocrunner.Request, _ *struct{}) error {
					if r.Alloc.ID != "two" || !occupied {
						return nil
					}
					return os.WriteFile(filepath.Join(r.Dir.Shared(), "data", "mine"), nil, 0o600)
				}}, nil
		})
	}
	n := start(t, cfg)
	n.apply(1, alloc("one", 1, spec.JobService))
	n.status("one", allocrunner.Running)
	leaveData(t, n, "one", "rows")
	n.apply(2, successor("two", "one", 2))
	require.Contains(t, n.over("two").Description, "there is data already")
	n.apply(3, successor("three", "one", 3)) // the scheduler tries again
	n.status("three", allocrunner.Running)
	requireData(t, n, "three", "rows")
	n.absent("one")
}

// Whoever comes after whom is settled when they come; a circle is an error.
func TestPreviousCircle(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, successor("a", "b", 1), successor("b", "a", 1), successor("c", "a", 1))
	for _, id := range []string{"a", "b"} {
		s := n.over(id)
		require.Equal(t, allocrunner.Failed, s.Status)
	}
	n.status("c", allocrunner.Running)
	require.Equal(t, 1, f.Lives())
}

// An update in place does not change what an alloc takes over.
func TestPreviousUpdatedWhileWaiting(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	old := alloc("old", 1, spec.JobService)
	n.apply(1, old)
	n.status("old", allocrunner.Running)
	leaveData(t, n, "old", "rows")
	release := f.Hang(drivertest.Stop)
	n.apply(2, successor("new", "old", 2))
	changed := successor("new", "", 3)
	changed.Settings.Disk.Sticky, changed.Canary = false, true
	n.apply(3, changed)
	n.until("new", "updated", func(s AllocStatus, _ bool) bool { return s.ModifyIndex == 3 })
	release()
	n.status("new", allocrunner.Running)
	requireData(t, n, "new", "rows")
	n.absent("old")
}

// A canary runs beside the alloc it may replace, and one whose previous is not
// here, or was never here, starts at once.
func TestPreviousAllocNoWait(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	old := alloc("old", 1, spec.JobService)
	canary, stray := successor("canary", "old", 2), successor("stray", "elsewhere", 2)
	canary.Canary = true
	n.apply(1, old)
	n.status("old", allocrunner.Running)
	n.apply(2, old, canary, stray)
	n.status("canary", allocrunner.Running)
	n.status("stray", allocrunner.Running)
	n.status("old", allocrunner.Running)
}

// A finished alloc that MaxFinished would remove is kept for the one that takes its
// disk, which comes later.
func TestPreviousAllocNotCollected(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	cfg := config(t, f)
	n := start(t, cfg)
	n.apply(1, alloc("old", 1, spec.JobBatch))
	n.over("old")
	leaveData(t, n, "old", "rows")
	release := f.Hang(drivertest.Start)
	n.apply(2, successor("new", "old", 2))
	n.until("new", "holding the data", func(AllocStatus, bool) bool {
		dir, ok := n.Dir("new")
		if !ok {
			return false
		}
		_, err := os.Stat(filepath.Join(dir.Shared(), "data", "db"))
		return err == nil
	})
	release()
	n.absent("old")
	requireData(t, n, "new", "rows")
}

// A disk comes from another node as that node's agent sent it.
func TestMigrateFromOtherNode(t *testing.T) {
	f := fake()
	a := start(t, config(t, f))
	old := alloc("old", 1, spec.JobService)
	a.apply(1, old)
	a.status("old", allocrunner.Running)
	leaveData(t, a, "old", "rows")
	require.ErrorIs(t, a.SendDisk(t.Context(), "old", io.Discard), ErrRunning)
	require.ErrorIs(t, a.SendDisk(t.Context(), "none", io.Discard), ErrNoAlloc)
	a.apply(1, old, successor("here", "old", 1))
	a.apply(2, stopped(old, 2), stopped(successor("here", "old", 1), 2))
	a.over("old")
	a.over("here")
	require.ErrorContains(t, a.SendDisk(t.Context(), "old", io.Discard), "goes to alloc here of this node")
	a.apply(3, stopped(old, 3))
	a.absent("here")

	for name, c := range map[string]struct {
		stream func(context.Context, *spec.Alloc) (io.ReadCloser, error)
		data   string
		says   string
	}{
		"whole": {func(ctx context.Context, al *spec.Alloc) (io.ReadCloser, error) {
			r, w := io.Pipe()
			go func() { w.CloseWithError(a.SendDisk(ctx, al.PreviousAlloc, w)) }()
			return r, nil
		}, "rows", ""},
		"cut off": {func(ctx context.Context, al *spec.Alloc) (io.ReadCloser, error) {
			var buf bytes.Buffer
			err := a.SendDisk(ctx, al.PreviousAlloc, &buf)
			return io.NopCloser(bytes.NewReader(buf.Bytes()[:buf.Len()/2])), err
		}, "", "start with an empty one"},
		"refused": {func(context.Context, *spec.Alloc) (io.ReadCloser, error) {
			return nil, errors.New("no such peer")
		}, "", "no such peer"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, f)
			cfg.Storage.Migrate = c.stream
			b := start(t, cfg)
			al := successor("new", "old", 1)
			al.Settings.Disk.Migrate = true
			b.apply(1, al)
			s := b.status("new", allocrunner.Running)
			requireData(t, b, "new", c.data)
			told := slices.ContainsFunc(s.Tasks["t"].Events, func(ev taskrunner.Event) bool {
				return c.says != "" && strings.Contains(ev.Attrs["message"], c.says)
			})
			require.Equal(t, c.says != "", told, s.Tasks["t"].Events)
			b.apply(2)
			b.absent("new")
		})
	}
}

// A stream that hangs ends with a stop of the alloc.
func TestMigrateStopEndsStream(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	r, w := io.Pipe()
	defer w.Close()
	asked := make(chan struct{})
	cfg.Storage.Migrate = func(context.Context, *spec.Alloc) (io.ReadCloser, error) {
		close(asked)
		return r, nil
	}
	n := start(t, cfg)
	al := successor("new", "old", 1)
	al.Settings.Disk.Migrate = true
	n.apply(1, al)
	<-asked
	n.apply(2, stopped(al, 2))
	n.over("new")
	require.Zero(t, f.Lives())
}
