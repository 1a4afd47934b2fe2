// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package seccomp

import "golang.org/x/sys/unix"

const arch = unix.AUDIT_ARCH_AARCH64

var rawIO, native []uint32
