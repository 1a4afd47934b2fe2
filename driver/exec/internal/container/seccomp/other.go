// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux || !(amd64 || arm64)

package seccomp

// Supported says whether there is a list for this architecture.
const Supported = false

// Filter returns nothing: there is no list for this system and architecture.
func Filter([]string) []byte { return nil }
