// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("supervisors need Linux")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	mark := filepath.Join(tmp, "mark")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, "/bin/sh", "-c", `echo ran >>"$0"; exit 3`, mark))
	require.Contains(t, out.String(), "Started")
	require.Contains(t, out.String(), "Exit code 3")
	data, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(data), "it ran once")
	require.NoError(t, os.Remove(mark))
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left")
}
