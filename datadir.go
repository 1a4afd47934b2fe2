// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// MakeDataDir makes a Config.DataDir where it is missing, as New does, for a host
// that needs it earlier, such as for a socket. Tasks of other users must be able to
// pass through it to their own directories; what is in it is closed to them or
// theirs. One that is there already is the host's affair. undo, never nil, removes
// the directories that were made as long as they are empty.
func MakeDataDir(dir string) (undo func(), err error) {
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

// firstStart returns what removes the files of a start that fails: those that are
// not there now, and only where there is no state. It is for the holder of the
// state's lock.
func firstStart(dir string) (discard func()) {
	var made []string
	for _, name := range []string{"state.db", "identity.json", "state.db.lock"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			made = append(made, filepath.Join(dir, name))
		} else if name == "state.db" {
			return func() {}
		}
	}
	return func() {
		for _, path := range made {
			_ = os.Remove(path)
		}
	}
}
