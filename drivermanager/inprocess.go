// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
)

// InProcess is the Launcher of a driver in this process. Its program's name is the
// driver's. It is configured like any other.
func InProcess(d driver.Driver) Launcher { return inProcess{d} }

// inProcess is Launcher and Plugin.
type inProcess struct{ d driver.Driver }

func (p inProcess) List() ([]Program, error) { return []Program{{Name: p.d.Info().Name}}, nil }

func (p inProcess) Launch(ctx context.Context, _ string, l Launch) (Plugin, error) {
	schema := p.d.Info().ConfigSchema
	config, err := driverconfig.Eval(schema, l.Config, nil, nil)
	if err != nil {
		return nil, err
	}
	if c, ok := p.d.(driver.Configurer); ok {
		setup := driver.Setup{Node: l.Node}
		if schema != nil {
			setup.Config = config
		}
		if err := c.Configure(ctx, setup); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p inProcess) Reattach(context.Context, string, json.RawMessage, Launch) (Plugin, error) {
	return nil, errors.New("drivermanager: a driver in this process has nothing to reattach to")
}

func (inProcess) Remove(json.RawMessage) error          { return nil }
func (inProcess) Sweep(string, []json.RawMessage) error { return nil }
func (p inProcess) Driver() driver.Driver               { return p.d }
func (inProcess) Record() json.RawMessage               { return nil }
func (inProcess) Done() <-chan struct{}                 { return nil } // it ends with us
func (inProcess) How() string                           { return "" }
func (inProcess) Close(context.Context) error           { return nil }
func (inProcess) Detach()                               {}
