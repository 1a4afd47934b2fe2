// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

// listAgent is an agent that only remembers what was wanted. It refuses what an
// agent refuses: an index that falls.
type listAgent struct {
	last   nodekeep.Desired
	failed map[string]bool
	gone   map[string]bool
	over   map[string]nodekeep.AllocStatus // what the agent knows of other allocs, or knows better
	err    error
}

func (l *listAgent) Apply(_ context.Context, d nodekeep.Desired) error {
	if l.err != nil {
		return l.err
	}
	if d.Epoch == l.last.Epoch && d.Index < l.last.Index {
		return nodekeep.ErrStale
	}
	l.last = d
	return nil
}

func (l *listAgent) Allocs() (list []nodekeep.AllocStatus) {
	for _, al := range l.last.Allocs {
		st, _ := l.Alloc(al.ID)
		list = append(list, st)
	}
	return list
}

func (l *listAgent) Alloc(id string) (st nodekeep.AllocStatus, ok bool) {
	if st, ok := l.over[id]; ok {
		return st, true
	}
	for _, al := range l.last.Allocs {
		if al.ID == id {
			st.Alloc, st.Status = al, allocrunner.Running
			st.Gone = l.gone[id]
			if l.failed[id] {
				st.Status = allocrunner.Failed
			}
			return st, true
		}
	}
	return st, false
}

func (l *listAgent) Drivers() []nodekeep.DriverStatus {
	return []nodekeep.DriverStatus{{Name: "raw_exec", Detected: true, Healthy: true}}
}

// wanted is what the agent was last told, as "place desired" by id.
func (l *listAgent) wanted() map[string]string {
	m := map[string]string{}
	for _, al := range l.last.Allocs {
		m[al.ID] = place(al) + " " + string(al.DesiredStatus)
	}
	return m
}

func aJob(id, command string, count int) api.Job {
	j := api.Job{Namespace: "default", ID: id}
	for i := range count {
		al := &spec.Alloc{
			ID: strings.ReplaceAll(id+command, "/", "-") + string(rune('0'+i)), JobID: id, Group: "g", Index: i, Namespace: "default",
			Tasks: []spec.Task{{Name: "t", Driver: "raw_exec", Config: []byte(`{"command":"` + command + `"}`)}},
		}
		j.Allocs = append(j.Allocs, al.WithDefaults())
	}
	return j
}

func open(t *testing.T, dir string, agent *listAgent) *jobStore {
	t.Helper()
	s, err := openStore(dir, agent, hclog.NewNullLogger())
	require.NoError(t, err)
	require.NoError(t, s.Feed(t.Context()))
	return s
}

func TestStoreLife(t *testing.T) {
	dir, agent, ctx := t.TempDir(), &listAgent{failed: map[string]bool{}}, t.Context()
	s := open(t, dir, agent)
	first, err := applyIDs(ctx, s, []api.Job{aJob("web", "/a", 2), aJob("db", "/a", 1)})
	require.NoError(t, err)
	require.Len(t, first, 3)
	require.Len(t, agent.wanted(), 3)

	// The same again changes nothing.
	again, err := applyIDs(ctx, s, []api.Job{aJob("web", "/a", 2)})
	require.NoError(t, err)
	require.Equal(t, first[:2], again)
	require.Len(t, agent.wanted(), 3)

	// Other work in the same places: the old ones stop, new ones come.
	second, err := applyIDs(ctx, s, []api.Job{aJob("web", "/b", 2)})
	require.NoError(t, err)
	require.NotContains(t, first, second[0])
	require.Equal(t, "g[0] stop", agent.wanted()[first[0]])
	require.Equal(t, "g[0] run", agent.wanted()[second[0]])

	// And back: an id is never used twice; of each place one stopped alloc stays.
	third, err := applyIDs(ctx, s, []api.Job{aJob("web", "/a", 1)})
	require.NoError(t, err)
	require.NotContains(t, first, third[0])
	require.NotContains(t, agent.wanted(), first[0], "the one before the last leaves the list")
	require.Equal(t, "g[0] stop", agent.wanted()[second[0]])
	require.Equal(t, "g[1] stop", agent.wanted()[second[1]], "no longer part of the job")

	// Stopped by hand: stays so, until it is applied again. So does one that failed.
	require.NoError(t, s.Stop(ctx, third[0]))
	require.NoError(t, s.Stop(ctx, third[0]))
	require.Equal(t, "g[0] stop", agent.wanted()[third[0]])
	fourth, err := applyIDs(ctx, s, []api.Job{aJob("web", "/a", 1)})
	require.NoError(t, err)
	require.NotEqual(t, third, fourth)
	agent.failed[fourth[0]] = true
	fifth, err := applyIDs(ctx, s, []api.Job{aJob("web", "/a", 1)})
	require.NoError(t, err)
	require.NotEqual(t, fourth, fifth)
	require.ErrorIs(t, s.Stop(ctx, "nobody"), nodekeep.ErrNoAlloc)

	// A restart knows all of it, under the same index or a later one.
	before, index := agent.wanted(), agent.last.Index
	agent.last.Allocs = nil
	s = open(t, dir, agent)
	require.Equal(t, before, agent.wanted())
	require.GreaterOrEqual(t, agent.last.Index, index)
	require.NoError(t, s.Clear(ctx))
	require.Empty(t, agent.wanted())
	require.Greater(t, agent.last.Index, index)
	open(t, dir, agent)
	require.Empty(t, agent.wanted())
}

