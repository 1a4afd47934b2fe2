// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command nodekeep-exec makes the containers of the driver exec, and nothing else,
// for hosts that want that done by something smaller than their own binary: name it
// in the driver's configuration or put it beside the host's binary. It needs cgo; to
// be the same on every host it can be linked statically:
//
//	go build -tags netgo,osusergo -ldflags '-s -w -linkmode external -extldflags -static' ./cmd/nodekeep-exec
//
// The entry's init does all the work; main is reached only when a person starts it.
package main

import (
	"os"

	_ "github.com/nodekeep/nodekeep/driver/exec/entry"
)

func main() {
	_, _ = os.Stderr.WriteString("nodekeep-exec is started by the supervisor, not by hand\n")
	os.Exit(2)
}
