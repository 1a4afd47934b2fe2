// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean is s for a person's terminal: what moves the cursor, breaks the line,
// turns the direction or is not visible is written as Go does, such as \x1b or
// \u202e. Names and reasons come from jobs and tasks, which may be another's. JSON
// has its own escapes, and the output of tasks is left as it is.
func clean(s string) string {
	return cleanBut(s, func(rune) bool { return false })
}

// cleanLines is clean for a text of several lines.
func cleanLines(s string) string {
	return cleanBut(s, func(r rune) bool { return r == '\n' })
}

func cleanBut(s string, keep func(rune) bool) string {
	bad := func(r rune) bool { return !unicode.IsPrint(r) && !keep(r) }
	if utf8.ValidString(s) && strings.IndexFunc(s, bad) < 0 {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[0]), 16))
		case bad(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}
