// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package allocdir

import (
	"archive/tar"
	"io/fs"
	"os"
)

// Owners do not travel here: what is received belongs to this process.
func ownerOf(fs.FileInfo) (uid, gid int)         { return 0, 0 }
func lchown(*os.Root, string, *tar.Header) error { return nil }
func fchown(*os.File, *tar.Header) error         { return nil }
func syncFS(*os.File) error                      { return nil }
