// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && !isolated

package main

import "github.com/nodekeep/nodekeep"

// isolatedDrivers are none: see the other one.
func isolatedDrivers(string) []nodekeep.DriverFunc { return nil }
