// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package rawexec

import (
	"io/fs"
	"syscall"
)

const (
	errNotDir = syscall.ENOTDIR
	openFlags = syscall.O_NONBLOCK // a FIFO must not hold us up
)

func links(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}
