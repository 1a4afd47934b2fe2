// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package nodekeep

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
)

// A data directory that was copied names the runtime directory of the original:
// its agent does not start beside that one, and touches nothing.
func TestCopiedDataDirIsLockedOut(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n.stop()
	elsewhere := n.cfg
	elsewhere.DataDir = filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.MkdirAll(elsewhere.DataDir, 0o700))
	for _, name := range []string{"state.db", "identity.json"} {
		b, err := os.ReadFile(filepath.Join(n.cfg.DataDir, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(elsewhere.DataDir, name), b, 0o600))
	}
	n = start(t, n.cfg)
	_, err := New(elsewhere)
	var taken *RuntimeDirError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, RuntimeDirError{Dir: n.cfg.RuntimeDir, DataDir: elsewhere.DataDir, Owner: n.cfg.DataDir}, *taken)
	require.ErrorContains(t, err, elsewhere.DataDir)
	n.status("a", allocrunner.Running)
	require.Equal(t, 1, f.Lives())
}

// One alloc whose driver does not come back keeps the others waiting no longer
// than the bound.
func TestRestoreIsBounded(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	n.stop()
	release := f.Hang(drivertest.Recover)
	a, err := New(n.cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, a.load(ctx))
	_, letGo := a.drive(ctx)
	began := time.Now()
	a.restore(ctx, 50*time.Millisecond)
	require.Less(t, time.Since(began), 5*time.Second)
	release()
	a.restoreAgain(ctx, t)
	cancel()
	a.runnerOf.wg.Wait()
	require.NoError(t, letGo())
	require.NoError(t, a.Close())
}

// restoreAgain waits until all runners have looked for their tasks.
func (a *Agent) restoreAgain(ctx context.Context, t *testing.T) {
	for _, e := range a.runnerOf.entries {
		require.True(t, e.runner.AwaitRestored(ctx))
	}
}
