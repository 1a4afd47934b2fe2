// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/jobspec"
)

// What has no end is not read, and of a large file no more than is needed to
// tell that it is one.
func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	huge := filepath.Join(dir, "huge.hcl")
	f, err := os.Create(huge)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(1<<40)) // of holes
	require.NoError(t, f.Close())
	file, err := jobspec.ReadFile(huge)
	require.NoError(t, err)
	require.Len(t, file.Src, jobspec.MaxSize+1)
	_, err = jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: huge}})
	require.ErrorContains(t, err, "File too large")
	_, err = jobspec.FormatHCL(file)
	require.ErrorContains(t, err, "File too large")

	_, err = jobspec.ReadFile(dir)
	require.ErrorContains(t, err, "is a directory")
	_, err = jobspec.ReadFile(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	if runtime.GOOS != "windows" {
		_, err = jobspec.ReadFile("/dev/zero")
		require.ErrorContains(t, err, "is a device or a pipe")
		_, err = jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "/dev/zero"}})
		require.ErrorContains(t, err, "is a device or a pipe")
	}
	empty := filepath.Join(dir, "empty.hcl")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	file, err = jobspec.ReadFile(empty)
	require.NoError(t, err)
	require.NotNil(t, file.Src, "an empty file is not read again")
}
