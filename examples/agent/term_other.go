// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package main

import (
	"context"
	"io"
	"os"

	"github.com/nodekeep/nodekeep/driver"
)

// Nodes that run commands are Linux; elsewhere a terminal is left as it is.

func openInput(f *os.File) (io.ReadCloser, error) { return f, nil }

func makeRaw(*os.File) (restore func(), err error) { return func() {}, nil }

func followSize(context.Context, *os.File) (size driver.TerminalSize, later <-chan driver.TerminalSize, end func(), err error) {
	return size, nil, func() {}, nil
}
