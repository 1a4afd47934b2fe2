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
	if problem, allowed := checkName(name); problem != "" {
		return fmt.Errorf("spec: name %.64q %s; allowed: %s", name, problem, allowed)
	}
	return nil
}

func checkName(name string) (problem, allowed string) {
	switch {
	case name == "" || len(name) > MaxName:
		return fmt.Sprintf("has %d bytes", len(name)), fmt.Sprintf("1 to %d bytes", MaxName)
	case strings.ContainsAny(name, "/\\\x00"):
		return "has a character that cannot be part of a file name", "any but /, \\ and NUL"
	case name == "." || name == ".." || strings.EqualFold(name, "alloc"):
		return "is reserved", `any but ".", ".." and "alloc", in any case`
	case !utf8.ValidString(name):
		// JSON would come back with another name, and so another directory.
		return "is not UTF-8", "UTF-8"
	}
	return "", ""
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
