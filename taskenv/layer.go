// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"slices"
	"strings"
)

// layer is a set of variables, sorted by name, each name once. A layer is never
// changed. Merging sorted slices is several times cheaper than filling maps, and
// the process's list falls out sorted.
type layer []pair

type pair struct{ name, value string }

func byName(a, b pair) int { return strings.Compare(a.name, b.name) }

func fromMap(m map[string]string) layer {
	if len(m) == 0 {
		return nil
	}
	l := make(layer, 0, len(m))
	for k, v := range m {
		l = append(l, pair{k, v})
	}
	slices.SortFunc(l, byName)
	return l
}

// fromPairs makes a layer of pairs in any order; of equal names the last counts.
func fromPairs(p []pair) layer {
	l := slices.Clone(layer(p))
	slices.SortStableFunc(l, byName)
	out := l[:0]
	for i, p := range l {
		if i+1 == len(l) || l[i+1].name != p.name {
			out = append(out, p)
		}
	}
	return out
}

// under lays high over l: its variables win.
func (l layer) under(high layer) layer {
	if len(l) == 0 {
		return high
	}
	if len(high) == 0 {
		return l
	}
	out := make(layer, 0, len(l)+len(high))
	for len(l) > 0 && len(high) > 0 {
		switch c := strings.Compare(l[0].name, high[0].name); {
		case c < 0:
			out, l = append(out, l[0]), l[1:]
		case c > 0:
			out, high = append(out, high[0]), high[1:]
		default:
			l = l[1:]
		}
	}
	return append(append(out, l...), high...)
}

// without drops the names that begin with prefix.
func (l layer) without(prefix string) layer {
	return slices.DeleteFunc(l, func(p pair) bool { return strings.HasPrefix(p.name, prefix) })
}

func (l layer) find(name string) (int, bool) {
	return slices.BinarySearchFunc(l, name, func(p pair, n string) int { return strings.Compare(p.name, n) })
}

func (l layer) get(name string) (string, bool) {
	if i, ok := l.find(name); ok {
		return l[i].value, true
	}
	return "", false
}
