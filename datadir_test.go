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
