// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package taskenv makes the environment of a task and replaces ${…} in the
// texts of its job. It is pure: no I/O, no clock, no look at the agent's own
// environment.
//
//	low   Config.Host       what the agent lets through; names under the prefix never
//	 │    Config.Defaults   the operator's
//	 │    generated         NOMAD_ALLOC_ID, NOMAD_PORT_<label>, NOMAD_META_<key>, …
//	 │    task env          the job's env block, expanded once
//	 │    WithHook          as hooks gave it, never expanded
//	high  WithTemplate      rendered files, never expanded
//
// A text is scanned once, from left to right. ${name} is replaced if the name is
// known and left as written if not; $${name} becomes a literal ${name}; anything
// else, such as "${not closed" or "100%", passes unchanged. A name is opaque: all
// bytes up to the closing brace, blanks around it cut off. What was put in is
// never scanned again.
//
// In meta and in the task's env a text may name other variables, also of the same
// block: it sees their final value. A variable that names itself (or is part of a
// circle) sees the layer below, so that PATH = "/opt/bin:${PATH}" extends the
// host's.
//
// Generated names are cleaned last: every byte after the prefix but letters,
// digits and _ becomes _ (the uncleaned name stays known to ${…}). Names that
// people or hooks chose are passed on as they are.
package taskenv

import (
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// DefaultPrefix begins the names of generated variables, so that jobs written
// for Nomad run unchanged.
const DefaultPrefix = "NOMAD_"

// Node is what texts may say about the node: ${node.…}, ${attr.…}, ${meta.…}.
type Node struct {
	ID, Name, Class, Pool string
	Datacenter, Region    string
	Attrs, Meta           map[string]string
}

// Dirs are the directories as one reader sees them: the task (inside its own
// root, if the driver gives it one) or the agent (on the host).
type Dirs struct{ Alloc, Task, Secrets string }

// Config is what an environment is made of. Every field may be zero; maps and
// the alloc must not be changed afterwards.
type Config struct {
	Alloc    *spec.Alloc
	Task     string // name of the task in Alloc
	Node     Node
	Dirs     Dirs              // as the task sees them
	Host     map[string]string // host variables that tasks may see (see FilterHost)
	Defaults map[string]string // the operator's
	Prefix   string            // of generated names; "" is DefaultPrefix

	// AllocIP is the address of the alloc's own network namespace; "" where it
	// shares the host's.
	AllocIP string
	// ParentCgroup holds the cgroups of the tasks; "" leaves the variable out.
	ParentCgroup string
}

// Builder derives environments. It is a small immutable value: copy it, derive
// from it and use it from any goroutine.
type Builder struct {
	base           *base
	dirs           Dirs
	hook, template layer
}

// base is what all builders of one New share.
type base struct {
	cfg      Config
	dirNames [3]string // of the three directories, sorted
	literal  layer     // host, defaults, generated
	texts    layer     // meta and the task's env, as written
	plain    bool      // no text names a variable
	alias    map[string]string
}

// New makes a builder. A nil alloc or a task that it does not have gives an
// environment without the variables that would come from it.
func New(cfg Config) Builder {
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	b := &base{cfg: cfg}
	b.dirNames = [3]string{cfg.Prefix + "ALLOC_DIR", cfg.Prefix + "SECRETS_DIR", cfg.Prefix + "TASK_DIR"}
	// The agent may itself be a task of another agent: its own identity is not ours.
	b.literal = fromMap(cfg.Host).without(cfg.Prefix).under(fromMap(cfg.Defaults))
	if cfg.Alloc != nil {
		g := generator{base: b}
		g.generate()
		b.literal = b.literal.under(fromPairs(g.vars))
		b.texts = fromPairs(g.meta).under(fromMap(g.env))
		b.alias = g.alias
	}
	b.plain = !slices.ContainsFunc(b.texts, func(p pair) bool { return strings.Contains(p.value, "${") })
	return Builder{base: b, dirs: cfg.Dirs}
}

// WithHook adds variables of a hook; later calls win. Nothing in them is expanded.
func (b Builder) WithHook(vars map[string]string) Builder {
	b.hook = b.hook.under(fromMap(vars))
	return b
}

// WithTemplate adds variables of rendered templates, which win over all others.
// Nothing in them is expanded.
func (b Builder) WithTemplate(vars map[string]string) Builder {
	b.template = b.template.under(fromMap(vars))
	return b
}

// WithDirs is the same environment seen from elsewhere: with the host's paths for
// what the agent does on the task's behalf, with the task's own for the task.
func (b Builder) WithDirs(d Dirs) Builder {
	b.dirs = d
	return b
}

// Env makes the environment. It does not block and takes a few microseconds.
func (b Builder) Env() *Env {
	base := b.base
	if base == nil { // the zero Builder
		base = New(Config{}).base
	}
	e := &Env{node: &base.cfg.Node, alias: base.alias}
	var dirs layer
	for i, path := range [...]string{b.dirs.Alloc, b.dirs.Secrets, b.dirs.Task} {
		if path != "" {
			dirs = append(dirs, pair{base.dirNames[i], path})
		}
	}
	e.vars = base.literal.under(dirs)
	texts := base.texts
	if !base.plain {
		texts, e.missing = expandTexts(e, base.texts)
	}
	e.vars = e.vars.under(texts).under(b.hook).under(b.template)
	e.check()
	return e
}
