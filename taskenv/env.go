// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrVariable marks a variable that no process can be given.
var ErrVariable = errors.New("taskenv: bad variable")

// Env is one environment. It never changes; use it from any goroutine.
type Env struct {
	vars    layer
	node    *Node
	alias   map[string]string // other names of variables
	missing []string
	err     error

	once sync.Once
	flat map[string]string
}

// List returns the environment as a process is given it, "NAME=value", sorted by name.
func (e *Env) List() []string {
	size := 0
	for _, p := range e.vars {
		size += len(p.name) + len(p.value) + 1
	}
	var all strings.Builder // one allocation for all of them
	all.Grow(size)
	for _, p := range e.vars {
		all.WriteString(p.name)
		all.WriteByte('=')
		all.WriteString(p.value)
	}
	rest := all.String()
	l := make([]string, len(e.vars))
	for i, p := range e.vars {
		n := len(p.name) + len(p.value) + 1
		l[i], rest = rest[:n], rest[n:]
	}
	return l
}

// Map returns the environment as a map of the caller's own.
func (e *Env) Map() map[string]string {
	m := make(map[string]string, len(e.vars))
	for _, p := range e.vars {
		m[p.name] = p.value
	}
	return m
}

// Err says which variables were left out because their name is empty or holds
// "=" or NUL, or their value holds NUL: all of them, each an ErrVariable. A task
// must not be started with such an environment.
func (e *Env) Err() error { return e.err }

// Missing returns the names that texts in meta and the task's env used but that
// nobody knows, sorted. They stay in the values as written.
func (e *Env) Missing() []string { return e.missing }

// Replace expands a text and tells which names it did not know, sorted, each once.
func (e *Env) Replace(s string) (out string, missing []string) {
	out = expand(s, e.lookup, &missing)
	return out, sorted(missing)
}

// Vars returns every name that ${…} may use with its value, node facts under
// "node.", "attr." and "meta." (the latter two also under "node."), variables
// under "env." and by their own name, unless a node fact has it. The map belongs
// to e: read it only.
func (e *Env) Vars() map[string]string {
	e.once.Do(func() {
		n := e.node
		v := make(map[string]string, 2*(len(e.vars)+len(e.alias)+len(n.Attrs)+len(n.Meta))+len(nodeFacts))
		for _, p := range e.vars {
			v[p.name], v["env."+p.name] = p.value, p.value
		}
		for from, to := range e.alias {
			if _, taken := e.vars.find(from); taken {
				continue
			}
			if val, ok := e.vars.get(to); ok {
				v[from], v["env."+from] = val, val
			}
		}
		for k, val := range n.Attrs {
			v["attr."+k], v["node.attr."+k] = val, val
		}
		for k, val := range n.Meta {
			v["meta."+k], v["node.meta."+k] = val, val
		}
		for _, f := range nodeFacts {
			v[f.name] = f.get(n)
		}
		e.flat = v
	})
	return e.flat
}

var nodeFacts = []struct {
	name string
	get  func(*Node) string
}{
	{"node.unique.id", func(n *Node) string { return n.ID }},
	{"node.unique.name", func(n *Node) string { return n.Name }},
	{"node.class", func(n *Node) string { return n.Class }},
	{"node.pool", func(n *Node) string { return n.Pool }},
	{"node.datacenter", func(n *Node) string { return n.Datacenter }},
	{"node.region", func(n *Node) string { return n.Region }},
}

// lookup finds a name in the order that Vars documents, without building it.
func (e *Env) lookup(name string) (string, bool) {
	if v, ok := e.node.lookup(name); ok {
		return v, true
	}
	if v, ok := e.variable(name); ok {
		return v, true
	}
	if k, ok := strings.CutPrefix(name, "env."); ok {
		return e.variable(k)
	}
	return "", false
}

func (e *Env) variable(name string) (string, bool) {
	v, ok := e.vars.get(name)
	if !ok {
		if to, aliased := e.alias[name]; aliased {
			return e.vars.get(to)
		}
	}
	return v, ok
}

func (n *Node) lookup(name string) (string, bool) {
	kind, key, ok := strings.Cut(name, ".")
	if !ok {
		return "", false
	}
	if kind == "node" {
		for _, f := range nodeFacts {
			if f.name == name {
				return f.get(n), true
			}
		}
		kind, key, _ = strings.Cut(key, ".")
	}
	var v string
	switch kind {
	case "attr":
		v, ok = n.Attrs[key]
	case "meta":
		v, ok = n.Meta[key]
	default:
		ok = false
	}
	return v, ok
}

// check takes out what execve would refuse or cut short.
func (e *Env) check() {
	bad := func(p pair) bool {
		return p.name == "" || strings.IndexByte(p.name, '=') >= 0 ||
			strings.IndexByte(p.name, 0) >= 0 || strings.IndexByte(p.value, 0) >= 0
	}
	if !slices.ContainsFunc(e.vars, bad) {
		return
	}
	var errs []error
	good := make(layer, 0, len(e.vars))
	for _, p := range e.vars {
		switch {
		case !bad(p):
			good = append(good, p)
		case p.name == "" || strings.ContainsAny(p.name, "=\x00"):
			errs = append(errs, fmt.Errorf(`%w %q: a name must not be empty nor hold "=" or NUL`, ErrVariable, p.name))
		default:
			errs = append(errs, fmt.Errorf("%w %q: its value must not hold NUL", ErrVariable, p.name))
		}
	}
	e.vars, e.err = good, errors.Join(errs...)
}
