// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package nodekeep

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
)

// What an agent left on the machine bears its id: one whose state was lost keeps
// it, so that the sweep finds its own.
func TestIdentityOutlivesTheState(t *testing.T) {
	n := start(t, config(t, fake()))
	was := n.id
	forget := func() {
		n.stop()
		require.NoError(t, os.Remove(filepath.Join(n.cfg.DataDir, "state.db")))
	}
	forget()
	n = start(t, n.cfg)
	require.Equal(t, was, n.id)
	n = n.again()
	require.Equal(t, was, n.id)

	file := filepath.Join(n.cfg.DataDir, "identity.json")
	for name, damage := range map[string]func(){
		"garbage":     func() { require.NoError(t, os.WriteFile(file, []byte("{"), 0o600)) },
		"other forms": func() { require.NoError(t, os.WriteFile(file, []byte(`{"id":"../../etc","node_id":"x"}`), 0o600)) },
		"gone":        func() { require.NoError(t, os.Remove(file)) },
	} {
		forget()
		damage()
		n = start(t, n.cfg)
		require.True(t, validID(n.id.ID) && validID(n.id.NodeID), name)
		require.NotEqual(t, was.ID, n.id.ID, name)
		was = n.id
		n = n.again()
		require.Equal(t, was, n.id, name)
	}
}

// An alloc that asks for what nobody here does is refused, not run without it.
func TestUnmetNeedsAreRefused(t *testing.T) {
	cfg := config(t, fake())
	cfg.Features = []string{"artifacts"}
	n := start(t, cfg)
	lacking, served := alloc("lacking", 1, spec.JobService), alloc("served", 1, spec.JobService)
	lacking.Networks = []spec.Network{{Mode: "bridge"}}
	lacking.Tasks[0].Attach.Templates = []spec.Template{{Data: "x", Destination: "local/x"}}
	served.Tasks[0].Attach.Artifacts = []spec.Artifact{{Source: "https://example.com/a.tar.gz"}}
	err := n.Apply(t.Context(), Desired{Index: 1, Full: true, Allocs: []*spec.Alloc{lacking, served}})
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "lacking", refused.AllocID)
	require.ErrorContains(t, err, "tasks[0].attach.templates: this node does nothing about templates")
	require.ErrorContains(t, err, "networks[0].mode: this node does nothing about networks")
	n.status("lacking", allocrunner.Failed)
	n.status("served", allocrunner.Running)
}
