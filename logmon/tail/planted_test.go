// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package tail

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a task plants under the name of a log file is neither read nor waited for.
func TestPlanted(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	write(t, dir, 0, "a")
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, base+".1")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, base+".2"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, base+".3"), 0o755))
	require.NoError(t, os.Link(secret, filepath.Join(dir, base+".4")))
	write(t, dir, 5, "b")
	require.NoError(t, os.Link(secret, filepath.Join(dir, base+".6")))
	for _, cfg := range []Config{{}, {Lines: 9}, {FromEnd: true, Offset: 9}, {Follow: true}} {
		cfg.Dir, cfg.Base = dir, base
		if !cfg.Follow {
			require.Equal(t, "ab", all(t, cfg))
			continue
		}
		r, err := Open(within(t), cfg)
		require.NoError(t, err)
		want(t, r, "ab")
		write(t, dir, 7, "c")
		want(t, r, "c")
		require.NoError(t, r.Close())
	}
	link := filepath.Join(t.TempDir(), "logs")
	require.NoError(t, os.Symlink(dir, link))
	_, err := Open(t.Context(), Config{Dir: link, Base: base})
	require.ErrorContains(t, err, "is a link")
}
