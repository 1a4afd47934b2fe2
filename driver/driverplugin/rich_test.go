// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

func newRich(role string, f *drivertest.Fake) driver.Driver { return nil }
func hostile(string) bool                                   { return false }
