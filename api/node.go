// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/taskenv"
)

// NodeReader is what the API reads of the node itself. *nodekeep.Agent is one.
type NodeReader interface {
	Node() taskenv.Node
	Plugins() []drivermanager.Status
	Devices() []devicemanager.Group
	DevicePlugins() []devicemanager.Status
}

// Node is the node as "node" shows it. The names of the fields are a contract.
type Node struct {
	ID         string                           `json:"id"`
	Name       string                           `json:"name"`
	Datacenter string                           `json:"datacenter"`
	Region     string                           `json:"region"`
	Class      string                           `json:"class,omitempty"`
	Pool       string                           `json:"pool,omitempty"`
	Attributes map[string]string                `json:"attributes"` // the drivers' included
	Meta       map[string]string                `json:"meta,omitempty"`
	Resources  map[string]int64                 `json:"resources"`
	Drivers    map[string]nodekeep.DriverStatus `json:"drivers"`
	Devices    []devicemanager.Group            `json:"devices"`
}

// Plugin is a program that is a driver or finds devices, or should, as "plugins"
// shows it.
type Plugin struct {
	Program     string             `json:"program"`
	Type        string             `json:"type"`   // driver or device
	Name        string             `json:"name"`   // as jobs name it; empty while it is not known
	Health      driver.HealthState `json:"health"` // empty until it has said something
	Version     string             `json:"version"`
	Description string             `json:"description"`
	BuiltIn     bool               `json:"built_in"` // it runs in the agent's process
	PID         int                `json:"pid"`      // 0 for none of its own
	Restarts    int                `json:"restarts"` // since the agent was started
}

func (s *server) node(w http.ResponseWriter, _ *http.Request) error {
	n := s.Agent.Node()
	out := Node{ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Region: n.Region, Class: n.Class, Pool: n.Pool, Meta: n.Meta,
		Attributes: map[string]string{}, Resources: map[string]int64{}, Drivers: map[string]nodekeep.DriverStatus{}, Devices: []devicemanager.Group{}}
	for _, p := range s.Agent.Plugins() {
		if p.Driver == "" {
			continue
		}
		maps.Copy(out.Attributes, p.Attributes)
		out.Drivers[p.Driver] = nodekeep.DriverStatus{Name: p.Driver, Version: p.Version, Description: p.Description, Attributes: p.Attributes,
			Detected: p.Health != "" && p.Health != driver.Undetected, Healthy: p.Health == driver.Healthy}
	}
	maps.Copy(out.Attributes, n.Attrs)
	out.Devices = append(out.Devices, s.Agent.Devices()...)
	return writeJSON(w, out)
}

func (s *server) plugins(w http.ResponseWriter, _ *http.Request) error {
	list := []Plugin{}
	for _, p := range s.Agent.Plugins() {
		if p.OtherKind {
			continue
		}
		list = append(list, Plugin{Program: p.Program, Type: "driver", Name: p.Driver, Health: p.Health, Version: p.Version,
			Description: p.Description, BuiltIn: p.InProcess, PID: p.PID, Restarts: p.Restarts})
	}
	for _, p := range s.Agent.DevicePlugins() {
		// One that never said who it is is told of once.
		told := slices.ContainsFunc(list, func(l Plugin) bool { return l.Program == p.Program })
		if p.OtherKind || p.Plugin == "" && told {
			continue
		}
		list = append(list, Plugin{Program: p.Program, Type: "device", Name: p.Plugin, Health: p.Health, Version: p.Version,
			Description: p.Description, BuiltIn: p.InProcess, PID: p.PID, Restarts: p.Restarts})
	}
	return writeJSON(w, list)
}

// Node tells what the node is and which drivers and devices it has.
func (c *Client) Node(ctx context.Context) (n Node, err error) {
	return n, c.call(ctx, http.MethodGet, "/v1/node", nil, &n)
}

// Plugins lists the programs of drivers and devices, those in the agent's process
// included, and what is wrong with those that do not run.
func (c *Client) Plugins(ctx context.Context) (list []Plugin, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/plugins", nil, &list)
}
