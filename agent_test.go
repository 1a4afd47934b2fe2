// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// node is an agent under test over a Fake driver, which outlives it as tasks do.
type node struct {
	*Agent
	t    *testing.T
	cfg  Config
	stop func() // detach and wait
}

func fake() *drivertest.Fake {
	return &drivertest.Fake{Capabilities: &driver.Capabilities{SendSignals: true, IdempotentStart: true, CollectsLogs: true}}
}

func config(t *testing.T, f *drivertest.Fake) Config {
	dir := t.TempDir()
	cfg := Config{DataDir: filepath.Join(dir, "data"), RuntimeDir: filepath.Join(dir, "run"), NoCgroups: true,
		Drivers: []DriverFunc{InProcess(f)}}
	t.Cleanup(func() { leaveNothing(t, cfg) })
	return cfg
}

// leaveNothing ends what a test left running and checks that no mount and no
// directory of an alloc is left.
func leaveNothing(t *testing.T, cfg Config) {
	a, err := New(cfg)
	if errors.Is(err, state.ErrLocked) {
		t.Fatal("an agent still runs")
	}
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	run, detach := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(run) }()
	<-a.loaded
	require.NoError(t, a.Apply(ctx, Desired{Index: 1 << 40, Epoch: a.runnerOf.progress.Epoch, Full: true}))
	for changed := a.Changed(); len(a.Allocs()) > 0; changed = a.Changed() {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("allocs are left: %+v", a.Allocs())
		}
	}
	detach()
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool { return len(supervisors(cfg.RuntimeDir)) == 0 }, 10*time.Second, 5*time.Millisecond,
		"a supervisor is left")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), cfg.DataDir)
	ids, err := allocdir.List(filepath.Join(cfg.DataDir, "alloc"))
	require.NoError(t, err)
	require.Empty(t, ids)
}

// supervisors are the processes that serve scopes below a runtime directory.
func supervisors(dir string) (pids []string) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if b, _ := os.ReadFile(name); strings.HasPrefix(string(b), "nodekeep-supervisor\x00"+dir+"/") {
			pids = append(pids, filepath.Base(filepath.Dir(name)))
		}
	}
	return pids
}

// start runs an agent until the test ends or stop is called.
func start(t *testing.T, cfg Config, edit ...func(*Agent)) *node {
	t.Helper()
	a, err := New(cfg)
	require.NoError(t, err)
	for _, f := range edit {
		f(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	n := &node{Agent: a, t: t, cfg: cfg}
	n.stop = func() {
		n.stop = func() {}
		cancel()
		require.NoError(t, <-ended)
	}
	t.Cleanup(func() { n.stop() })
	select {
	case <-a.Ready():
	case err := <-ended:
		t.Fatalf("Run ended: %v", err)
	}
	return n
}

// again detaches and starts a new agent on the same directory.
func (n *node) again(edit ...func(*Agent)) *node {
	n.t.Helper()
	n.stop()
	return start(n.t, n.cfg, edit...)
}

func (n *node) apply(index uint64, allocs ...*spec.Alloc) {
	n.t.Helper()
	require.NoError(n.t, n.Apply(n.t.Context(), Desired{Index: index, Full: true, Allocs: allocs}))
}

// until waits for an alloc to be as said.
func (n *node) until(id string, what string, ok func(AllocStatus, bool) bool) AllocStatus {
	n.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		changed := n.Changed()
		s, found := n.Alloc(id)
		if ok(s, found) {
			return s
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("alloc %s is not %s: %v %+v", id, what, found, s)
		}
	}
}

func (n *node) status(id string, want allocrunner.Status) AllocStatus {
	n.t.Helper()
	return n.until(id, string(want), func(s AllocStatus, _ bool) bool { return s.Status == want })
}

func (n *node) over(id string) AllocStatus {
	n.t.Helper()
	return n.until(id, "over", func(s AllocStatus, _ bool) bool { return s.Done })
}

func (n *node) absent(id string) {
	n.t.Helper()
	n.until(id, "absent", func(_ AllocStatus, found bool) bool { return !found })
}

func alloc(id string, modify uint64, typ spec.JobType) *spec.Alloc {
	return &spec.Alloc{ID: id, JobID: "job", JobType: typ, Group: "g", ModifyIndex: modify, CreateTime: time.Unix(int64(modify), 0),
		Tasks: []spec.Task{{Name: "t", Driver: "fake", KillTimeout: time.Second}}}
}

func stopped(al *spec.Alloc, modify uint64) *spec.Alloc {
	c := *al
	c.DesiredStatus, c.ModifyIndex = spec.DesiredStop, modify
	return &c
}

func ends(code int) func(int, driver.TaskConfig) drivertest.Life {
	return func(int, driver.TaskConfig) drivertest.Life {
		return drivertest.Life{Exit: driver.ExitResult{Code: code}}
	}
}

func TestRunAndStop(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	require.Equal(t, 1, f.Lives())
	n.apply(2, stopped(al, 2))
	n.over("a")
	s, _ := n.Alloc("a")
	require.Equal(t, allocrunner.Complete, s.Status)
	n.apply(3)
	n.absent("a")
	ids, err := allocdir.List(filepath.Join(n.cfg.DataDir, "alloc"))
	require.NoError(t, err)
	require.Empty(t, ids)
	f.Check(t)
}

func TestAgentGoesAndComes(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	was := n.status("a", allocrunner.Running)
	n = n.again()
	is, ok := n.Alloc("a")
	require.True(t, ok)
	require.Equal(t, allocrunner.Running, is.Status, "known to run as soon as the agent is ready")
	require.Equal(t, was.Tasks["t"].Handle.TaskID, is.Tasks["t"].Handle.TaskID)
	require.Equal(t, 1, f.Lives())
	n.apply(1, al)
	require.Equal(t, 1, f.Lives())
	n.apply(2)
	n.absent("a")
	f.Check(t)
}

// FF-001: what has finished does not run again: not after a restart of the
// agent, not after its collection, not if the list still wants it.
func TestFinishedNeverRunsAgain(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	cfg := config(t, f)
	cfg.MaxFinished = -1
	n := start(t, cfg)
	al := alloc("a", 1, spec.JobBatch)
	n.apply(1, al)
	n.until("a", "collected", func(s AllocStatus, _ bool) bool { return s.Gone })
	for index := uint64(1); index < 4; index++ {
		s, ok := n.Alloc("a")
		require.True(t, ok)
		require.Equal(t, allocrunner.Complete, s.Status)
		n.apply(index, al)
		n = n.again()
	}
	require.Equal(t, 1, f.Lives())
	n.apply(9)
	n.absent("a")
	f.Check(t)
}

// FF-001 again: the agent dies right after the exit, before the collection.
func TestFinishedBeforeCrash(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobBatch))
	n.over("a")
	recovered := f.Count(drivertest.Recover)
	n = n.again()
	n.apply(1, alloc("a", 1, spec.JobBatch))
	require.Equal(t, allocrunner.Complete, n.over("a").Status)
	require.Equal(t, 1, f.Lives())
	require.Equal(t, recovered, f.Count(drivertest.Recover))
}

