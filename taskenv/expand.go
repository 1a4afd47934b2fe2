// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"slices"
	"strings"
)

// expand replaces ${name} by what lookup knows and appends the names that it
// does not know to missing. It scans s once and never what it put in.
func expand(s string, lookup func(string) (string, bool), missing *[]string) string {
	i := strings.Index(s, "${")
	if i < 0 {
		return s
	}
	var out strings.Builder
	for ; i >= 0; i = strings.Index(s, "${") {
		name, n := reference(s[i:])
		switch {
		case n == 0: // not a reference: keep the two bytes and go on behind them
			out.WriteString(s[:i+2])
			s = s[i+2:]
			continue
		case i > 0 && s[i-1] == '$': // escaped: one $ less
			out.WriteString(s[:i-1])
			out.WriteString(s[i : i+n])
		default:
			out.WriteString(s[:i])
			if v, ok := lookup(name); ok {
				out.WriteString(v)
			} else {
				*missing = append(*missing, name)
				out.WriteString(s[i : i+n])
			}
		}
		s = s[i+n:]
	}
	out.WriteString(s)
	return out.String()
}

// reference reads "${name}" at the start of s and returns the name and the
// length of the whole, 0 if it is none: not closed on its line, empty, or with
// another "${" before its end.
func reference(s string) (name string, n int) {
	end := strings.IndexAny(s[2:], "}{\n\x00")
	if end < 0 || s[2+end] != '}' {
		return "", 0
	}
	name = strings.TrimSpace(s[2 : 2+end])
	if name == "" {
		return "", 0
	}
	return name, end + 3
}

// texts expands variables that may name each other: each text once, whatever
// the order, so that the result does not depend on it.
type texts struct {
	below   *Env // the layers below
	text    layer
	value   layer // the same names, expanded where state says so
	state   []byte
	missing []string
}

// The states of a text.
const (
	waiting byte = iota
	busy         // being expanded: naming it now would be a circle
	done
)

// expandTexts expands meta and the task's env over the layers in e.
func expandTexts(e *Env, l layer) (layer, []string) {
	t := texts{below: e, text: l, value: slices.Clone(l), state: make([]byte, len(l))}
	for i := range l { // in the order of names, which decides where a circle is cut
		t.expand(i)
	}
	return t.value, sorted(t.missing)
}

func (t *texts) expand(i int) string {
	if t.state[i] == waiting {
		t.state[i] = busy
		t.value[i].value = expand(t.text[i].value, t.lookup, &t.missing)
		t.state[i] = done
	}
	return t.value[i].value
}

func (t *texts) lookup(name string) (string, bool) {
	if v, ok := t.below.node.lookup(name); ok {
		return v, true
	}
	if v, ok := t.variable(name); ok {
		return v, true
	}
	if k, ok := strings.CutPrefix(name, "env."); ok {
		return t.variable(k)
	}
	return "", false
}

func (t *texts) variable(name string) (string, bool) {
	i, ok := t.text.find(name)
	if to, aliased := t.below.alias[name]; !ok && aliased {
		name = to
		i, ok = t.text.find(name)
	}
	if ok && t.state[i] != busy {
		return t.expand(i), true
	}
	return t.below.vars.get(name)
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
