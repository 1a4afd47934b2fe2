// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux || !(amd64 || arm64)

package shim

import (
	"errors"
	"os"
)

// Supported says whether this architecture has a shim.
const Supported = false

// Open fails: there is no code for this system and architecture.
func (p Program) Open() (*os.File, error) {
	return nil, errors.New("shim: only Linux on amd64 and arm64 has one")
}
