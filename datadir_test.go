// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
)

func TestMakeDataDir(t *testing.T) {
	root := t.TempDir()
	undo, err := nodekeep.MakeDataDir(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	st, err := os.Stat(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o711), st.Mode().Perm())
	again, err := nodekeep.MakeDataDir(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	again()
	require.DirExists(t, filepath.Join(root, "a", "b"), "it was there")
	file := filepath.Join(root, "a", "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	undo()
	require.NoDirExists(t, filepath.Join(root, "a", "b"))
	require.FileExists(t, file)
	undo, err = nodekeep.MakeDataDir(filepath.Join(file, "below"))
	require.Error(t, err)
	undo()
	require.FileExists(t, file)
}

// A first start that fails leaves nothing; one in a directory with a state leaves
// that as it is.
func TestFirstStartFails(t *testing.T) {
	root := t.TempDir()
	cfg := nodekeep.Config{DataDir: filepath.Join(root, "new", "data"), RuntimeDir: filepath.Join(root, "run"), NoCgroups: true,
		Drivers: []nodekeep.DriverFunc{nil}}
	_, err := nodekeep.New(cfg)
	require.Error(t, err)
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, entries)

	good := cfg
	good.Drivers = nil
	a, err := nodekeep.New(good)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	before, err := os.ReadDir(cfg.DataDir)
	require.NoError(t, err)
	_, err = nodekeep.New(cfg)
	require.Error(t, err)
	after, err := os.ReadDir(cfg.DataDir)
	require.NoError(t, err)
	require.Equal(t, len(before), len(after))
}
