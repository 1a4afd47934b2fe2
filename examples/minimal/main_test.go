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
	var out, steps bytes.Buffer
	code, err := run(ctx, &out, &steps, "/bin/sh", "-c", `echo ran >>"$0"; echo hello; echo oh >&2; exit 3`, mark)
	require.NoError(t, err)
	require.Equal(t, 3, code)
	require.Equal(t, "hello\noh\n", out.String())
	require.Contains(t, steps.String(), "Started")
	require.Contains(t, steps.String(), "Exit code 3")
	data, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(data), "it ran once")
	require.NoError(t, os.Remove(mark))

	code, err = run(ctx, &out, &steps, "nosuchcmd")
	require.Equal(t, 1, code)
	require.ErrorContains(t, err, "nosuchcmd")

	interrupted, interrupt := context.WithCancel(ctx)
	interrupt()
	code, err = run(interrupted, &out, &steps, "sleep", "1000")
	require.NotZero(t, code, err)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left")
}
