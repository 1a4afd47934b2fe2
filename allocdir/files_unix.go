// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package allocdir

import "syscall"

// openNonblock keeps a FIFO that a task puts in a file's place from blocking the
// open; regular files do not heed it.
const openNonblock = syscall.O_NONBLOCK
