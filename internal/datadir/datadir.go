// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package datadir makes an agent's data directory: for the agent, and for the
// command, which puts its socket there before there is an agent.
package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Make makes the directory where it is missing. Tasks of other users must be able to
// pass through it to their own directories; what is in it is closed to them or
// theirs. One that is there already is the host's affair. undo, never nil, removes
// the directories that were made as long as they are empty.
func Make(dir string) (undo func(), err error) {
	made := missing(dir)
	undo = func() {
		for _, d := range made {
			_ = os.Remove(d) // one that is not empty stays
		}
	}
	err = os.MkdirAll(dir, 0o711)
	if err == nil && len(made) > 0 {
		err = os.Chmod(dir, 0o711) // whatever the umask
	}
	if err != nil {
		undo()
	}
	return undo, err
}

// missing are dir and those above it that are not there, the deepest first.
func missing(dir string) (list []string) {
	for {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return list
		}
		list = append(list, dir)
		up := filepath.Dir(dir)
		if up == dir {
			return list
		}
		dir = up
	}
}
