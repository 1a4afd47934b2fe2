// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzOpen: whatever the path and wherever two links lead, no byte of a secret or
// of a file outside is read.
func FuzzOpen(f *testing.F) {
	for _, s := range [][3]string{
		{"web/local/f", "f", "f"},
		{"web/local/l1", "../secrets/token", ""},
		{"web/local/l1/token", "../secrets", "x"},
		{"web/local/l1", "l2", "../../../outside"},
		{"web/local/l1/l1/l1", ".", "l1"},
		{"alloc/../web/./secrets/../secrets/token", "", ""},
		{"/web//local/l2", "x", "/etc/passwd"},
		{"web/SECRETS/token", "..", "..\\.."},
	} {
		f.Add(s[0], s[1], s[2])
	}
	tmp := f.TempDir()
	require.NoError(f, os.WriteFile(filepath.Join(tmp, "outside"), []byte("hush"), 0o600))
	d := newDir(f, Config{Root: filepath.Join(tmp, "root")})
	td, _ := buildTask(f, d, "web")
	require.NoError(f, os.WriteFile(filepath.Join(td.Secrets, "token"), []byte("hush"), 0o600))
	require.NoError(f, os.WriteFile(filepath.Join(td.Private, "token"), []byte("hush"), 0o600))
	require.NoError(f, os.WriteFile(filepath.Join(td.Local, "f"), []byte("open"), 0o600))
	f.Fuzz(func(t *testing.T, path, link1, link2 string) {
		for name, target := range map[string]string{"l1": link1, "l2": link2} {
			_ = os.Remove(filepath.Join(td.Local, name))
			_ = os.Symlink(target, filepath.Join(td.Local, name)) // not every text can be a target
		}
		file, err := d.Open(path)
		if err != nil {
			return
		}
		defer file.Close()
		text, err := io.ReadAll(file)
		require.NoError(t, err)
		require.Equal(t, "open", string(text))
		_, err = d.ReadDir(path)
		require.Error(t, err)
		require.False(t, strings.ContainsAny(path, "\\\x00"))
	})
}
