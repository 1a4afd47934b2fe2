// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package bootclock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // no /proc: the wall clock has to do
	}
	return strings.TrimSpace(string(b))
}

// uptime is the time since boot, suspended time included.
func uptime() time.Duration {
	var b unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &b) // it has been there since Linux 2.6.39
	return time.Duration(b.Nano())
}

// kernel reads the wall clock past Go.
func kernel() (wall time.Time, ok bool) {
	var r unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &r) != nil {
		return time.Time{}, false
	}
	return time.Unix(0, r.Nano()), true
}
