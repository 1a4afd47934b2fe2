// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package logdir

import "io/fs"

const openFlags = 0

// Links is 1 where the system does not say.
func Links(fs.FileInfo) uint64 { return 1 }
