// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// version is a dotted number, such as 470.82.1, and what follows a hyphen.
type version struct {
	parts []uint64
	pre   string
}

func parseVersion(s string) (v version, ok bool) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "v")
	s, _, _ = strings.Cut(s, "+")
	core, pre, _ := strings.Cut(s, "-")
	for p := range strings.SplitSeq(core, ".") {
		n, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return v, false
		}
		v.parts = append(v.parts, n)
	}
	v.pre = pre
	return v, true
}

// compare orders versions; missing parts are 0, and what has something behind the
// hyphen comes before what has nothing.
func (v version) compare(w version) int {
	for i := range max(len(v.parts), len(w.parts)) {
		if c := cmp.Compare(v.part(i), w.part(i)); c != 0 {
			return c
		}
	}
	switch {
	case v.pre == w.pre:
		return 0
	case v.pre == "":
		return 1
	case w.pre == "":
		return -1
	}
	return comparePre(strings.Split(v.pre, "."), strings.Split(w.pre, "."))
}

// comparePre orders numbers as numbers, before texts.
func comparePre(v, w []string) int {
	return slices.CompareFunc(v, w, func(a, b string) int {
		x, xerr := strconv.ParseUint(a, 10, 64)
		y, yerr := strconv.ParseUint(b, 10, 64)
		switch {
		case xerr == nil && yerr == nil:
			return cmp.Compare(x, y)
		case xerr == nil:
			return -1
		case yerr == nil:
			return 1
		}
		return strings.Compare(a, b)
	})
}

func (v version) part(i int) uint64 {
	if i < len(v.parts) {
		return v.parts[i]
	}
	return 0
}

// versionFits says whether a version meets all of constraints such as
// ">= 1.2, < 2" or "~> 1.2.3" (that or later, with the same but the last part). A
// text that is no version meets none; constraints that are none are an error.
func versionFits(have, constraints string) (bool, error) {
	v, is := parseVersion(have)
	fits := is
	for c := range strings.SplitSeq(constraints, ",") {
		c = strings.TrimSpace(c)
		number := strings.TrimLeft(c, "=!<>~")
		w, ok := parseVersion(number)
		if !ok {
			return false, fmt.Errorf("%.100q is no version constraint such as \">= 1.2, < 2\"", constraints)
		}
		n := v.compare(w)
		switch op := c[:len(c)-len(number)]; op {
		case "", "=", "==":
			fits = fits && n == 0
		case "!=":
			fits = fits && n != 0
		case "<", "<=", ">", ">=":
			fits = fits && ordered(op, n)
		case "~>":
			same := slices.Equal(padded(v, len(w.parts))[:max(1, len(w.parts)-1)], w.parts[:max(1, len(w.parts)-1)])
			fits = fits && n >= 0 && same
		default:
			return false, fmt.Errorf("unknown operator %q of a version: use =, !=, <, <=, >, >= or ~>", op)
		}
	}
	return fits, nil
}

func padded(v version, n int) []uint64 {
	p := slices.Clone(v.parts)
	for len(p) < n {
		p = append(p, 0)
	}
	return p
}
