// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCreate(t *testing.T) {
	for _, umask := range []int{0, 0o077, 0o777} {
		old := syscall.Umask(umask)
		path := filepath.Join(t.TempDir(), "fifo")
		err := Create(path, Owner{Mode: 0o622})
		syscall.Umask(old)
		require.NoError(t, err)
		st, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, fs.ModeNamedPipe|0o622, st.Mode())
		require.ErrorIs(t, Create(path, Owner{}), fs.ErrExist)
		st, err = os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, fs.ModeNamedPipe|0o622, st.Mode()) // left as it is
	}
	require.ErrorIs(t, Create(filepath.Join(t.TempDir(), "no", "fifo"), Owner{}), fs.ErrNotExist)
}

// What is no FIFO, or only a link to one, is refused and not touched.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	require.NoError(t, Create(fifo, Owner{}))
	require.NoError(t, os.Symlink(fifo, link))
	for _, path := range []string{file, link, dir, os.DevNull} {
		_, err := OpenReader(path)
		require.ErrorIs(t, err, ErrNotFIFO)
		_, err = OpenWriter(path)
		require.ErrorIs(t, err, ErrNotFIFO)
		require.ErrorIs(t, Create(path, Owner{}), fs.ErrExist)
	}
	_, err := OpenReader(filepath.Join(dir, "no"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// FF-078: no open waits for the other side, whichever comes first, and a FIFO
// that an earlier run left is as good as a new one.
func TestOpenNeverBlocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, Create(path, Owner{}))
	for range 3 {
		w, err := OpenWriter(path)
		require.NoError(t, err)
		_, err = io.WriteString(w, "early")
		require.NoError(t, err)
		r, err := OpenReader(path)
		require.NoError(t, err)
		b := make([]byte, 16)
		n, err := r.Read(b)
		require.NoError(t, err)
		require.Equal(t, "early", string(b[:n]))

		// Close ends a read that waits, and a write without a reader.
		ended := make(chan error, 1)
		go func() { _, err := r.Read(b); ended <- err }()
		require.NoError(t, r.Close())
		require.ErrorIs(t, <-ended, os.ErrClosed)
		go func() { _, err := w.Write(make([]byte, 1<<20)); ended <- err }()
		require.NoError(t, w.Close())
		require.ErrorIs(t, <-ended, os.ErrClosed)
	}
}

func init() { roles["open"] = roleOpen }

// roleOpen says whether this user may write to the FIFO.
func roleOpen(args []string) {
	w, err := os.OpenFile(args[0], os.O_WRONLY, 0)
	if err != nil {
		say("no")
		return
	}
	_, err = w.WriteString("x")
	must(err)
	say("yes")
}

// FF-086: by its mode and owner a FIFO lets in the task's user and nobody else.
func TestWhoMayWrite(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "fifo")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o711))
	mine, open := filepath.Join(dir, "mine"), filepath.Join(dir, "open")
	require.NoError(t, Create(mine, Owner{UID: 65534, GID: 65534}))
	require.NoError(t, Create(open, Owner{Mode: 0o622}))
	for _, path := range []string{mine, open} {
		r, err := OpenReader(path)
		require.NoError(t, err)
		defer r.Close()
	}
	for _, tt := range []struct {
		path string
		uid  uint32
		want string
	}{{mine, 65534, "yes"}, {mine, 65533, "no"}, {mine, 0, "yes"}, {open, 65533, "yes"}} {
		c := command("open", tt.path)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tt.uid, Gid: tt.uid}}
		start(t, c).expect(t, tt.want)
	}
}