// FF-004: a task lost while the agent was away waits for the first list.
func TestLostTaskWaitsForContact(t *testing.T) {
	for _, typ := range []spec.JobType{spec.JobService, spec.JobSystem} {
		t.Run(string(typ), func(t *testing.T) {
			f := fake()
			n := start(t, config(t, f))
			al := alloc("a", 1, typ)
			n.apply(1, al)
			n.status("a", allocrunner.Running)
			n.stop()
			f.Reboot()
			n = start(t, n.cfg)
			if typ == spec.JobService {
				n.until("a", "waiting", func(s AllocStatus, _ bool) bool {
					for _, ev := range s.Tasks["t"].Events {
						if ev.Kind == taskrunner.AwaitingContact {
							return true
						}
					}
					return false
				})
				require.Equal(t, 1, f.Lives())
				n.apply(2, stopped(al, 2))
				n.over("a")
				require.Equal(t, 1, f.Lives(), "moved elsewhere meanwhile: never started")
				return
			}
			n.until("a", "started again", func(s AllocStatus, _ bool) bool { return f.Lives() == 2 })
		})
	}
}

func TestStaleList(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(25, alloc("a", 10, spec.JobService), alloc("b", 11, spec.JobService))
	n.status("a", allocrunner.Running)
	n.status("b", allocrunner.Running)
	err := n.Apply(t.Context(), Desired{Index: 18, Allocs: []*spec.Alloc{alloc("a", 10, spec.JobService)}})
	require.ErrorIs(t, err, ErrStale)
	n = n.again()
	err = n.Apply(t.Context(), Desired{Index: 18, Allocs: []*spec.Alloc{alloc("a", 10, spec.JobService)}})
	require.ErrorIs(t, err, ErrStale, "how far the list was followed survives")
	n.apply(25, alloc("a", 10, spec.JobService)) // FF-003: an equal index counts in full
	n.absent("b")
	s, _ := n.Alloc("a")
	require.Equal(t, allocrunner.Running, s.Status)
	require.Equal(t, 2, f.Lives())
}

