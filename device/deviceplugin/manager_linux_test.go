// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// A real program under the manager: killed, it is there again and what a task has
// does not change; left by an agent that died, it is ended by the next one, which
// knows who has what.
func TestUnderTheManager(t *testing.T) {
	dir, run, store := t.TempDir(), shortDir(t), state.Memory()
	require.NoError(t, os.Symlink(self(t), filepath.Join(dir, "fake")))
	t.Setenv(roleEnv, "fake")
	start := func() (*devicemanager.Manager, func()) {
		m, err := devicemanager.New(devicemanager.Config{Launchers: []devicemanager.Launcher{deviceplugin.Dir(dir)}, Dir: run, Store: store, MaxBackoff: 100 * time.Millisecond,
			Env: []string{roleEnv, "PATH", "GORACE"}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(bounded(t))
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		require.Empty(t, m.Ready(ctx))
		return m, func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	// One that an agent left which was killed before it noted anything.
	l, _ := launch(t, "fake")
	l.Dir = filepath.Join(run, "old")
	left, err := deviceplugin.Launch(bounded(t), self(t), l)
	require.NoError(t, err)

	m, stop := start()
	<-left.Done()
	require.NoError(t, left.Close(bounded(t)))
	res := &spec.Resources{Devices: []spec.DeviceRequest{{Name: "gpu", Count: 2}}}
	want, given, err := m.Reserve(bounded(t), "a", "t", res, false)
	require.NoError(t, err)
	require.Equal(t, "a,b", want.Env["FAKE_IDS"])
	for range 5 {
		old := m.Status()[0].PID
		require.NoError(t, syscall.Kill(old, syscall.SIGKILL))
		ctx, cancel := context.WithTimeout(bounded(t), 30*time.Second)
		for groups := range m.Watch(ctx) {
			if s := m.Status()[0]; s.PID != 0 && s.PID != old && s.Health == driver.Healthy && groups[0].Instances[0].Healthy {
				break
			}
		}
		cancel()
		got, again, err := m.Reserve(bounded(t), "a", "t", res, false)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, given, again)
	}
	require.Equal(t, 5, m.Status()[0].Restarts)
	pid := m.Status()[0].PID
	stop()
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	entries, err := os.ReadDir(run)
	require.NoError(t, err)
	require.Empty(t, entries)

	m, stop = start()
	got, _, err := m.Reserve(bounded(t), "a", "t", res, true)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, m.Release(bounded(t), "a", "t"))
	require.Empty(t, m.Devices()[0].Owners)
	stop()
}
