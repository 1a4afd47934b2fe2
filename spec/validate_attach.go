// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"strconv"
)

func (a *Attachments) validate(f *faults, path string) {
	for i := range a.Templates {
		a.Templates[i].validate(f, at(path+".templates", i))
	}
	for i, x := range a.Artifacts {
		path := at(path+".artifacts", i)
		f.required(path+".source", x.Source, "an address to fetch from")
		f.enum(path+".mode", x.Mode, "any", "file", "dir")
	}
	f.services(path+".services", a.Services)
	for i, m := range a.Mounts {
		path := at(path+".mounts", i)
		f.required(path+".destination", m.Destination, "a path in the task")
		f.enum(path+".propagation_mode", m.PropagationMode, "private", "host-to-task", "bidirectional")
	}
	if v := a.Vault; v != nil {
		f.enum(path+".vault.change_mode", v.ChangeMode, "restart", "signal", "noop")
		f.signalWith(path+".vault", v.ChangeMode, v.ChangeSignal)
	}
	for i, x := range a.Identities {
		path := at(path+".identities", i)
		f.enum(path+".change_mode", x.ChangeMode, "restart", "signal", "noop")
		f.signalWith(path, x.ChangeMode, x.ChangeSignal)
		f.duration(path+".ttl", x.TTL)
	}
	for i, s := range a.Secrets {
		path := at(path+".secrets", i)
		f.required(path+".name", s.Name, "a name")
		f.required(path+".provider", s.Provider, "the name of a provider")
	}
	if a.Payload != nil {
		f.required(path+".payload.file", a.Payload.File, "a path below local/")
	}
	names := map[string]bool{}
	for i, x := range a.Actions {
		path := at(path+".actions", i)
		f.required(path+".name", x.Name, "a name")
		f.required(path+".command", x.Command, "a program")
		if names[x.Name] {
			f.add(path+".name", x.Name, "is there already", "each name once")
		}
		names[x.Name] = true
	}
}

func (t *Template) validate(f *faults, path string) {
	f.required(path+".destination", t.Destination, "a path in the task")
	switch {
	case t.Source == "" && t.Data == "":
		f.add(path, nil, "has nothing to render", "source or data")
	case t.Source != "" && t.Data != "":
		f.add(path, nil, "has source and data", "one of them")
	}
	f.enum(path+".change_mode", t.ChangeMode, "restart", "signal", "script", "noop")
	f.signalWith(path, t.ChangeMode, t.ChangeSignal)
	switch {
	case t.ChangeMode == "script" && t.ChangeScript == nil:
		f.add(path+".change_script", nil, "is required with change_mode script", "a script")
	case t.ChangeScript != nil:
		f.required(path+".change_script.command", t.ChangeScript.Command, "a program")
		f.duration(path+".change_script.timeout", t.ChangeScript.Timeout)
	}
	if t.Splay != nil {
		f.duration(path+".splay", *t.Splay)
	}
	if n, err := strconv.ParseUint(t.Perms, 8, 32); t.Perms != "" && (err != nil || n > 0o7777) {
		f.add(path+".perms", t.Perms, "is no file mode", `octal digits such as "644"`)
	}
	if w := t.Wait; w != nil {
		f.duration(path+".wait.min", w.Min)
		if w.Max < w.Min {
			f.add(path+".wait.max", w.Max.String(), "is below min", w.Min.String()+" or more")
		}
	}
}

func (f *faults) services(path string, services []Service) {
	for i := range services {
		path := at(path, i)
		for j := range services[i].Checks {
			services[i].Checks[j].validate(f, at(path+".checks", j))
		}
		f.checkRestart(path, services[i].CheckRestart)
	}
}

func (c *Check) validate(f *faults, path string) {
	f.required(path+".type", c.Type, "http, tcp, grpc, script")
	f.enum(path+".type", c.Type, "http", "tcp", "grpc", "script")
	if c.Type == "http" {
		f.required(path+".path", c.Path, `a path such as "/health"`)
	}
	if c.Type == "script" {
		f.required(path+".command", c.Command, "a program in the task")
	}
	f.duration(path+".interval", c.Interval)
	f.duration(path+".timeout", c.Timeout)
	f.notNegative(path+".success_before_passing", int64(c.SuccessBeforePassing))
	f.notNegative(path+".failures_before_critical", int64(c.FailuresBeforeCritical))
	f.notNegative(path+".failures_before_warning", int64(c.FailuresBeforeWarning))
	f.checkRestart(path, c.CheckRestart)
}

func (f *faults) checkRestart(path string, r *CheckRestart) {
	if r != nil {
		f.notNegative(path+".check_restart.limit", int64(r.Limit))
		f.duration(path+".check_restart.grace", r.Grace)
	}
}
