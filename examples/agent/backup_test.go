// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/state"
)

func TestBackupCommand(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.ok("apply", "--wait", "running", b.jobFile("svc", "service", "exec sleep 1000", ""))
	dir := t.TempDir()
	path := filepath.Join(dir, "state.bak")
	require.Contains(t, b.ok("backup", path), path+": ")
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	b.refused(1, "is there already", "backup", path)
	b.refused(2, "name the file", "backup")
	b.refused(1, "no such file", "backup", filepath.Join(dir, "nix", "x"))
	store, err := state.Open(state.OpenConfig{Path: path})
	require.NoError(t, err)
	require.NoError(t, store.View(func(tx state.Tx) error {
		require.Len(t, tx.Nodes(state.Path{"v1", "alloc"}), 1)
		return nil
	}))
	require.NoError(t, store.Close())
	left, err := filepath.Glob(filepath.Join(dir, "*.part-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	b.ok("stop", "--all")
}