func TestSecondAgentIsLockedOut(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	began := time.Now()
	_, err := New(n.cfg)
	require.ErrorIs(t, err, state.ErrLocked)
	require.Less(t, time.Since(began), 10*time.Second, "6 s, and what a busy machine adds")
	n.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n = n.again() // the first one gone, it opens
	require.Len(t, n.Allocs(), 1)
}

func TestTwoAgentsInOneProcess(t *testing.T) {
	f, g := fake(), fake()
	n, m := start(t, config(t, f)), start(t, config(t, g))
	n.apply(1, alloc("a", 1, spec.JobService))
	m.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	m.status("a", allocrunner.Running)
	n.apply(2)
	n.absent("a")
	s, _ := m.Alloc("a")
	require.Equal(t, allocrunner.Running, s.Status)
}

func TestRefusedAllocs(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	unknown := alloc("unknown", 1, spec.JobService)
	unknown.Tasks[0].Driver = "nosuch"
	invalid := alloc("invalid", 1, spec.JobService)
	invalid.Tasks[0].Restart = &spec.RestartPolicy{Attempts: -1, Mode: "sometimes"}
	err := n.Apply(t.Context(), Desired{Index: 1, Allocs: []*spec.Alloc{unknown, alloc("good", 1, spec.JobService), invalid, nil, alloc("../x", 1, spec.JobService)}})
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "nosuch")
	require.ErrorContains(t, err, "restart.mode")
	n.status("good", allocrunner.Running)
	for _, id := range []string{"unknown", "invalid"} {
		s, ok := n.Alloc(id)
		require.True(t, ok)
		require.Equal(t, allocrunner.Failed, s.Status)
		require.NotEmpty(t, s.Description)
	}
	require.NoDirExists(t, filepath.Join(n.cfg.DataDir, "alloc", "invalid"))
	n.apply(2, alloc("good", 1, spec.JobService), alloc("unknown", 1, spec.JobService)) // mended
	n.status("unknown", allocrunner.Running)
	_, ok := n.Alloc("invalid")
	require.False(t, ok)
}

// D4: an unreadable record costs one alloc, and its id runs again only after
// everything that carried it has gone.
func TestUnreadableRecord(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n.status("b", allocrunner.Running)
	n = n.again(func(a *Agent) {
		require.NoError(t, a.store.Update(func(tx state.Tx) error {
			return tx.Put(allocsPath.Join("a"), "alloc", []byte("garbage"))
		}))
	})
	s, ok := n.Alloc("a")
	require.True(t, ok)
	require.Equal(t, allocrunner.Failed, s.Status)
	require.NotEmpty(t, s.Quarantined)
	require.NoDirExists(t, filepath.Join(n.cfg.DataDir, "alloc", "a"))
	s, _ = n.Alloc("b")
	require.Equal(t, allocrunner.Running, s.Status)
	n = n.again()
	s, ok = n.Alloc("a")
	require.True(t, ok, "told until it leaves the list")
	require.NotEmpty(t, s.Quarantined)
	n.apply(1, alloc("a", 1, spec.JobService), alloc("b", 1, spec.JobService))
	require.ElementsMatch(t, []string{"a/t/0", "b/t/0"}, f.Alive(), "its task is the driver's to end; see the tests with processes")
	n.apply(2, alloc("b", 1, spec.JobService))
	n.absent("a")
	n = n.again()
	n.absent("a")
	f.Exit("a/t/0", driver.ExitResult{})
	require.NoError(t, f.Destroy(t.Context(), driver.TaskRef{ID: "a/t/0"}, true))
	n.apply(3, alloc("a", 3, spec.JobService), alloc("b", 1, spec.JobService))
	n.status("a", allocrunner.Running) // and only then may that id start again
}

// FF-018: directory and record disagree.
func TestDirectoryAndRecordDisagree(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n.stop()
	root := filepath.Join(n.cfg.DataDir, "alloc")
	dir, err := allocdir.New(allocdir.Config{Root: root, AllocID: "a"})
	require.NoError(t, err)
	require.NoError(t, dir.Destroy(t.Context()))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "stranger", "alloc"), 0o755))
	f.Reboot() // the task is to start again: not in a bare directory
	n = start(t, n.cfg)
	n.apply(1, alloc("a", 1, spec.JobService))
	n.until("a", "running again", func(s AllocStatus, _ bool) bool { return f.Lives() == 2 && s.Status == allocrunner.Running })
	require.DirExists(t, filepath.Join(root, "a", "t", "local"))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(root, "stranger"))
		return errors.Is(err, os.ErrNotExist)
	}, 10*time.Second, 5*time.Millisecond)
}

