// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest name CheckName allows, in bytes.
const MaxName = 128

// CheckName says whether name can stand for a task or an alloc wherever such
// names become elements of paths: directories, cgroups, sockets, state. The
// error says what is allowed. Whoever makes a path of a name calls it again
// right there: a spec may come from elsewhere than Validate.
//
// Names that differ by case only are one name on some file systems, so "Alloc"
// is refused as well, and Validate refuses two tasks that FoldName makes equal.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("spec: name is empty, it needs 1 to %d bytes", MaxName)
	case len(name) > MaxName:
		return fmt.Errorf("spec: name %.32q… has %d bytes, at most %d are allowed", name, len(name), MaxName)
	case strings.ContainsAny(name, "/\\\x00"):
		return fmt.Errorf("spec: name %q must not contain '/', '\\' or NUL", name)
	case name == "." || name == ".." || strings.EqualFold(name, "alloc"):
		return fmt.Errorf("spec: name %q is reserved, as are %q, %q and %q in any case", name, ".", "..", "alloc")
	case !utf8.ValidString(name):
		// JSON would come back with another name, and so another directory.
		return fmt.Errorf("spec: name %q must be valid UTF-8", name)
	}
	return nil
}

// FoldName maps all names that differ by case only to one key.
func FoldName(name string) string {
	return strings.Map(func(r rune) rune {
		// SimpleFold goes up through the letters that are the same but for case,
		// then back to the smallest, which stands for all of them.
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}
