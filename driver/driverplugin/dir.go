// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
)

// Directory is a directory of driver programs; it implements
// drivermanager.Launcher.
type Directory struct{ path string }

// Dir makes the driver programs in a directory known: every executable regular
// file (or link to one) directly in it, under the file's name. It reads nothing
// yet; a directory that is not there holds none.
func Dir(path string) *Directory { return &Directory{path: path} }

// List names the programs, sorted. On Windows .exe is no part of a name.
func (d *Directory) List() ([]drivermanager.Program, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("driverplugin: plugin directory: %w", err)
	}
	var list []drivermanager.Program
	for _, e := range entries {
		st, err := os.Stat(filepath.Join(d.path, e.Name()))
		if err != nil || !st.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		name, runs := e.Name(), st.Mode()&0o111 != 0
		if runtime.GOOS == "windows" {
			name, runs = strings.CutSuffix(name, ".exe")
		}
		if runs {
			list = append(list, drivermanager.Program{Name: name, ID: fmt.Sprintf("%d bytes of %s", st.Size(), st.ModTime().UTC().Format(time.RFC3339Nano))})
		}
	}
	return list, nil // as ReadDir sorts them
}

// program is the file of a name. A name is never a way out of the directory.
func (d *Directory) program(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return "", fmt.Errorf("driverplugin: %q is no name of a program in %s", name, d.path)
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Abs(filepath.Join(d.path, name))
}

// Launch implements drivermanager.Launcher.
func (d *Directory) Launch(ctx context.Context, name string, l drivermanager.Launch) (drivermanager.Plugin, error) {
	path, err := d.program(name)
	if err != nil {
		return nil, err
	}
	return launched(Launch(ctx, path, l))
}

// Reattach implements drivermanager.Launcher.
func (d *Directory) Reattach(ctx context.Context, _ string, record json.RawMessage, l drivermanager.Launch) (drivermanager.Plugin, error) {
	return launched(Reattach(ctx, record, l))
}

// launched keeps a nil pointer from becoming an interface that is not nil.
func launched(p *Plugin, err error) (drivermanager.Plugin, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Remove implements drivermanager.Launcher.
func (d *Directory) Remove(record json.RawMessage) error {
	var rec pluginproc.Record
	if err := json.Unmarshal(record, &rec); err != nil {
		return fmt.Errorf("driverplugin: the record cannot be read: %w", err)
	}
	return pluginproc.Remove(rec)
}

// Sweep implements drivermanager.Launcher.
func (d *Directory) Sweep(dir string, keep []json.RawMessage) error {
	var kept []pluginproc.Record
	for _, raw := range keep {
		var rec pluginproc.Record
		if err := json.Unmarshal(raw, &rec); err == nil { // one that cannot be read keeps nothing
			kept = append(kept, rec)
		}
	}
	return pluginproc.Sweep(dir, kept)
}