// applyIDs applies jobs and returns the ids of the allocs that belong to them now.
func applyIDs(ctx context.Context, s *jobStore, jobs []api.Job) (ids []string, err error) {
	list, err := s.Apply(ctx, jobs)
	for _, al := range list {
		if al.Change != api.ChangeStopped {
			ids = append(ids, al.ID)
		}
	}
	return ids, err
}

// TestStoreForgets: what was stopped and collected leaves the store with the next
// change; what completed and was collected only when asked, for it must not run
// a second time.
func TestStoreForgets(t *testing.T) {
	dir, agent, ctx := t.TempDir(), &listAgent{gone: map[string]bool{}}, t.Context()
	s := open(t, dir, agent)
	complete := aJob("complete", "/a", 1)
	complete.Allocs[0].JobType = spec.JobBatch
	ids, err := applyIDs(ctx, s, []api.Job{aJob("stopped", "/a", 1), complete})
	require.NoError(t, err)
	require.NoError(t, s.Stop(ctx, ids[0]))
	agent.gone[ids[0]], agent.gone[ids[1]] = true, true
	_, err = applyIDs(ctx, s, []api.Job{aJob("other", "/a", 1)})
	require.NoError(t, err)
	require.NotContains(t, agent.wanted(), ids[0])
	require.Contains(t, agent.wanted(), ids[1])
	require.NoFileExists(t, filepath.Join(dir, fileName("default", "stopped")))
	same, err := applyIDs(ctx, s, []api.Job{complete})
	require.NoError(t, err)
	require.Equal(t, ids[1:], same)
	require.NoError(t, s.Forget(ctx))
	require.NotContains(t, agent.wanted(), ids[1])
	require.Len(t, agent.wanted(), 1)
	require.Equal(t, []string{"default.other.json", "index"}, names(t, dir))
	index := agent.last.Index
	require.NoError(t, s.Forget(ctx))
	require.Equal(t, index, agent.last.Index, "nothing to do is not a change")
}

// TestStoreSpent: what the agent will not run again gets a new id, also where the
// store does not know why, or nothing at all.
func TestStoreSpent(t *testing.T) {
	over := func(status allocrunner.Status, ending allocrunner.Cause, gone bool) nodekeep.AllocStatus {
		return nodekeep.AllocStatus{Alloc: &spec.Alloc{}, Snapshot: allocrunner.Snapshot{Status: status, Ending: ending, Done: true}, Gone: gone}
	}
	for name, tt := range map[string]struct {
		typ   spec.JobType
		is    nodekeep.AllocStatus
		lost  bool // the store
		fresh bool
	}{
		"stopped, unwritten":            {spec.JobService, over(allocrunner.Complete, allocrunner.CauseKilled, false), false, true},
		"stopped, unwritten, collected": {spec.JobService, over(allocrunner.Complete, allocrunner.CauseKilled, true), false, true},
		"stopped batch":                 {spec.JobBatch, over(allocrunner.Complete, allocrunner.CauseKilled, false), false, true},
		"stopped batch, collected":      {spec.JobBatch, over(allocrunner.Complete, allocrunner.CauseKilled, true), false, true},
		"completed service":             {spec.JobService, over(allocrunner.Complete, "", false), false, true},
		"completed batch":               {spec.JobBatch, over(allocrunner.Complete, "", false), false, false},
		"completed batch, collected":    {spec.JobBatch, over(allocrunner.Complete, "", true), false, false},
		"failed batch":                  {spec.JobBatch, over(allocrunner.Failed, "", false), false, true},
		"runs":                          {spec.JobService, nodekeep.AllocStatus{Alloc: &spec.Alloc{}, Snapshot: allocrunner.Snapshot{Status: allocrunner.Running}}, false, false},
		"lost, stopped":                 {spec.JobService, over(allocrunner.Complete, allocrunner.CauseKilled, false), true, true},
		"lost, stopped, collected":      {spec.JobService, over(allocrunner.Complete, allocrunner.CauseKilled, true), true, true},
		"lost, batch, collected":        {spec.JobBatch, over(allocrunner.Complete, "", true), true, true},
		"lost, runs":                    {spec.JobService, nodekeep.AllocStatus{Alloc: &spec.Alloc{}, Snapshot: allocrunner.Snapshot{Status: allocrunner.Running}}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, agent := t.TempDir(), &listAgent{}
			s := open(t, dir, agent)
			job := aJob("web", "/a", 1)
			job.Allocs[0].JobType = tt.typ
			before := []string{job.Allocs[0].ID}
			if !tt.lost {
				var err error
				before, err = applyIDs(t.Context(), s, []api.Job{job})
				require.NoError(t, err)
			}
			agent.over = map[string]nodekeep.AllocStatus{before[0]: tt.is}
			after, err := applyIDs(t.Context(), s, []api.Job{job})
			require.NoError(t, err)
			require.Equal(t, tt.fresh, before[0] != after[0])
			require.Equal(t, "g[0] run", agent.wanted()[after[0]])
			again, err := applyIDs(t.Context(), s, []api.Job{job})
			require.NoError(t, err)
			require.Equal(t, after, again)
		})
	}
}

