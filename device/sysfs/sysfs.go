// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package sysfs is a device plugin for whatever Linux shows in /sys: accelerators,
// serial adapters, cameras, dongles. It needs no vendor's library; what is offered
// is said by match rules, of which the first that fits a device counts.
//
//	/sys/bus/<subsystem>/devices/*  or  /sys/class/<subsystem>/*
//	        │ class, vendor, device, driver, numa_node       a Match
//	        ▼
//	group   vendor name / Match.Type / model
//	        │ instances by address (PCI), serial number (USB) or name
//	        ▼
//	task    the device nodes below it, and their names in the environment
//
// An operator writes, as a plugin's configuration:
//
//	match {
//	  subsystem = "pci"
//	  class     = "0302"   # a prefix of the class: 3D controllers
//	  type      = "gpu"
//	}
//
// What is plugged in or out, or gets another driver, the kernel tells at once (its
// uevents, over netlink); nothing is done as long as nothing happens. In a user
// namespace, or where a filter forbids the socket, it tells nothing: there the
// plugin looks each Period, and says so in its log.
//
// In a host's own process: devicemanager.InProcess(sysfs.New(sysfs.Config{…})); as a
// program: cmd/nodekeep-sysfs.
package sysfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
)

// Config is what to offer. The zero value offers nothing.
type Config struct {
	Match []Match
	// Period is between two looks where the kernel does not tell of changes (see
	// package). Default 10 s.
	Period time.Duration
	Sys    string // default /sys
	Dev    string // default /dev
	Log    hclog.Logger
}

// Match says which devices are offered, and as what. What is empty fits anything.
type Match struct {
	Type      string `json:"type"`      // required: as jobs ask for them
	Subsystem string `json:"subsystem"` // required: pci, usb, or a class such as tty, video4linux, net
	// Class is the beginning of PCI's class code ("03" displays, "0302" 3D
	// controllers, "1200" accelerators) or of USB's.
	Class  string `json:"class"`
	Vendor string `json:"vendor"` // hexadecimal id: "10de"
	Device string `json:"device"` // hexadecimal id
	Driver string `json:"driver"` // in use, as the kernel names it
	NUMA   *int   `json:"numa_node"`

	VendorName string `json:"vendor_name"` // instead of what the device or its id says
	Model      string `json:"model"`
	// Nodes are device nodes that a task gets beside the device's own, such as one
	// that all devices of a driver share.
	Nodes       []string `json:"nodes"`
	Permissions string   `json:"permissions"` // of r, w, m; default rw
	Env         string   `json:"env"`         // variable with the ids; default NODEKEEP_<TYPE>. <it>_NODES has the nodes
}

// Plugin is a device.Plugin.
type Plugin struct {
	mu  sync.Mutex
	cfg Config
}

// New makes a plugin. Faults in the rules are told by Fingerprint.
func New(cfg Config) *Plugin {
	p := &Plugin{cfg: cfg}
	if cfg.Period <= 0 {
		p.cfg.Period = 10 * time.Second
	}
	if cfg.Sys == "" {
		p.cfg.Sys = "/sys"
	}
	if cfg.Dev == "" {
		p.cfg.Dev = "/dev"
	}
	if cfg.Log == nil {
		p.cfg.Log = hclog.NewNullLogger()
	}
	return p
}

// Info implements device.Plugin.
func (p *Plugin) Info() device.Info {
	text := func() *driver.Schema { return driver.Default(driver.Attr("string", false), `""`) }
	match := map[string]*driver.Schema{
		"type": driver.Attr("string", true), "subsystem": driver.Attr("string", true), "numa_node": driver.Attr("number", false),
		"nodes": driver.Default(driver.Attr("list(string)", false), "[]"),
	}
	for _, name := range []string{"class", "vendor", "device", "driver", "vendor_name", "model", "permissions", "env"} {
		match[name] = text()
	}
	return device.Info{Name: "sysfs", Version: "0.1.0", ConfigSchema: driver.Object(map[string]*driver.Schema{
		"match":  {Kind: driver.KindBlockList, Nested: driver.Object(match)},
		"period": text(),
	})}
}

