// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"syscall"
	"unsafe"
)

// pending returns how many bytes a FIFO holds. Its capacity would not do: a
// task may change it.
func pending(fd int) int {
	var n int32
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))); e != 0 {
		return bufSize
	}
	return int(n)
}