// TestStoreRefuses: what is wrong changes nothing, and all faults are told.
func TestStoreRefuses(t *testing.T) {
	dir, agent := t.TempDir(), &listAgent{}
	s := open(t, dir, agent)
	_, err := applyIDs(t.Context(), s, []api.Job{aJob("good", "/a", 1)})
	require.NoError(t, err)
	before, files := agent.wanted(), names(t, dir)

	unknown := aJob("bad", "/a", 1)
	unknown.Allocs[0].Tasks[0].Driver = "docker"
	invalid := aJob("worse", "/a", 2)
	invalid.Allocs[0].Tasks = nil
	invalid.Allocs[1].Index = 0
	_, err = applyIDs(t.Context(), s, []api.Job{aJob("other", "/a", 1), unknown, invalid, aJob("other", "/b", 1)})
	require.ErrorIs(t, err, api.ErrInvalid)
	require.ErrorContains(t, err, `unknown driver "docker": this node has raw_exec`)
	require.ErrorContains(t, err, "tasks")
	require.ErrorContains(t, err, "g[0] twice")
	require.ErrorContains(t, err, `job "other" is there twice`)
	require.Equal(t, before, agent.wanted())
	require.Equal(t, files, names(t, dir))
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// TestStoreDamaged: a file that cannot be read is moved aside, and what runs of
// its job goes on.
func TestStoreDamaged(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "half": `{"format":1,"namespace":"default","id":"we`, "text": "hello", "null alloc": `{"format":1,"namespace":"default","id":"web","allocs":[null]}`,
		"another's": `{"format":1,"namespace":"default","id":"db"}`, "no format": `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir, agent := t.TempDir(), &listAgent{}
			s := open(t, dir, agent)
			_, err := applyIDs(t.Context(), s, []api.Job{aJob("web", "/a", 2), aJob("good", "/a", 1)})
			require.NoError(t, err)
			before, index := agent.wanted(), agent.last.Index
			require.NoError(t, os.WriteFile(filepath.Join(dir, fileName("default", "web")), []byte(content), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "x.json.tmp"), []byte("x"), 0o600))
			s = open(t, dir, agent)
			require.Equal(t, before, agent.wanted())
			require.GreaterOrEqual(t, agent.last.Index, index)
			_, err = applyIDs(t.Context(), s, []api.Job{aJob("web", "/b", 1)})
			require.NoError(t, err)
			list := strings.Join(names(t, dir), " ")
			require.Contains(t, list, "web.json.corrupt-")
			require.NotContains(t, list, ".tmp")
		})
	}
}

func TestStoreNewer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, fileName("default", "web"))
	require.NoError(t, os.WriteFile(path, []byte(`{"format":2,"namespace":"default","id":"web"}`), 0o600))
	_, err := openStore(dir, &listAgent{}, hclog.NewNullLogger())
	require.ErrorContains(t, err, "newer nodekeep")
	require.FileExists(t, path)
}

// TestStoreLost: a store that is gone or came out of a backup begins a new epoch.
func TestStoreLost(t *testing.T) {
	dir, agent := t.TempDir(), &listAgent{}
	s := open(t, dir, agent)
	_, err := applyIDs(t.Context(), s, []api.Job{aJob("web", "/a", 1)})
	require.NoError(t, err)
	backup, err := os.ReadFile(filepath.Join(dir, "index"))
	require.NoError(t, err)
	_, err = applyIDs(t.Context(), s, []api.Job{aJob("web", "/b", 1)})
	require.NoError(t, err)
	epoch := agent.last.Epoch

	require.NoError(t, os.WriteFile(filepath.Join(dir, "index"), backup, 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, fileName("default", "web"))))
	open(t, dir, agent)
	require.NotEqual(t, epoch, agent.last.Epoch)
	epoch = agent.last.Epoch
	require.NoError(t, os.RemoveAll(dir))
	open(t, dir, agent)
	require.NotEqual(t, epoch, agent.last.Epoch)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index"), []byte("?"), 0o600))
	open(t, dir, agent)
}

// TestStoreDiskFull: a job that cannot be written is not half there.
func TestStoreDiskFull(t *testing.T) {
	dir, agent := t.TempDir(), &listAgent{}
	s := open(t, dir, agent)
	_, err := applyIDs(t.Context(), s, []api.Job{aJob("web", "/a", 1)})
	require.NoError(t, err)
	before := agent.wanted()
	// A directory where the second file is written: that one write fails.
	require.NoError(t, os.Mkdir(filepath.Join(dir, fileName("default", "zz")+".tmp"), 0o700))
	_, err = applyIDs(t.Context(), s, []api.Job{aJob("aa", "/a", 1), aJob("zz", "/a", 1)})
	require.Error(t, err)
	require.Equal(t, before, agent.wanted())
	s = open(t, dir, agent)
	require.Equal(t, before, agent.wanted())
	agent.err = errors.New("no")
	_, err = applyIDs(t.Context(), s, []api.Job{aJob("aa", "/a", 1)})
	require.ErrorContains(t, err, "no")
}

// TestStoreDegraded: a store that cannot write at its start serves from memory,
// says why, and writes once it can.
func TestStoreDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, agent := t.TempDir(), &listAgent{}
		s := open(t, dir, agent)
		_, err := applyIDs(t.Context(), s, []api.Job{aJob("web", "/a", 1)})
		require.NoError(t, err)
		before, index := agent.wanted(), filepath.Join(dir, "index")
		require.NoError(t, s.Fault())

		// A directory where files are written: no write works, and none is needed.
		require.NoError(t, os.Mkdir(index+".tmp", 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(index+".tmp", "x"), nil, 0o600))
		s = open(t, dir, agent)
		require.NoError(t, s.Fault(), "nothing has changed, nothing is written")
		require.NoError(t, os.Remove(index))
		s = open(t, dir, agent)
		require.ErrorContains(t, s.Fault(), "the job store cannot be written")
		require.Equal(t, before, agent.wanted(), "it serves what it knows")
		_, err = applyIDs(t.Context(), s, []api.Job{aJob("web", "/b", 1)})
		require.ErrorContains(t, err, "the job store cannot be written")
		require.Equal(t, before, agent.wanted())

		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Retry(ctx) })
		time.Sleep(lateFirst + time.Millisecond) // virtual
		require.Error(t, s.Fault())
		require.NoError(t, os.RemoveAll(index+".tmp"))
		time.Sleep(lateLimit)
		synctest.Wait()
		require.NoError(t, s.Fault())
		require.FileExists(t, index)

		// The agent cannot take it now: it is told again until it can.
		s.mu.Lock()
		agent.err = errors.New("no space left")
		s.mu.Unlock()
		_, err = applyIDs(t.Context(), s, []api.Job{aJob("web", "/b", 1)})
		require.ErrorContains(t, err, "it is tried again until it works")
		require.ErrorContains(t, s.Fault(), "no space left")
		s.mu.Lock() // the store holds it while it speaks to the agent
		agent.err = nil
		s.mu.Unlock()
		time.Sleep(lateLimit)
		synctest.Wait()
		require.NoError(t, s.Fault())
		cancel()
		wg.Wait()
		require.NotEqual(t, before, agent.wanted())
	})
}

func TestFileName(t *testing.T) {
	require.Equal(t, "default.web.json", fileName("default", "web"))
	require.Equal(t, "a%2Eb.%2F%2E%2E.json", fileName("a.b", "/.."))
	require.NotEqual(t, fileName("a.b", "c"), fileName("a", "b.c"))
	long := fileName(strings.Repeat("ä", 64), strings.Repeat("ü", 64))
	require.LessOrEqual(t, len(long), 255)
	require.NotEqual(t, long, fileName(strings.Repeat("ä", 64), strings.Repeat("ü", 63)+"x"))
}

func FuzzDecodeJob(f *testing.F) {
	f.Add([]byte(`{"format":1,"namespace":"default","id":"web","allocs":[{"id":"x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := decodeJob(data)
		if err == nil {
			for _, al := range j.Allocs {
				require.NoError(t, al.Validate())
			}
		}
	})
}
