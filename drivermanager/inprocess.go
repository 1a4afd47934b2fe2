// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
)

// InProcess is the Launcher of drivers in this process. Each one's program has the
// driver's name, and it is configured like any other. Of two of the same name the
// first counts.
func InProcess(drivers ...driver.Driver) Launcher { return inProcess(drivers) }

type inProcess []driver.Driver

func (l inProcess) List() (list []Program, err error) {
	for _, d := range l {
		name := d.Info().Name
		list = append(list, Program{Name: name, Driver: name})
	}
	return list, nil
}

func (l inProcess) Launch(ctx context.Context, name string, spec Launch) (Plugin, error) {
	for _, d := range l {
		if d.Info().Name == name {
			if err := configure(ctx, d, spec); err != nil {
				return nil, err
			}
			return resident{d}, nil
		}
	}
	return nil, fmt.Errorf("drivermanager: no driver %q in this process", name)
}

func configure(ctx context.Context, d driver.Driver, l Launch) error {
	schema := d.Info().ConfigSchema
	config, err := driverconfig.Eval(schema, l.Config, nil, nil)
	if err != nil {
		return err
	}
	c, ok := d.(driver.Configurer)
	if !ok {
		return nil
	}
	setup := driver.Setup{Node: l.Node}
	if schema != nil {
		setup.Config = config
	}
	return c.Configure(ctx, setup)
}

func (inProcess) Reattach(context.Context, string, json.RawMessage, Launch) (Plugin, error) {
	return nil, errors.New("drivermanager: a driver in this process has nothing to reattach to")
}

func (inProcess) Remove(json.RawMessage) error          { return nil }
func (inProcess) Sweep(string, []json.RawMessage) error { return nil }

// resident is the Plugin of a driver in this process.
type resident struct{ d driver.Driver }

func (p resident) Driver() driver.Driver     { return p.d }
func (resident) PID() int                    { return 0 }
func (resident) Record() json.RawMessage     { return nil }
func (resident) Done() <-chan struct{}       { return nil } // it ends with us
func (resident) How() string                 { return "" }
func (resident) Close(context.Context) error { return nil }
func (resident) Detach()                     {}
