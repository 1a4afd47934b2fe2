// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

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
