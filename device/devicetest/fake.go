// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package devicetest is for tests of and with device plugins: Fake, a plugin whose
// devices the test makes up, and Suite, the tests every plugin must pass.
package devicetest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
)

// Fake is a device plugin in memory. The zero value has no devices and is called
// "fake". Its fields are set before its first use, what changes later by methods,
// which may be called from any goroutine.
type Fake struct {
	Name   string
	Schema *driver.Schema
	Groups []device.Group // the first fingerprint
	Silent bool           // no first fingerprint until Set or Fail
	// ReserveHook, if set, is called first by Reserve; its error is Reserve's.
	ReserveHook func(ctx context.Context, ids []string) error

	mu       sync.Mutex
	now      device.Fingerprint
	spoken   bool
	began    bool
	change   chan struct{}
	config   json.RawMessage
	reserved [][]string
}

// begin sets up what the zero value lacks; f.mu is held.
func (f *Fake) begin() {
	if !f.began {
		f.began, f.change = true, make(chan struct{})
		f.now, f.spoken = device.Fingerprint{Groups: f.Groups}, !f.Silent
	}
}

func (f *Fake) say(fp device.Fingerprint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	f.now, f.spoken = fp, true
	close(f.change)
	f.change = make(chan struct{})
}

// Set makes these the devices there are.
func (f *Fake) Set(groups ...device.Group) { f.say(device.Fingerprint{Groups: groups}) }

// Fail has the plugin say that it cannot tell.
func (f *Fake) Fail(err error) { f.say(device.Fingerprint{Err: err}) }

// Reserved returns the IDs of each Reserve that succeeded.
func (f *Fake) Reserved() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.reserved)
}

// Config returns what the plugin was configured with last.
func (f *Fake) Config() json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.config
}

// Info implements device.Plugin.
func (f *Fake) Info() device.Info {
	name := f.Name
	if name == "" {
		name = "fake"
	}
	return device.Info{Name: name, Version: "1.0.0", ConfigSchema: f.Schema}
}

// Configure implements device.Configurer.
func (f *Fake) Configure(_ context.Context, config json.RawMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = config
	return nil
}

// Fingerprint implements device.Plugin.
func (f *Fake) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	out := make(chan device.Fingerprint)
	go func() { // until ctx ends, which the reader of out sees
		defer close(out)
		for {
			f.mu.Lock()
			f.begin()
			now, spoken, change := f.now, f.spoken, f.change
			f.mu.Unlock()
			to := out
			if !spoken {
				to = nil
			}
			select {
			case to <- now:
			case <-change:
				continue
			case <-ctx.Done():
				return
			}
			select {
			case <-change:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// Reserve implements device.Plugin. The reservation names the instances in FAKE_IDS
// and has a mount and a device node for each.
func (f *Fake) Reserve(ctx context.Context, ids []string) (r device.Reservation, err error) {
	if f.ReserveHook != nil {
		if err := f.ReserveHook(ctx, ids); err != nil {
			return r, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	for _, id := range ids {
		if !slices.ContainsFunc(f.now.Groups, func(g device.Group) bool {
			return slices.ContainsFunc(g.Instances, func(in device.Instance) bool { return in.ID == id })
		}) {
			return device.Reservation{}, fmt.Errorf("fake: unknown device %q", id)
		}
		r.Mounts = append(r.Mounts, driver.Mount{Source: "/lib/" + id, Target: "/lib/" + id, ReadOnly: true})
		r.Devices = append(r.Devices, driver.Device{HostPath: "/dev/" + id, TaskPath: "/dev/" + id, Permissions: "rw"})
	}
	r.Env = map[string]string{"FAKE_IDS": strings.Join(ids, ",")}
	f.reserved = append(f.reserved, slices.Clone(ids))
	return r, nil
}

// Stats implements device.Plugin: each instance's number of samples so far.
func (f *Fake) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	if interval <= 0 {
		interval = time.Second
	}
	out := make(chan device.Stats)
	go func() {
		defer close(out)
		t := time.NewTicker(interval)
		defer t.Stop()
		for n := int64(1); ; n++ {
			select {
			case out <- f.sample(n):
			case <-ctx.Done():
				return
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (f *Fake) sample(n int64) (s device.Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin()
	for _, g := range f.now.Groups {
		gs := device.GroupStats{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Instances: map[string]device.InstanceStats{}}
		for _, in := range g.Instances {
			v := device.Value{Int: &n, Unit: "#"}
			gs.Instances[in.ID] = device.InstanceStats{Summary: &v, Stats: &device.Object{Values: map[string]device.Value{"samples": v}}, Time: time.Now()}
		}
		s.Groups = append(s.Groups, gs)
	}
	return s
}

// Make makes a group of healthy instances. name is vendor/type/name.
func Make(name string, attributes map[string]device.Attribute, ids ...string) device.Group {
	parts := strings.SplitN(name, "/", 3)
	g := device.Group{Vendor: parts[0], Type: parts[1], Name: parts[2], Attributes: maps.Clone(attributes)}
	for _, id := range ids {
		g.Instances = append(g.Instances, device.Instance{ID: id, Healthy: true})
	}
	return g
}
