// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
)

// What a driver must bring into the task, and what it need not or cannot.
func TestDeviceFiles(t *testing.T) {
	same := device.Reservation{Mounts: []driver.Mount{{Source: "/a", Target: "/a"}}, Devices: []driver.Device{{HostPath: "/dev/x", TaskPath: "/dev/x"}}}
	for _, tc := range []struct {
		caps  driver.Capabilities
		r     device.Reservation
		files int
		err   string
	}{
		{driver.Capabilities{FSIsolation: driver.FSImage}, same, 2, ""},
		{driver.Capabilities{FSIsolation: driver.FSChroot, NoMounts: true}, same, 0, "no devices that are files"},
		{driver.Capabilities{FSIsolation: driver.FSChroot, NoMounts: true}, device.Reservation{}, 0, ""},
		{driver.Capabilities{NoMounts: true}, same, 0, ""},
		{driver.Capabilities{FSIsolation: driver.FSNone}, same, 0, ""},
		{driver.Capabilities{}, device.Reservation{Mounts: []driver.Mount{{Source: "/a", Target: "/b"}}}, 0, "/a is to be /b in the task"},
		{driver.Capabilities{}, device.Reservation{Devices: []driver.Device{{HostPath: "/dev/x", TaskPath: "/dev/y"}}}, 0, "/dev/x is to be /dev/y"},
	} {
		m, d, err := files(&driver.Info{Name: "d", Capabilities: tc.caps}, tc.r)
		require.Equal(t, tc.files, len(m)+len(d))
		if tc.err == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, tc.err)
		}
	}
}
