// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package logmon

import (
	"io/fs"
	"os"
)

func chown(*os.File, fs.FileInfo, int, int) error { return nil }
