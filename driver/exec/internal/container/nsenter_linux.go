// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build cgo

package container

import _ "github.com/opencontainers/runc/libcontainer/nsenter" // enters namespaces before the Go runtime starts

const hasNsenter = true
