// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// maxSocketPath is what all systems' socket addresses hold.
const maxSocketPath = 103

func shorten(path string) (short string, done func(), err error) {
	if len(path) > maxSocketPath {
		return "", nil, fmt.Errorf("api: the path of the socket %s has %d bytes, %d are possible here: choose a shorter data directory",
			path, len(path), maxSocketPath)
	}
	return path, func() {}, nil
}

func (*listener) keep(context.Context) (stop func()) { return func() {} }

func restrict(_, _ string, _ syscall.RawConn) error { return nil }

func isRefused(err error) bool {
	const wsaRefused = syscall.Errno(10061) // what Windows says
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaRefused)
}

func peer(net.Conn) string { return "unknown" }
