// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// ErrVariable marks a variable that no process can be given.
var ErrVariable = errors.New("taskenv: bad variable")

// Env is one environment. It never changes; use it from any goroutine.
type Env struct {
	env     map[string]string
	node    *Node
	alias   map[string]string
	missing []string
	err     error

	once sync.Once
	vars map[string]string
}

// List returns the environment as a process is given it, "NAME=value", sorted.
func (e *Env) List() []string {
	l := make([]string, 0, len(e.env))
	for k, v := range e.env {
		l = append(l, k+"="+v)
	}
	slices.Sort(l)
	return l
}

// Map returns a copy of the environment.
func (e *Env) Map() map[string]string { return maps.Clone(e.env) }

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
		v := make(map[string]string, 2*(len(e.env)+len(e.alias)+len(n.Attrs)+len(n.Meta))+6)
		for k, val := range e.env {
			v[k], v["env."+k] = val, val
		}
		for from, to := range e.alias {
			if val, ok := e.env[to]; ok {
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
		e.vars = v
	})
	return e.vars
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
	v, ok := e.env[name]
	if !ok {
		if to, aliased := e.alias[name]; aliased {
			v, ok = e.env[to]
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

func (e *Env) set(name, value string) {
	if value != "" {
		e.env[name] = value
	}
}

// check takes out what execve would refuse or cut short.
func (e *Env) check() {
	var bad []string
	for k, v := range e.env {
		if k == "" || strings.IndexByte(k, '=') >= 0 || strings.IndexByte(k, 0) >= 0 || strings.IndexByte(v, 0) >= 0 {
			bad = append(bad, k)
		}
	}
	slices.Sort(bad)
	var errs []error
	for _, k := range bad {
		what := "its value must not hold NUL"
		if k == "" || strings.ContainsAny(k, "=\x00") {
			what = `a name must not be empty nor hold "=" or NUL`
		}
		errs = append(errs, fmt.Errorf("%w %q: %s", ErrVariable, k, what))
		delete(e.env, k)
	}
	e.err = errors.Join(errs...)
}
