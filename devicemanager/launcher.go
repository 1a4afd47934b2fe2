// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
)

// ErrOtherKind is what Launch returns for a program that is a plugin, but none of
// devices. It is not started again.
var ErrOtherKind = errors.New("devicemanager: not a device plugin")

// Launcher finds device plugins that are programs of their own and runs them. The
// wire is its business: this package links none. Methods may be called from any
// goroutine.
type Launcher interface {
	// List names what can be launched, sorted by name.
	List() ([]Program, error)
	// Launch starts a plugin and configures it. It blocks until the plugin can be
	// used or ctx ends; after an error nothing of it is left.
	Launch(ctx context.Context, name string, l Launch) (Plugin, error)
	// Sweep ends all processes that were launched into directories below dir: those
	// of an agent that died.
	Sweep(dir string) error
}

// Program is something a Launcher can launch. ID changes when the program does.
type Program struct{ Name, ID string }

// Launch is what a plugin is started with.
type Launch struct {
	// Dir is for this process alone and is made and removed with it. Keep it short:
	// it holds a socket.
	Dir    string
	Args   []string
	Env    []string        // complete, "K=V"
	Config json.RawMessage // the operator's, HCL-JSON; nil is an empty one
	Log    hclog.Logger    // takes what the plugin logs, at its own level
}

// Plugin is a device plugin's process. Methods may be called from any goroutine.
type Plugin interface {
	// Device is usable until Done; its calls end with driver.ErrPluginGone then.
	Device() device.Plugin
	// PID is the process's; 0 for this one.
	PID() int
	// Done is closed when the process has ended, How says how. It is nil for a
	// plugin in this process.
	Done() <-chan struct{}
	How() string
	// Close ends the process in order and blocks until it is gone; ctx shortens the
	// patience.
	Close(ctx context.Context) error
}

// InProcess is the Launcher of plugins in this process, which are configured like
// any other, by their names. Of two of the same name the first counts.
func InProcess(plugins ...device.Plugin) Launcher { return inProcess(plugins) }

type inProcess []device.Plugin

func (l inProcess) List() (list []Program, err error) {
	for _, p := range l {
		list = append(list, Program{Name: p.Info().Name})
	}
	return list, nil
}

func (l inProcess) Launch(ctx context.Context, name string, spec Launch) (Plugin, error) {
	for _, p := range l {
		if p.Info().Name == name {
			return resident{p}, configure(ctx, p, spec.Config)
		}
	}
	return nil, fmt.Errorf("devicemanager: no plugin %q in this process", name)
}

func configure(ctx context.Context, p device.Plugin, raw json.RawMessage) error {
	schema := p.Info().ConfigSchema
	config, err := driverconfig.Eval(schema, raw, nil, nil)
	if err != nil {
		return err
	}
	if c, ok := p.(device.Configurer); ok {
		if schema == nil {
			config = nil
		}
		return c.Configure(ctx, config)
	}
	return nil
}

func (inProcess) Sweep(string) error { return nil }

// resident is the Plugin of devices found by this process.
type resident struct{ p device.Plugin }

func (r resident) Device() device.Plugin     { return r.p }
func (resident) PID() int                    { return 0 }
func (resident) Done() <-chan struct{}       { return nil }
func (resident) How() string                 { return "" }
func (resident) Close(context.Context) error { return nil }
