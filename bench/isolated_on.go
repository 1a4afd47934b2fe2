// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && isolated

package main

import (
	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver/exec"
)

// isolatedDrivers are the drivers that other modes shall not have to carry along: a
// supervisor is this program, and its size counts.
func isolatedDrivers(creator string) []nodekeep.DriverFunc {
	return []nodekeep.DriverFunc{exec.New(exec.Config{CreatorExe: creator})}
}
