// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"encoding/json"
	"fmt"

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
func (d *Directory) List() (list []drivermanager.Program, err error) {
	found, err := pluginproc.Programs(d.path)
	if err != nil {
		return nil, fmt.Errorf("driverplugin: %w", err)
	}
	for _, p := range found {
		list = append(list, drivermanager.Program{Name: p.Name, ID: p.ID})
	}
	return list, nil
}

// Launch implements drivermanager.Launcher.
func (d *Directory) Launch(ctx context.Context, name string, l drivermanager.Launch) (drivermanager.Plugin, error) {
	path, err := pluginproc.ProgramPath(d.path, name)
	if err != nil {
		return nil, fmt.Errorf("driverplugin: %w", err)
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
	if err := pluginproc.RemoveRaw(record); err != nil {
		return fmt.Errorf("driverplugin: %w", err)
	}
	return nil
}

// Sweep implements drivermanager.Launcher.
func (d *Directory) Sweep(dir string, keep []json.RawMessage) error {
	return pluginproc.SweepRaw(dir, keep)
}
