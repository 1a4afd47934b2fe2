// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Program is a file that may be a plugin. ID changes when it does.
type Program struct{ Name, ID string }

// Programs lists the executable regular files (or links to one) directly in dir,
// sorted. A directory that is not there holds none. On Windows .exe is no part of
// a name.
func Programs(dir string) (list []Program, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("plugin directory: %w", err)
	}
	for _, e := range entries {
		st, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !st.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name, runs := e.Name(), st.Mode()&0o111 != 0
		if runtime.GOOS == "windows" {
			name, runs = strings.CutSuffix(name, ".exe")
		}
		if runs {
			list = append(list, Program{Name: name, ID: fmt.Sprintf("%d bytes of %s", st.Size(), st.ModTime().UTC().Format(time.RFC3339Nano))})
		}
	}
	return list, nil // as ReadDir sorts them
}

// ProgramPath is the file of a name. A name is never a way out of the directory.
func ProgramPath(dir, name string) (string, error) {
	if name == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return "", fmt.Errorf("%q is no name of a program in %s", name, dir)
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Abs(filepath.Join(dir, name))
}

// RemoveRaw is Remove of a record as a manager keeps it.
func RemoveRaw(record json.RawMessage) error {
	var rec Record
	if err := json.Unmarshal(record, &rec); err != nil {
		return fmt.Errorf("the record cannot be read: %w", err)
	}
	return Remove(rec)
}

// SweepRaw is Sweep with records as a manager keeps them; one that cannot be read
// keeps nothing.
func SweepRaw(root string, keep []json.RawMessage) error {
	var kept []Record
	for _, raw := range keep {
		var rec Record
		if err := json.Unmarshal(raw, &rec); err == nil {
			kept = append(kept, rec)
		}
	}
	return Sweep(root, kept)
}
