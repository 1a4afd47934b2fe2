// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux && !windows

package logmon

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Create is not there on this system.
func Create(path string, _ Owner) error {
	return &fs.PathError{Op: "mkfifo", Path: path, Err: errors.ErrUnsupported}
}

// OpenReader is not there on this system.
func OpenReader(path string) (io.ReadCloser, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: errors.ErrUnsupported}
}

// OpenWriter is not there on this system.
func OpenWriter(path string) (io.WriteCloser, error) {
	return nil, &fs.PathError{Op: "open", Path: path, Err: errors.ErrUnsupported}
}

func (p *Pump) runFile(*os.File) { p.runReader() }
