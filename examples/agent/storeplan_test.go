// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

// TestStoreChanges: what an apply says of each alloc is what becomes of it.
func TestStoreChanges(t *testing.T) {
	dir, agent, ctx := t.TempDir(), &listAgent{failed: map[string]bool{}, over: map[string]nodekeep.AllocStatus{}}, t.Context()
	s := open(t, dir, agent)
	ids := map[string]string{} // by place
	apply := func(want string, job api.Job) {
		t.Helper()
		list, err := s.Apply(ctx, []api.Job{job})
		require.NoError(t, err)
		got := ""
		for _, al := range list {
			at := place(&spec.Alloc{Group: al.Group, Index: al.Index})
			got += at + " " + string(al.Change) + "; "
			require.Equal(t, "web", al.Job)
			require.Equal(t, "default", al.Namespace)
			switch al.Change {
			case api.ChangeUnchanged, api.ChangeUpdated, api.ChangeStopped:
				require.Equal(t, ids[at], al.ID)
			case api.ChangeReplaced:
				require.Equal(t, ids[at], al.Replaces)
				fallthrough
			default:
				require.NotEqual(t, ids[at], al.ID)
			}
			desired := "run"
			if al.Change == api.ChangeStopped {
				desired = "stop"
			}
			require.Equal(t, at+" "+desired, agent.wanted()[al.ID])
			ids[at] = al.ID
		}
		require.Equal(t, want, got)
	}
	patient := func(command string, count int) api.Job {
		j := aJob("web", command, count)
		for _, al := range j.Allocs {
			al.Tasks[0].KillTimeout = time.Minute
			al.Tasks[0].Origin = map[string]spec.Origin{"command": {Line: 7}}
		}
		return j
	}
	apply("g[0] new; g[1] new; ", aJob("web", "/a", 2))
	apply("g[0] unchanged; g[1] unchanged; ", aJob("web", "/a", 2))
	before := agent.last
	apply("g[0] updated; g[1] updated; ", patient("/a", 2))
	for i, al := range agent.last.Allocs {
		require.Equal(t, time.Minute, al.Tasks[0].KillTimeout)
		require.Equal(t, agent.last.Index, al.ModifyIndex)
		require.Equal(t, before.Allocs[i].CreateIndex, al.CreateIndex)
		require.Equal(t, before.Allocs[i].CreateTime, al.CreateTime)
	}
	apply("g[0] unchanged; g[1] unchanged; ", patient("/a", 2))
	open(t, dir, agent)
	require.Equal(t, time.Minute, agent.last.Allocs[0].Tasks[0].KillTimeout, "it is in the file")
	apply("g[0] replaced; g[1] stopped; ", aJob("web", "/b", 1))
	apply("g[0] unchanged; g[1] new; ", aJob("web", "/b", 2))
	agent.failed[ids["g[0]"]] = true
	apply("g[0] replaced; g[1] unchanged; ", aJob("web", "/b", 2))
	require.NoError(t, s.Stop(ctx, ids["g[0]"]))
	apply("g[0] new; g[1] unchanged; ", aJob("web", "/b", 2))

	// One that is over is not changed, it is replaced.
	al := agent.last.Allocs[len(agent.last.Allocs)-1]
	agent.over[ids["g[1]"]] = nodekeep.AllocStatus{Alloc: al, Snapshot: allocrunner.Snapshot{Status: allocrunner.Running, Done: true}}
	apply("g[0] updated; g[1] replaced; ", patient("/b", 2))
}
