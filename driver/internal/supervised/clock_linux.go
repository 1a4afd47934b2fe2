// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/supervisor"
)

// ticks are what the kernel counts a process's start in, on every machine.
const ticks = 100

// startedAt turns clock ticks since boot into a time; zero if the machine was
// restarted since or does not say.
func startedAt(st supervisor.Status) time.Time {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || strings.TrimSpace(string(boot)) != st.BootID {
		return time.Time{}
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for l := range strings.Lines(string(stat)) {
		var at int64
		if n, _ := fmt.Sscanf(l, "btime %d", &at); n == 1 {
			return time.Unix(at, 0).Add(time.Duration(st.Start) * (time.Second / ticks))
		}
	}
	return time.Time{}
}
