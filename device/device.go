// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package device is the contract between a node and whatever finds devices on it:
// accelerators, radios, licence dongles, anything of which there are so many and
// that a task may have for itself.
//
//	Plugin ── Fingerprint ──▶ Group (vendor, type, name; attributes)
//	                           ├── Instance "a"  healthy, where it sits
//	                           └── Instance "b"
//	       ── Reserve(a, b) ─▶ Reservation: variables, mounts, device nodes
//	       ── Stats ─────────▶ one Stats each interval
//
// A plugin says what there is and what a task needs to use it. Who has which
// instance is the node's affair: a plugin is told of no release and must count
// nothing. It imports the standard library, and package driver for the words that
// drivers understand.
package device

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// ErrDisabled says that a plugin is not to be used on this host, by configuration
// or because what it needs can never be there. It is not asked or started again.
var ErrDisabled = errors.New("device: plugin is disabled")

// Plugin finds devices. All methods are safe for concurrent use.
type Plugin interface {
	// Info returns what never changes while the plugin lives. It does not block.
	Info() Info

	// Fingerprint streams what there is: the first value at once, also when there
	// is nothing, later ones on change. Each is the whole, not a difference. The
	// channel is closed when ctx ends, or when the plugin can say no more: then it
	// is asked again later. The error is that of a first value (see Fingerprint.Err).
	Fingerprint(ctx context.Context) (<-chan Fingerprint, error)

	// Reserve returns what a task needs to use these instances, all of one group.
	// It is called before a task starts, and again after a crash: it changes
	// nothing. An unknown ID is an error. An error marked by driver.Recoverable
	// follows the task's restart policy, others are final.
	Reserve(ctx context.Context, ids []string) (Reservation, error)

	// Stats streams measurements, the first at once, then one each interval (0 is a
	// second), until ctx ends. A plugin that measures nothing returns
	// driver.ErrNotImplemented.
	Stats(ctx context.Context, interval time.Duration) (<-chan Stats, error)
}

// Configurer is a plugin that the operator can configure.
type Configurer interface {
	// Configure is called before anything but Info. config is decoded against
	// Info.ConfigSchema, an object with every attribute present; nil without a
	// schema. The last call counts. The error's text goes to the operator.
	Configure(ctx context.Context, config json.RawMessage) error
}

// Info is what a plugin says of itself.
type Info struct {
	Name         string
	Version      string
	ConfigSchema *driver.Schema // of the operator's configuration; nil takes none
}

// Fingerprint is everything a plugin has found, or why it can say nothing: with
// Err set the devices it told of before are not usable until it tells again, and
// with ErrDisabled they are none of this node's.
type Fingerprint struct {
	Groups []Group
	Err    error
}

// Group is devices that are alike. Its name is vendor/type/name; jobs ask for the
// type alone, for vendor/type, or for all three.
type Group struct {
	Vendor     string               `json:"vendor"`
	Type       string               `json:"type"` // gpu, fpga, …
	Name       string               `json:"name"` // the model
	Attributes map[string]Attribute `json:"attributes,omitempty"`
	Instances  []Instance           `json:"instances"`
}

// ID is the group's whole name.
func (g *Group) ID() string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// Is says whether a job that asks for name may get devices of the group.
func (g *Group) Is(name string) bool {
	return name == g.Type || name == g.Vendor+"/"+g.Type || name == g.ID()
}

// Instance is one device. ID is unique within its group and the same after a
// restart of the plugin or the host.
type Instance struct {
	ID          string `json:"id"`
	Healthy     bool   `json:"healthy"` // or it is given to nobody
	Description string `json:"description,omitempty"`
	PCIBusID    string `json:"pci_bus_id,omitempty"` // where it sits, if there: "0000:3b:00.0"
}

// Reservation is what a task needs to use what it reserved.
type Reservation struct {
	Env     map[string]string `json:"env,omitempty"`
	Mounts  []driver.Mount    `json:"mounts,omitempty"`
	Devices []driver.Device   `json:"devices,omitempty"`
}

// Stats are measurements of one moment.
type Stats struct {
	Groups []GroupStats
	Err    error // instead: they cannot be had now
}

// GroupStats are those of a group's instances, by ID.
type GroupStats struct {
	Vendor    string                   `json:"vendor"`
	Type      string                   `json:"type"`
	Name      string                   `json:"name"`
	Instances map[string]InstanceStats `json:"instances"`
}

// InstanceStats are those of one device: the one figure that says most, and all.
type InstanceStats struct {
	Summary *Value    `json:"summary,omitempty"`
	Stats   *Object   `json:"stats,omitempty"`
	Time    time.Time `json:"time"`
}

// Object is a tree of measurements.
type Object struct {
	Nested map[string]*Object `json:"nested,omitempty"`
	Values map[string]Value   `json:"values,omitempty"`
}

// Value is a measurement of one kind: a number, a fraction of two, a text or a
// truth. Unit and Description are for people.
type Value struct {
	Float       *float64 `json:"float,omitempty"`
	FloatOf     *float64 `json:"float_of,omitempty"` // the whole that Float is a part of
	Int         *int64   `json:"int,omitempty"`
	IntOf       *int64   `json:"int_of,omitempty"`
	Text        *string  `json:"text,omitempty"`
	Bool        *bool    `json:"bool,omitempty"`
	Unit        string   `json:"unit,omitempty"`
	Description string   `json:"description,omitempty"`
}
