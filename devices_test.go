// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

func gpus(ids ...string) *devicetest.Fake {
	return &devicetest.Fake{Groups: []device.Group{devicetest.Make("acme/gpu/x", nil, ids...)}}
}

func asks(al *spec.Alloc, name string, count int) *spec.Alloc {
	al.Tasks[0].Resources.Devices = []spec.DeviceRequest{{Name: name, Count: count}}
	return al
}

// owners says which alloc has which device.
func (n *node) owners() map[string]string {
	out := map[string]string{}
	for _, g := range n.Devices() {
		for id, o := range g.Owners {
			out[id] = o.AllocID
		}
	}
	return out
}

// A task has its devices from its first start to its end, over restarts of the agent,
// and no other task has them meanwhile.
func TestDevices(t *testing.T) {
	f := fake()
	f.Capabilities = &driver.Capabilities{FSIsolation: driver.FSImage, CollectsLogs: true, IdempotentStart: true}
	cfg := config(t, f)
	plugin := gpus("1", "2")
	cfg.Devices.Launchers = []devicemanager.Launcher{devicemanager.InProcess(plugin)}
	n := start(t, cfg)
	one, two := asks(alloc("one", 1, spec.JobService), "gpu", 1), asks(alloc("two", 1, spec.JobService), "acme/gpu/x", 1)
	n.apply(1, one, two)
	n.status("one", allocrunner.Running)
	n.status("two", allocrunner.Running)
	before := n.owners()
	require.Len(t, before, 2)
	require.NotEqual(t, before["1"], before["2"])
	for _, c := range f.Configs() {
		id := c.Devices[0].HostPath[len("/dev/"):]
		require.Equal(t, before[id], c.Owner.AllocID)
		require.Contains(t, c.Env, "FAKE_IDS="+id)
		require.Equal(t, []string{"FAKE_IDS=" + id}, c.DevEnv)
		require.Equal(t, []driver.Mount{{Source: "/lib/" + id, Target: "/lib/" + id, ReadOnly: true}}, c.Mounts)
	}
	n.stop()

	cfg.Devices.Launchers = []devicemanager.Launcher{devicemanager.InProcess(gpus("1", "2"))}
	n = start(t, cfg)
	n.apply(2, one, two)
	n.status("one", allocrunner.Running)
	require.Equal(t, before, n.owners())
	// Asked for more than there are: refused, with the reason; nothing is taken.
	var refused *RefusedError
	err := n.Apply(t.Context(), Desired{Index: 3, Full: true, Allocs: []*spec.Alloc{one, two, asks(alloc("three", 3, spec.JobService), "gpu", 3)}})
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, `3 of "gpu" asked for`)
	n.apply(4, one)
	n.absent("two")
	require.Len(t, n.owners(), 1)
	n.apply(5)
	n.absent("one")
	require.Empty(t, n.owners())
}

// Without plugins of devices a task that asks for one is refused, as ever.
func TestNoDevices(t *testing.T) {
	cfg := config(t, fake())
	n := start(t, cfg)
	err := n.Apply(t.Context(), Desired{Index: 1, Full: true, Allocs: []*spec.Alloc{asks(alloc("a", 1, spec.JobBatch), "gpu", 1)}})
	require.ErrorContains(t, err, "tasks[0].resources.devices: this node does nothing about devices")
	n.apply(2)
	n.stop()
	cfg.DataDir, cfg.Devices.Dir = "", "/x"
	_, err = New(cfg)
	require.ErrorContains(t, err, "Config.Devices")
}
