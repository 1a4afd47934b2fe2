// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command customdriver is a task driver as a program of its own. Its tasks are
// scripts that stand in the job file:
//
//	task "hello" {
//	  driver = "script"
//	  config {
//	    interpreter = ["/bin/sh", "-c"]
//	    script      = "echo hello; sleep 60"
//	  }
//	}
//
// Put it into a node's plugin directory (nodekeep serve --plugin-dir DIR). What it
// runs outlives it: each alloc has a supervisor, which the next process of the
// driver finds again.
//
//	driver.go   who the driver is, and how a task starts
//	task.go     what is done with a task that was started
//
// docs/guides/writing-a-driver.md walks through it.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/supervisor"
)

func main() {
	run := flag.String("runtime-dir", "/run/nodekeep-script", "where the tasks' supervisors live")
	flag.Parse()
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: *run, Warn: func(msg string) { driverplugin.Logger().Warn(msg) }})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driverplugin.Serve(newDriver(pool))
}
