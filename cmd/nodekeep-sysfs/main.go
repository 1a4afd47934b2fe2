// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command nodekeep-sysfs is the device plugin of package sysfs as a program of its
// own: put it into a node's plugin directory and configure it with match rules.
package main

import (
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/sysfs"
)

func main() { deviceplugin.Serve(sysfs.New(sysfs.Config{Log: deviceplugin.Logger()})) }
