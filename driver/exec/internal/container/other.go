// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package container

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
)

const onlyLinux = "only Linux has containers of this kind"

// Probe says that there is nothing to isolate with.
func Probe(context.Context) Features {
	return Features{Cgroup: "none", Seccomp: onlyLinux, UserNS: onlyLinux, IDMap: onlyLinux, Overlay: onlyLinux, Swap: onlyLinux, PSI: onlyLinux, Unusable: onlyLinux}
}

// Build fails with ErrUnsupported.
func Build(driver.TaskConfig, TaskOptions, NodeOptions) (Spec, Applied, error) {
	return Spec{}, Applied{}, fmt.Errorf("%w: %s", ErrUnsupported, onlyLinux)
}

// Main says so and exits: nothing starts a creator here.
func Main() {
	_, _ = os.Stderr.WriteString(onlyLinux + "\n")
	os.Exit(1)
}

// ExecError is why a program could not be run.
func ExecError(command string, errno syscall.Errno) error {
	return fmt.Errorf("container: %q cannot be run: %w", command, errno)
}
