// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stale leaves a socket on which nobody answers.
func stale(t *testing.T, path string) {
	t.Helper()
	short, done, err := shorten(path)
	require.NoError(t, err)
	defer done()
	ln, err := net.Listen("unix", short)
	require.NoError(t, err)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
}

func TestListen(t *testing.T) {
	dirs := map[string]string{"short": t.TempDir()}
	if runtime.GOOS == "linux" {
		long := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
		require.NoError(t, os.MkdirAll(long, 0o700))
		dirs["long"] = long
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "agent.sock")
			stale(t, path)
			ln, err := Listen(t.Context(), path)
			require.NoError(t, err, "a stale socket is replaced")
			fi, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())

			_, err = Listen(t.Context(), path)
			require.ErrorIs(t, err, ErrInUse)
			conn, err := dial(t.Context(), path)
			require.NoError(t, err, "the first one goes on")
			require.NoError(t, conn.Close())
			require.NoError(t, ln.Close())
			require.NoFileExists(t, path)

			// A successor's socket is not removed by a late Close.
			first, err := Listen(t.Context(), path)
			require.NoError(t, err)
			first.(*listener).stop() // or it would have it again
			require.NoError(t, os.Remove(path))
			second, err := Listen(t.Context(), path)
			require.NoError(t, err)
			require.NoError(t, first.Close())
			require.FileExists(t, path)
			require.NoError(t, second.Close())
		})
	}
}

func TestListenRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	_, err := Listen(t.Context(), path)
	require.ErrorContains(t, err, "not a socket")
	require.FileExists(t, path)
	_, err = Listen(t.Context(), filepath.Join(t.TempDir(), "nowhere", "agent.sock"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotContains(t, err.Error(), "/proc/self")
}

// A socket that somebody removes or moves away is made again, and what was put in
// its place is left alone until it goes.
func TestSocketRemoved(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "agent.sock")
	ln, err := Listen(t.Context(), path)
	require.NoError(t, err)
	accepted := make(chan error, 1)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				accepted <- err
				return
			}
			_ = conn.Close()
		}
	}()
	answers := func() {
		t.Helper()
		require.Eventually(t, func() bool {
			conn, err := dial(t.Context(), path)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		}, 10*time.Second, time.Millisecond)
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	}
	answers()
	for range 5 {
		require.NoError(t, os.Remove(path))
		answers()
		require.NoError(t, os.Rename(path, filepath.Join(dir, "away")))
		answers()
	}
	mine := filepath.Join(dir, "mine")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.NoError(t, os.Rename(mine, path))
	require.FileExists(t, path)
	_, err = dial(t.Context(), path)
	require.Error(t, err)
	require.NoError(t, os.Remove(path))
	answers()
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	require.NoFileExists(t, path)
}
