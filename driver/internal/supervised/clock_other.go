// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package supervised

import (
	"time"

	"github.com/nodekeep/nodekeep/supervisor"
)

func startedAt(supervisor.Status) time.Time { return time.Time{} }
