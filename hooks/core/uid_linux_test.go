// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"os"
	"syscall"
)

func uid(st os.FileInfo) uint32 { return st.Sys().(*syscall.Stat_t).Uid }
