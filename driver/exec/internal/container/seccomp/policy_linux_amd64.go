// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package seccomp

import "golang.org/x/sys/unix"

const arch = unix.AUDIT_ARCH_X86_64

var rawIO = []uint32{unix.SYS_IOPL, unix.SYS_IOPERM}

// native are the calls of this architecture alone that are refused.
var native = []uint32{
	unix.SYS_MODIFY_LDT, // segments of 16 bits
	unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL,
}
