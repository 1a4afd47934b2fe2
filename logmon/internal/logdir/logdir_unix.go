// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package logdir

import (
	"io/fs"
	"syscall"
)

// openFlags keep the open of a name that a FIFO was put under from blocking.
const openFlags = syscall.O_NONBLOCK

// Links returns how many names a file has.
func Links(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}
