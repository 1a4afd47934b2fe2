// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package tail

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/logmon"
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

// What follows a log sees it go on where a planted file ended the numbers and it
// began again.
func TestPlantedNumber(t *testing.T) {
	for _, n := range []int64{1<<62 - 1, 1<<40 - 1} {
		dir := t.TempDir()
		w := logmon.NewRotator(logmon.RotateConfig{Dir: dir, Base: base, MaxSize: 8, MaxFiles: 3})
		put := func(s string) {
			t.Helper()
			_, err := w.Write([]byte(s))
			require.NoError(t, err)
		}
		put("aaaaaaa\n")
		r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: true})
		require.NoError(t, err)
		want(t, r, "aaaaaaa\n")
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", base, n)), []byte("planted\n"), 0o644))
		if n < 1<<40 {
			want(t, r, "planted\n")
		}
		for _, s := range []string{"bbbbbbb\n", "ccccccc\n", "ddddddd\n", "eeeeeee\n", "fffffff\n"} {
			put(s)
			want(t, r, s)
		}
		require.NoError(t, r.Close())
		require.NoError(t, w.Close())
	}
}