// Configure implements device.Configurer. Rules replace those of New.
func (p *Plugin) Configure(_ context.Context, raw json.RawMessage) error {
	var in struct {
		Match  []Match
		Period string
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("sysfs: configuration: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cfg := p.cfg
	if len(in.Match) > 0 {
		cfg.Match = in.Match
	}
	if in.Period != "" {
		d, err := time.ParseDuration(in.Period)
		if err != nil || d < time.Second {
			return fmt.Errorf("sysfs: period %q: must be a time of at least a second, such as \"10s\"", in.Period)
		}
		cfg.Period = d
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	p.cfg = cfg
	return nil
}

var (
	hexForm  = regexp.MustCompile(`^[0-9a-fA-F]*$`)
	nameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	envForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	permForm = regexp.MustCompile(`^[rwm]*$`)
)

// validate lists all faults.
func (c *Config) validate() error {
	var errs []error
	for i, m := range c.Match {
		bad := func(field, value, must string) {
			errs = append(errs, fmt.Errorf("sysfs: match[%d].%s is %q: %s", i, field, value, must))
		}
		if m.Type == "" {
			bad("type", "", "must say as what jobs ask for the device")
		}
		if !nameForm.MatchString(m.Subsystem) || strings.HasPrefix(m.Subsystem, ".") {
			bad("subsystem", m.Subsystem, "must be pci, usb or a class in /sys/class")
		}
		for _, f := range []struct{ field, value string }{{"class", m.Class}, {"vendor", m.Vendor}, {"device", m.Device}} {
			if !hexForm.MatchString(strings.TrimPrefix(f.value, "0x")) {
				bad(f.field, f.value, "must be hexadecimal")
			}
		}
		for _, n := range m.Nodes {
			if !strings.HasPrefix(n, "/") {
				bad("nodes", n, "must be an absolute path")
			}
		}
		if m.Env != "" && !envForm.MatchString(m.Env) {
			bad("env", m.Env, "must be the name of a variable")
		}
		if !permForm.MatchString(m.Permissions) {
			bad("permissions", m.Permissions, "must be of r, w and m")
		}
	}
	return errors.Join(errs...)
}

func (p *Plugin) config() Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}

// Fingerprint implements device.Plugin.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	cfg := p.config()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", device.ErrDisabled, err)
	}
	out := make(chan device.Fingerprint)
	go func() { // until ctx ends, which the reader of out sees
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var news <-chan change
		if len(cfg.Match) > 0 { // otherwise there is nothing to look for
			news = watch(ctx, &cfg, listen)
			defer func() {
				cancel()
				for range news {
				}
			}()
		}
		var last *device.Fingerprint
		for {
			fp := device.Fingerprint{}
			found, err := scan(&cfg)
			if fp.Err = err; err == nil {
				fp.Groups = grouped(found)
			}
			if last == nil || !same(*last, fp) {
				select {
				case out <- fp:
					last = &fp
				case <-ctx.Done():
					return
				}
			}
			var again <-chan time.Time
			if err != nil { // nothing tells that it can be seen again
				again = time.After(cfg.Period)
			}
			if !wait(ctx, news, again, func(c change) bool { return c.touches(&cfg, found) }) {
				return
			}
		}
	}()
	return out, nil
}

func same(a, b device.Fingerprint) bool {
	if a.Err != nil || b.Err != nil {
		return a.Err != nil && b.Err != nil && a.Err.Error() == b.Err.Error()
	}
	return reflect.DeepEqual(a.Groups, b.Groups)
}

// Reserve implements device.Plugin. It looks anew: a device that was unplugged and
// plugged in again may have other nodes.
func (p *Plugin) Reserve(_ context.Context, ids []string) (r device.Reservation, err error) {
	cfg := p.config()
	found, err := scan(&cfg)
	if err != nil {
		return r, driver.Recoverable(err)
	}
	r.Env = map[string]string{}
	nodes := map[string][]string{}
	for _, id := range ids {
		n := slices.IndexFunc(found, func(f *thing) bool { return f.id == id })
		if n < 0 {
			return device.Reservation{}, fmt.Errorf("sysfs: no device %q fits a rule", id)
		}
		f := found[n]
		if f.trouble != "" {
			return device.Reservation{}, driver.Recoverable(fmt.Errorf("sysfs: device %q: %s", id, f.trouble))
		}
		env := f.env()
		r.Env[env] = joined(r.Env[env], ",", id)
		for _, path := range slices.Concat(f.nodes, f.match.Nodes) {
			if slices.ContainsFunc(r.Devices, func(d driver.Device) bool { return d.HostPath == path }) {
				continue
			}
			perm := f.match.Permissions
			if perm == "" {
				perm = "rw"
			}
			r.Devices = append(r.Devices, driver.Device{HostPath: path, TaskPath: path, Permissions: perm})
			nodes[env] = append(nodes[env], path)
		}
	}
	for env, list := range nodes {
		r.Env[env+"_NODES"] = strings.Join(list, ":")
	}
	return r, nil
}

func joined(list, sep, s string) string {
	if list == "" {
		return s
	}
	return list + sep + s
}
