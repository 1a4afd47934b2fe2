// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package datadir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/internal/datadir"
)

func TestMake(t *testing.T) {
	root := t.TempDir()
	undo, err := datadir.Make(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	st, err := os.Stat(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o711), st.Mode().Perm())
	again, err := datadir.Make(filepath.Join(root, "a", "b"))
	require.NoError(t, err)
	again()
	require.DirExists(t, filepath.Join(root, "a", "b"), "it was there")
	file := filepath.Join(root, "a", "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	undo()
	require.NoDirExists(t, filepath.Join(root, "a", "b"))
	require.FileExists(t, file)
	undo, err = datadir.Make(filepath.Join(file, "below"))
	require.Error(t, err)
	undo()
	require.FileExists(t, file)
}
