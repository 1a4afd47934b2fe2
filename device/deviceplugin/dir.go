// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin

import (
	"context"
	"fmt"

	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
)

// Directory is a directory of device plugins; it implements
// devicemanager.Launcher.
type Directory struct{ path string }

// Dir makes the plugins in a directory known: every executable regular file (or
// link to one) directly in it, under the file's name. Drivers in it are found to be
// none when they are started, and left alone. It reads nothing yet; a directory
// that is not there holds none.
func Dir(path string) *Directory { return &Directory{path: path} }

// List names the programs, sorted. On Windows .exe is no part of a name.
func (d *Directory) List() (list []devicemanager.Program, err error) {
	found, err := pluginproc.Programs(d.path)
	if err != nil {
		return nil, fmt.Errorf("deviceplugin: %w", err)
	}
	for _, p := range found {
		list = append(list, devicemanager.Program{Name: p.Name, ID: p.ID})
	}
	return list, nil
}

// Launch implements devicemanager.Launcher.
func (d *Directory) Launch(ctx context.Context, name string, l devicemanager.Launch) (devicemanager.Plugin, error) {
	path, err := pluginproc.ProgramPath(d.path, name)
	if err != nil {
		return nil, fmt.Errorf("deviceplugin: %w", err)
	}
	p, err := Launch(ctx, path, l)
	if err != nil {
		return nil, err // and no nil pointer that is no nil interface
	}
	return p, nil
}

// Sweep implements devicemanager.Launcher.
func (d *Directory) Sweep(dir string) error { return pluginproc.Sweep(dir, nil) }
