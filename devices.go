// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/spec"
)

// devicesDir is where processes of device plugins have their sockets and logs, below
// the runtime directory. No scope of a supervisor has such a name.
const devicesDir = ".devices"

// newDevices finds the device plugins and what tasks have of them.
func (a *Agent) newDevices() (err error) {
	cfg := a.cfg.Devices
	cfg.Dir, cfg.Store, cfg.Log = filepath.Join(a.id.RuntimeDir, devicesDir), a.store, a.log.Named("device")
	if a.devices, err = devicemanager.New(cfg); err != nil {
		return fmt.Errorf("nodekeep: Config.Devices: %w", err)
	}
	return nil
}

// runDevices runs the device plugins until ctx ends.
func (a *Agent) runDevices(ctx context.Context) error {
	err := a.devices.Run(ctx)
	// Empty now, or not there.
	_ = os.Remove(filepath.Join(a.id.RuntimeDir, devicesDir))
	return err
}

// pluginsReady waits for the first word of all drivers and device plugins, for a
// bounded time.
func (a *Agent) pluginsReady(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { a.drivers.ready(ctx) })
	wg.Go(func() {
		if silent := a.devices.Ready(ctx); ctx.Err() == nil && len(silent) > 0 {
			a.log.Warn("device plugins are silent, going on without them", "programs", silent)
		}
	})
	wg.Wait()
}

// freeDevices gives back what allocs have that are gone, or that cannot be run any
// more.
func (a *Agent) freeDevices() {
	err := a.devices.Retain(func(id string) bool {
		e, err := a.entry(id)
		return err == nil && e.runner != nil
	})
	if err != nil {
		a.log.Warn("devices of allocs that are gone", "error", err)
	}
}

// hasDevices says whether the host gives this node device plugins.
func (a *Agent) hasDevices() bool { return len(a.cfg.Devices.Launchers) > 0 }

// knownDevices lists the tasks that ask for devices which this node does not have.
// A scheduler's choice counts; it may know of what a plugin has not told yet.
func (a *Agent) knownDevices(al *spec.Alloc) error {
	var errs []error
	for i := range al.Tasks {
		t := &al.Tasks[i]
		if len(t.Resources.Devices) == 0 || len(t.Resources.Granted) > 0 {
			continue
		}
		if err := a.devices.Check(t.Resources.Devices); err != nil {
			errs = append(errs, fmt.Errorf("tasks[%s].resources.devices: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Devices returns the node's devices and which tasks have them. It does not block.
func (a *Agent) Devices() []devicemanager.Group { return a.devices.Devices() }

// DevicePlugins returns the programs that find devices, or should, those of this
// process included: also one that does not start, and why.
func (a *Agent) DevicePlugins() []devicemanager.Status { return a.devices.Status() }

// DeviceStats streams what the device plugins measure until ctx or Run ends; every
// interval, 0 being a second, one value of each plugin.
func (a *Agent) DeviceStats(ctx context.Context, interval time.Duration) <-chan device.Stats {
	return a.devices.Stats(ctx, interval)
}
