// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !windows

package taskenv

var hostAllowed = []string{"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TZ", "USER"}

func sameName(a, b string) bool { return a == b }
