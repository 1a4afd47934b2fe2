// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package bootclock

import "time"

func bootID() string { return "" }

func kernel() (up time.Duration, wall time.Time, ok bool) { return 0, time.Time{}, false }
