// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Secrets of tasks that have ended are dropped, each but those in use, and again
// without harm; what is not there, or no directory, is passed over.
func TestDropSecrets(t *testing.T) {
	needMount(t)
	root := filepath.Join(t.TempDir(), "root")
	d := newDir(t, Config{Root: root})
	require.NoError(t, d.DropSecrets([]string{"web"}), "before anything is made")
	web, _ := buildTask(t, d, "web")
	log, _ := buildTask(t, d, "log")
	require.NoError(t, os.WriteFile(filepath.Join(web.Secrets, "token"), []byte("hush"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(web.Local, "file"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(d.Path(), "plain"), nil, 0o600))
	require.NoError(t, os.Symlink("log", filepath.Join(d.Path(), "link")))
	require.Len(t, mounts(t, root), 2)

	busy, err := os.Open(web.Secrets)
	require.NoError(t, err)
	defer busy.Close()
	err = d.DropSecrets([]string{"nix", "plain", "link", "web"})
	require.ErrorIs(t, err, ErrBusy)
	require.Len(t, mounts(t, root), 2, "no link is followed")
	require.ErrorIs(t, d.DropSecrets([]string{"web", "log"}), ErrBusy)
	require.Len(t, mounts(t, root), 1)
	require.Empty(t, mounts(t, root)[log.Secrets])
	require.NoError(t, busy.Close())
	for range 2 {
		require.NoError(t, d.DropSecrets([]string{"web", "log"}))
		require.Empty(t, mounts(t, root))
	}
	require.NoFileExists(t, filepath.Join(web.Secrets, "token"))
	require.FileExists(t, filepath.Join(web.Local, "file"))
	_, rep := buildTask(t, d, "web") // as a restart would
	require.True(t, rep.Mounted)
	require.NoError(t, d.Destroy(t.Context()))
	require.NoDirExists(t, d.Path())
}
