// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package entry makes the program that imports it a creator, and libcontainer's
// init, when it is started as one: under a private argv[0], with a known argv[1].
// Its init never returns then, and does nothing otherwise.
//
// Package driver/exec imports it. A program that shall do nothing else imports this
// package alone, as cmd/nodekeep-exec does.
package entry

import (
	"os"

	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
	"github.com/nodekeep/nodekeep/internal/creator"
)

func init() {
	if creator.Asked(os.Args) {
		container.Main()
	}
}
