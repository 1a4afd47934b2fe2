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

// kernel reads the time since boot, suspended time included, and the wall clock.
func kernel() (up time.Duration, wall time.Time, ok bool) {
	var b, r unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &b) != nil || unix.ClockGettime(unix.CLOCK_REALTIME, &r) != nil {
		return 0, time.Time{}, false
	}
	return time.Duration(b.Nano()), time.Unix(0, r.Nano()), true
}
