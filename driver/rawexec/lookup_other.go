// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package rawexec

import (
	"io/fs"
	"syscall"
)

const (
	errNotDir = syscall.ENOTDIR
	openFlags = 0
)

func links(fs.FileInfo) uint64 { return 1 }
