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
	env     *Env // the layers below
	text    map[string]string
	done    map[string]string
	busy    map[string]bool
	missing []string
}

// expandTexts adds meta and the task's env to e.
func (e *Env) expandTexts(b *base) {
	plain := true
	for _, p := range b.meta {
		plain = plain && !strings.Contains(p.value, "${")
	}
	for _, v := range b.env {
		plain = plain && !strings.Contains(v, "${")
	}
	into := e.env
	if !plain {
		into = make(map[string]string, len(b.meta)+len(b.env))
	}
	for _, p := range b.meta {
		into[p.name] = p.value
	}
	for k, v := range b.env {
		into[k] = v
	}
	if plain {
		return
	}
	t := &texts{env: e, text: into, done: make(map[string]string, len(into)), busy: map[string]bool{}}
	names := make([]string, 0, len(into))
	for k := range into {
		names = append(names, k)
	}
	slices.Sort(names) // decides where a circle is cut
	for _, k := range names {
		t.value(k)
	}
	for k, v := range t.done {
		e.env[k] = v
	}
	e.missing = sorted(t.missing)
}

// value expands one text unless that was done.
func (t *texts) value(name string) string {
	if v, ok := t.done[name]; ok {
		return v
	}
	t.busy[name] = true
	v := expand(t.text[name], t.lookup, &t.missing)
	delete(t.busy, name)
	t.done[name] = v
	return v
}

func (t *texts) lookup(name string) (string, bool) {
	if v, ok := t.env.node.lookup(name); ok {
		return v, true
	}
	for _, k := range []string{name, strings.TrimPrefix(name, "env.")} {
		if to, ok := t.env.alias[k]; ok {
			if _, own := t.text[k]; !own {
				k = to
			}
		}
		if _, ok := t.text[k]; ok && !t.busy[k] {
			return t.value(k), true
		}
		if v, ok := t.env.env[k]; ok {
			return v, true
		}
	}
	return "", false
}

func sorted(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
