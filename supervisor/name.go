// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"hash/fnv"
	"strconv"
)

const maxName = 200 // of an escaped name; the suffixes of FIFOs come on top

// escapeName makes a file name of the name of a scope or task. Bytes that are
// not letters, digits, "_", "-" or an inner "." become %XX.
func escapeName(s string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.' && i > 0:
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// unescapeName is the inverse; false for what escapeName does not make.
func unescapeName(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b = append(b, byte(v))
		i += 2
	}
	return string(b), escapeName(string(b)) == s && s != ""
}

// shortName is escapeName with a hash in place of what would be too long.
func shortName(s string) string {
	name := escapeName(s)
	if len(name) > maxName {
		name = name[:maxName-20] + "%~" + strconv.FormatUint(hash(s), 16)
	}
	return name
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

func itoa(n int) string { return strconv.Itoa(n) }
