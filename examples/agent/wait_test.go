// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

func TestRestarted(t *testing.T) {
	one := 1
	before := api.Alloc{ID: "a", Tasks: []api.Task{{Name: "up", State: "running", Attempt: 2}, {Name: "over", State: "dead", Attempt: 1}}}
	for name, tt := range map[string]struct {
		task api.Task
		want bool
		err  string
	}{
		"still the old one":   {api.Task{State: "running", Phase: "stopping", Attempt: 2}, false, ""},
		"ended, not started":  {api.Task{State: "pending", Phase: "starting", Attempt: 3, ExitCode: &one}, false, ""},
		"runs":                {api.Task{State: "running", Phase: "running", Attempt: 3, ExitCode: &one}, true, ""},
		"ran and ended well":  {api.Task{State: "dead", Attempt: 3, ExitCode: &one}, true, ""},
		"ran and starts anew": {api.Task{State: "pending", Attempt: 4, ExitCode: &one}, true, ""},
		"failed":              {api.Task{State: "dead", Attempt: 3, Failed: true, Reason: "no such file"}, false, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.task.Name = "up"
			got, err := restarted(before, "", false)(&api.Alloc{ID: "a", Tasks: []api.Task{tt.task, before.Tasks[1]}})
			require.Equal(t, tt.want, got)
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
			} else {
				require.NoError(t, err)
			}
		})
	}
	_, err := restarted(before, "", false)(&api.Alloc{ID: "a", Done: true, Description: "stopped", Tasks: before.Tasks})
	require.ErrorContains(t, err, "stopped")
}

func TestReached(t *testing.T) {
	al := api.Alloc{Status: "running", Tasks: []api.Task{{State: "running"}, {State: "dead"}, {State: "pending", Lifecycle: spec.LifecyclePoststop}}}
	ok, err := reached("running")(&al)
	require.NoError(t, err)
	require.True(t, ok)
	al.Tasks[0].State = "pending"
	ok, _ = reached("running")(&al)
	require.False(t, ok, "not all have been started")
	al.Status = "complete"
	for _, until := range []string{"running", "complete"} {
		ok, _ = reached(until)(&al)
		require.False(t, ok, "something is still being cleaned up")
	}
	al.Done, al.Description = true, "stopped by hand"
	_, err = reached("running")(&al)
	require.ErrorContains(t, err, "does not run: stopped by hand")
	al.Type = "batch"
	for _, until := range []string{"running", "complete"} {
		ok, _ = reached(until)(&al)
		require.True(t, ok)
	}
	al.Status = "failed"
	_, err = reached("running")(&al)
	require.Error(t, err)
}
