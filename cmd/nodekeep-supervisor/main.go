// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command nodekeep-supervisor is the supervisor alone, for hosts that want it
// smaller than their own binary: name it in the configuration or put it beside
// the host's binary. The package's init does all the work; main is reached only
// when a person starts it.
package main

import (
	"os"

	_ "github.com/nodekeep/nodekeep/supervisor"
)

func main() {
	_, _ = os.Stderr.WriteString("nodekeep-supervisor is started by the agent, not by hand\n")
	os.Exit(2)
}
