// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import "strings"

var hostAllowed = []string{
	"COMSPEC", "PATH", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE",
	"SYSTEMROOT", "TEMP", "TMP", "TZ", "USERNAME", "USERPROFILE", "WINDIR",
}

func sameName(a, b string) bool { return strings.EqualFold(a, b) }
