// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !cgo

package container

const hasNsenter = false
