// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/taskenv"
)

func (f *fake) Node() taskenv.Node {
	return taskenv.Node{ID: "n1", Name: "one", Datacenter: "dc1", Region: "global", Attrs: map[string]string{"kernel": "6", "driver.x": "host's"}}
}

func (f *fake) Plugins() []drivermanager.Status {
	return []drivermanager.Status{
		{Program: "x", Driver: "x", InProcess: true, Health: driver.Healthy, Version: "2", Attributes: map[string]string{"driver.x": "1", "driver.x.mode": "fast"}},
		{Program: "y-1.2", Health: driver.Unhealthy, Description: "its engine is not there", Restarts: 3},
		{Program: "z", Driver: "zed", Health: driver.Healthy, PID: 77},
		{Program: "seats", Health: driver.Undetected, OtherKind: true},
	}
}

func (f *fake) DevicePlugins() []devicemanager.Status {
	return []devicemanager.Status{
		{Program: "seats", Plugin: "seats", Health: driver.Healthy, Version: "3", PID: 78},
		{Program: "y-1.2", Health: driver.Unhealthy, Description: "its engine is not there"},
		{Program: "z", Health: driver.Undetected, OtherKind: true},
	}
}

func (f *fake) Devices() []devicemanager.Group {
	g := device.Group{Vendor: "acme", Type: "seat", Name: "render", Attributes: map[string]device.Attribute{"seats": device.Int(2, "")},
		Instances: []device.Instance{{ID: "1", Healthy: true}, {ID: "2", Description: "empty"}}}
	return []devicemanager.Group{{Group: g, Plugin: "seats", Owners: map[string]devicemanager.Owner{"1": {AllocID: "a", Task: "t"}}}}
}

func TestNode(t *testing.T) {
	c := dialFake(t, newFake(), false)
	n, err := c.Node(t.Context())
	require.NoError(t, err)
	require.Equal(t, "n1", n.ID)
	require.Equal(t, map[string]string{"kernel": "6", "driver.x": "host's", "driver.x.mode": "fast"}, n.Attributes)
	require.True(t, n.Drivers["x"].Healthy)
	raw, err := json.Marshal(n)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"devices":[{"vendor":"acme","type":"seat","name":"render","attributes":{"seats":{"int":2}},"instances":[{"id":"1","healthy":true},{"id":"2","healthy":false,"description":"empty"}],"plugin":"seats","owners":{"1":{"alloc_id":"a","task":"t"}}}]`)
	require.Contains(t, string(raw), `"resources":{}`)

	list, err := c.Plugins(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Plugin{
		{Program: "x", Type: "driver", Name: "x", Health: driver.Healthy, Version: "2", BuiltIn: true},
		{Program: "y-1.2", Type: "driver", Health: driver.Unhealthy, Description: "its engine is not there", Restarts: 3},
		{Program: "z", Type: "driver", Name: "zed", Health: driver.Healthy, PID: 77},
		{Program: "seats", Type: "device", Name: "seats", Health: driver.Healthy, Version: "3", PID: 78},
	}, list)
}
