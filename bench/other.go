// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

// Command bench measures the product on Linux only: it reads /proc and cgroups.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: needs Linux")
	os.Exit(1)
}
