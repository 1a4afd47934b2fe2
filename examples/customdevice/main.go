// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command customdevice is a device plugin as a program of its own. Its devices are
// seats of a licence: each is a file in a directory, and a task that has one may
// use the program that needs it.
//
//	resources {
//	  device "acme/seat" {
//	    count = 2
//	  }
//	}
//
// Put it into a node's plugin directory. docs/guides/writing-a-device-plugin.md
// walks through it.
package main

import "github.com/nodekeep/nodekeep/device/deviceplugin"

func main() { deviceplugin.Serve(&seats{}) }
