// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

func ownerOf(fi fs.FileInfo) (uid, gid int) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), int(st.Gid)
	}
	return 0, 0
}

// lchown gives a received file its owner where this process may.
func lchown(root *os.Root, name string, h *tar.Header) error {
	err := root.Lchown(filepath.FromSlash(name), h.Uid, h.Gid)
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// fchown is lchown of an open file.
func fchown(f *os.File, h *tar.Header) error {
	err := f.Chown(h.Uid, h.Gid)
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// syncFS writes the file system on which f lies.
func syncFS(f *os.File) error { return unix.Syncfs(int(f.Fd())) }
