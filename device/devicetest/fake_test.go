// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicetest_test

import (
	"testing"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
)

func TestSuiteWithFake(t *testing.T) {
	devicetest.Suite(t, devicetest.SuiteConfig{
		New: func(*testing.T) device.Plugin {
			return &devicetest.Fake{Groups: []device.Group{devicetest.Make("acme/gpu/x", nil, "a", "b", "c"), devicetest.Make("acme/fpga/y", nil)}}
		},
		Renew: func(_ *testing.T, p device.Plugin) device.Plugin {
			return &devicetest.Fake{Groups: p.(*devicetest.Fake).Groups}
		},
	})
}
