// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Devices gives devices to tasks; *devicemanager.Manager does. Methods may be
// called from any goroutine.
type Devices interface {
	// Reserve is idempotent: a task has what it has until Release. running says that
	// the task runs already, with what it was given before.
	Reserve(ctx context.Context, allocID, task string, res *spec.Resources, running bool) (device.Reservation, []spec.DeviceInstance, error)
	// Release is idempotent too.
	Release(ctx context.Context, allocID, task string) error
}

// given is what the devices hook remembers of a task, to tell each choice once.
type given struct {
	Devices string `json:"devices,omitempty"`
}

// devices brings a task the devices that it asks for. Who has what is remembered
// where they are given out, so that it outlives agent and hook.
func devices(d Devices) taskrunner.HookFunc {
	return func(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		if len(t.Resources.Devices)+len(t.Resources.Granted) == 0 {
			return nil, nil
		}
		return &taskrunner.Hook[given]{
			Name: "devices", Stage: taskrunner.StageDevices,
			Prestart: func(ctx context.Context, r *taskrunner.Request, s *given) (c taskrunner.Contribution, err error) {
				res, got, err := d.Reserve(ctx, r.Alloc.ID, r.Task.Name, &r.Task.Resources, r.Restored)
				if err != nil {
					return c, fmt.Errorf("core: devices of task %q: %w", r.Task.Name, err)
				}
				c.Env = res.Env
				if c.Mounts, c.Devices, err = files(&r.Driver, res); err != nil {
					return c, err
				}
				if text := listed(got); text != s.Devices {
					s.Devices = text
					r.Emit(taskrunner.DeviceEvent, map[string]string{"devices": text, "message": "has " + text})
				}
				return c, nil
			},
			Stop: func(ctx context.Context, r *taskrunner.Request, _ *given) error {
				return d.Release(ctx, r.Alloc.ID, r.Task.Name)
			},
		}, nil
	}
}

// files are what a driver must bring into its task. A task that sees the host's files
// as they are has those already whose path is the same for it.
func files(d *driver.Info, r device.Reservation) ([]driver.Mount, []driver.Device, error) {
	if d.Capabilities.FSIsolation != driver.FSNone && d.Capabilities.FSIsolation != "" {
		if d.Capabilities.NoMounts && len(r.Mounts)+len(r.Devices) > 0 {
			return nil, nil, fmt.Errorf("core: driver %q can bring no devices that are files into a task: use one that can", d.Name)
		}
		return r.Mounts, r.Devices, nil
	}
	moved := func(host, task string) error {
		return fmt.Errorf("core: the device's %s is to be %s in the task, and tasks of driver %q see the host's files: use a driver with a file system of its own", host, task, d.Name)
	}
	for _, m := range r.Mounts {
		if m.Source != m.Target {
			return nil, nil, moved(m.Source, m.Target)
		}
	}
	for _, n := range r.Devices {
		if n.HostPath != n.TaskPath {
			return nil, nil, moved(n.HostPath, n.TaskPath)
		}
	}
	return nil, nil, nil
}

// listed names devices for people.
func listed(l []spec.DeviceInstance) string {
	var out []string
	for _, d := range l {
		out = append(out, fmt.Sprintf("%s/%s/%s[%s]", d.Vendor, d.Type, d.Name, strings.Join(d.IDs, ",")))
	}
	return strings.Join(out, " ")
}