// FF-022: an alloc that is slow to die is not collected before it is dead.
func TestSlowDeathIsNotCollected(t *testing.T) {
	f := fake()
	f.Script = func(int, driver.TaskConfig) drivertest.Life {
		return drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever}
	}
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	n.apply(2, stopped(al, 2))
	require.NoError(t, n.GC(t.Context()))
	s, ok := n.Alloc("a")
	require.True(t, ok)
	require.False(t, s.Gone)
	require.DirExists(t, filepath.Join(n.cfg.DataDir, "alloc", "a"))
	n.over("a")
	require.NoError(t, n.GC(t.Context()))
	s, _ = n.Alloc("a")
	require.True(t, s.Gone)
	f.Check(t)
}

func TestOldestFinishedGoFirst(t *testing.T) {
	f := fake()
	f.Script = ends(0)
	cfg := config(t, f)
	cfg.MaxFinished = 2
	n := start(t, cfg)
	var all []*spec.Alloc
	for i := range 5 {
		al := alloc(fmt.Sprint("a", i), uint64(i+1), spec.JobBatch)
		all = append(all, al)
		n.apply(uint64(i+1), all...)
		n.over(al.ID)
	}
	for i := range 5 {
		n.until(fmt.Sprint("a", i), "as wanted", func(s AllocStatus, _ bool) bool { return s.Gone == (i < 3) })
	}
}

// breakable is a store whose disk can be full.
type breakable struct {
	state.Store
	broken atomic.Bool
}

func (b *breakable) Update(fn func(state.Tx) error) error {
	if b.broken.Load() {
		return fmt.Errorf("%w: no space left on device", state.ErrCommit)
	}
	return b.Store.Update(fn)
}

// D18: with a broken disk nothing new starts, but a stop is carried out, and
// all is told once the disk is back.
func TestBrokenDisk(t *testing.T) {
	f := fake()
	disk := &breakable{}
	n := start(t, config(t, f), func(a *Agent) {
		disk.Store = a.store
		a.store = disk
		a.box = a.newBox()
	})
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	disk.broken.Store(true)
	err := n.Apply(t.Context(), Desired{Index: 2, Full: true, Allocs: []*spec.Alloc{stopped(al, 2), alloc("b", 2, spec.JobService)}})
	require.ErrorContains(t, err, "no space left")
	require.Eventually(t, func() bool { return len(f.Alive()) == 0 }, 10*time.Second, time.Millisecond, "the stop is carried out")
	_, ok := n.Alloc("b")
	require.False(t, ok)
	disk.broken.Store(false)
	n.apply(2, stopped(al, 2), alloc("b", 2, spec.JobService))
	n.over("a")
	n.status("b", allocrunner.Running)
}

func TestEventsSurviveAndFollow(t *testing.T) {
	f := fake()
	f.Script = ends(3)
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobBatch)
	al.Tasks[0].Restart = &spec.RestartPolicy{Mode: spec.RestartFail}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n.apply(1, al)
	var kinds []taskrunner.Kind
	var last uint64
	for ev, err := range n.Events(ctx, 0) {
		require.NoError(t, err)
		require.Greater(t, ev.Token, last)
		last = ev.Token
		kinds = append(kinds, ev.Event.Kind)
		if ev.Event.Kind == taskrunner.NotRestarting {
			break
		}
	}
	want := []taskrunner.Kind{taskrunner.Received, taskrunner.TaskSetup, taskrunner.Started, taskrunner.Terminated, taskrunner.NotRestarting}
	require.Equal(t, want, kinds)
	n.over("a")
	n = n.again()
	old, err := n.EventsSince(0, 0)
	require.NoError(t, err)
	require.Equal(t, len(want), len(old))
	require.Equal(t, "a", old[0].AllocID)
	require.Equal(t, "t", old[0].Task)
}

func TestConfigFaultsAreAllTold(t *testing.T) {
	_, err := New(Config{Scope: "galaxy", MaxKillTimeout: -1, MaxFinished: -2, SupervisorExe: "/no/such/file"})
	var ce *ConfigError
	require.ErrorAs(t, err, &ce)
	for _, field := range []string{"DataDir", "Scope", "MaxKillTimeout", "MaxFinished", "SupervisorExe"} {
		require.ErrorContains(t, err, "Config."+field)
	}
}

func TestNewLeavesNothingWhenItFails(t *testing.T) {
	f := fake()
	cfg := config(t, f)
	cfg.Drivers = append(cfg.Drivers, InProcess(f)) // the same name twice
	_, err := New(cfg)
	require.ErrorContains(t, err, "taken")
	cfg.Drivers = cfg.Drivers[:1]
	a, err := New(cfg)
	require.NoError(t, err, "the lock was given back")
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, a.Run(t.Context()), ErrClosed)
	require.ErrorIs(t, a.Apply(t.Context(), Desired{}), ErrClosed)
}
