// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"slices"
	"strings"
)

// FilterHost takes the variables named in allow from environ ("NAME=value", as
// os.Environ gives it) for Config.Host. A nil allow is the list of what a plain
// program expects and nobody keeps a secret in: HOME, LANG, LOGNAME, PATH, SHELL,
// TZ, USER. On Windows names are compared without case and the system's own
// (SystemRoot, TEMP, …) are on the list.
func FilterHost(environ, allow []string) map[string]string {
	if allow == nil {
		allow = hostAllowed
	}
	m := make(map[string]string, len(allow))
	for _, kv := range environ {
		k, v, ok := strings.Cut(kv, "=")
		if ok && k != "" && slices.ContainsFunc(allow, func(a string) bool { return sameName(a, k) }) {
			m[k] = v
		}
	}
	return m
}
