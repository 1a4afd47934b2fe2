// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package bootclock

import "time"

func bootID() string { return "" }

func uptime() time.Duration { return 0 }

func kernel() (wall time.Time, ok bool) { return time.Time{}, false }
