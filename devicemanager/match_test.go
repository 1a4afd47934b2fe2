// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/spec"
)

// zoo is a node with several kinds of devices.
func zoo() *devicetest.Fake {
	attrs := func(memory device.Attribute, version string) map[string]device.Attribute {
		return map[string]device.Attribute{"memory": memory, "driver_version": device.Text(version), "ecc": device.Bool(true), "cores": device.Int(2048, "")}
	}
	return &devicetest.Fake{Name: "zoo", Groups: []device.Group{
		devicetest.Make("nvidia/gpu/T4", attrs(device.Int(16, "GiB"), "470.82.1"), "n1", "n2"),
		devicetest.Make("nvidia/gpu/A100", attrs(device.Float(40.5, "GB"), "550.54"), "a1"),
		devicetest.Make("amd/gpu/MI50", map[string]device.Attribute{"memory": device.Int(32768, "MiB")}, "m1", "m2"),
		devicetest.Make("xilinx/fpga/U50", nil, "x1"),
	}}
}

func c(attribute, operator, value string) spec.Constraint {
	return spec.Constraint{Attribute: attribute, Operator: operator, Value: value}
}

func TestMatch(t *testing.T) {
	with := func(name string, count int, cs ...spec.Constraint) spec.DeviceRequest {
		return spec.DeviceRequest{Name: name, Count: count, Constraints: cs}
	}
	prefer := func(name string, weight int, a spec.Constraint) spec.DeviceRequest {
		a.Weight = weight
		return spec.DeviceRequest{Name: name, Count: 1, Affinities: []spec.Constraint{a}}
	}
	const memory = "${device.attr.memory}"
	for _, tc := range []struct {
		name string
		ask  []spec.DeviceRequest
		want []string
		err  string
	}{
		{name: "type", ask: []spec.DeviceRequest{ask("gpu", 1)}, want: []string{"T4/n1"}},
		{name: "vendor and type", ask: []spec.DeviceRequest{ask("amd/gpu", 1)}, want: []string{"MI50/m1"}},
		{name: "all three", ask: []spec.DeviceRequest{ask("nvidia/gpu/A100", 1)}, want: []string{"A100/a1"}},
		{name: "no count is one", ask: []spec.DeviceRequest{ask("fpga", 0)}, want: []string{"U50/x1"}},
		{name: "unknown", ask: []spec.DeviceRequest{ask("tpu", 1)}, err: `"tpu" is asked for, and this node has nvidia/gpu/T4, nvidia/gpu/A100, amd/gpu/MI50, xilinx/fpga/U50`},
		{name: "vendor alone is no name", ask: []spec.DeviceRequest{ask("nvidia", 1)}, err: "no such device"},
		{name: "all of one group", ask: []spec.DeviceRequest{ask("gpu", 2)}, want: []string{"T4/n1", "T4/n2"}},
		{name: "never from two groups", ask: []spec.DeviceRequest{ask("gpu", 3)}, err: `no such device: 3 of "gpu" asked for; this node has 5, of which 5 are healthy and 5 free`},
		{name: "units", ask: []spec.DeviceRequest{with("gpu", 1, c(memory, ">=", "20 GiB"))}, want: []string{"A100/a1"}},
		{name: "units across", ask: []spec.DeviceRequest{with("gpu", 1, c(memory, ">", "40 GB"), c(memory, "<", "41 GB"))}, want: []string{"A100/a1"}},
		{name: "equal in another unit", ask: []spec.DeviceRequest{with("gpu", 1, c(memory, "=", "32 GiB"))}, want: []string{"MI50/m1"}},
		{name: "other base unit", ask: []spec.DeviceRequest{with("gpu", 1, c(memory, ">", "1 GHz"))}, err: "${device.attr.memory} > 1 GHz is not met: it is 16GiB"},
		{name: "model", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.model}", "regexp", "^A"))}, want: []string{"A100/a1"}},
		{name: "vendor", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.vendor}", "!=", "nvidia"))}, want: []string{"MI50/m1"}},
		{name: "version", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.attr.driver_version}", "version", ">= 500, < 600"))}, want: []string{"A100/a1"}},
		{name: "semver", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.attr.driver_version}", "semver", "~> 470.82"))}, want: []string{"T4/n1"}},
		{name: "bool", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.attr.ecc}", "", "true"))}, want: []string{"T4/n1"}},
		{name: "not set", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.attr.ecc}", "is_not_set", ""))}, want: []string{"MI50/m1"}},
		{name: "set", ask: []spec.DeviceRequest{with("amd/gpu", 1, c("${device.attr.ecc}", "is_set", ""))}, err: "is not met: it is not set"},
		{name: "of the node", ask: []spec.DeviceRequest{with("gpu", 1, c("${attr.kernel.name}", "=", "linux"))}, err: "not set"},
		{name: "this one", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.ids}", "set_contains", "n2"))}, want: []string{"T4/n2"}},
		{name: "one of these", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.ids}", "set_contains_any", "zzz, m2"))}, want: []string{"MI50/m2"}},
		{name: "not this one", ask: []spec.DeviceRequest{with("nvidia/gpu/T4", 1, c("${device.ids}", "!=", "n1"))}, want: []string{"T4/n2"}},
		{name: "affinity", ask: []spec.DeviceRequest{prefer("gpu", 75, c(memory, ">=", "30 GiB"))}, want: []string{"A100/a1"}},
		{name: "aversion", ask: []spec.DeviceRequest{prefer("gpu", -10, c("${device.vendor}", "=", "nvidia"))}, want: []string{"MI50/m1"}},
		{name: "affinity to one", ask: []spec.DeviceRequest{prefer("nvidia/gpu/T4", 10, c("${device.ids}", "set_contains_any", "n2"))}, want: []string{"T4/n2"}},
		{name: "an affinity is no constraint", ask: []spec.DeviceRequest{prefer("fpga", 100, c(memory, ">=", "1 EiB"))}, want: []string{"U50/x1"}},
		{name: "several", ask: []spec.DeviceRequest{ask("gpu", 1), ask("fpga", 1)}, want: []string{"T4/n1", "U50/x1"}},
		{name: "the first leaves room", ask: []spec.DeviceRequest{ask("gpu", 1), ask("nvidia/gpu/T4", 2)}, want: []string{"A100/a1", "T4/n1", "T4/n2"}},
		{name: "the same group twice", ask: []spec.DeviceRequest{ask("nvidia/gpu/T4", 1), ask("nvidia/gpu/T4", 1)}, want: []string{"T4/n1", "T4/n2"}},
		{name: "operator", ask: []spec.DeviceRequest{with("gpu", 1, c(memory, "about", "1"))}, err: `faulty device request: "gpu": unknown operator "about"`},
		{name: "expression", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.model}", "regexp", "("))}, err: "faulty device request"},
		{name: "version of nothing", ask: []spec.DeviceRequest{with("gpu", 1, c("${device.attr.driver_version}", "version", "new"))}, err: "no version constraint"},
		{name: "no name", ask: []spec.DeviceRequest{ask("", 1)}, err: "faulty device request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(zoo())}})
				defer a.stop()
				require.Empty(t, a.Ready(t.Context()))
				got, err := a.get("a", wants(tc.ask...))
				cerr := a.Check(tc.ask)
				if tc.err != "" {
					require.ErrorContains(t, err, tc.err)
					require.ErrorContains(t, cerr, tc.err)
					return
				}
				require.NoError(t, err)
				require.NoError(t, cerr)
				require.Equal(t, tc.want, got)
			})
		})
	}
}

// A search that has no end takes no time.
func TestMatchBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &devicetest.Fake{Name: "many"}
		var asked []spec.DeviceRequest
		for i := range 40 {
			f.Groups = append(f.Groups, devicetest.Make("v/gpu/"+string(rune('A'+i)), nil, "1"))
			asked = append(asked, ask("gpu", 1))
		}
		asked = append(asked, ask("gpu", 1)) // one too many
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(f)}})
		defer a.stop()
		a.Ready(t.Context())
		require.ErrorIs(t, a.Check(asked), devicemanager.ErrNoDevice)
		require.NoError(t, a.Check(asked[:40]))
	})
}
