// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// ReplaceError is an update that would change what only a new alloc can change.
// Nothing of it was applied. It is ErrNeedsReplacement.
type ReplaceError struct {
	Fields []string // as in JSON, tasks by name: "tasks[web].driver"
}

func (e *ReplaceError) Error() string {
	return fmt.Sprintf("%v: %s changed; stop this alloc and place a new one",
		ErrNeedsReplacement, strings.Join(e.Fields, ", "))
}

// Is makes errors.Is(err, ErrNeedsReplacement) true.
func (e *ReplaceError) Is(target error) bool { return target == ErrNeedsReplacement }

// replaced names the fields of an update that cannot change in place. All other
// fields can: desired status, meta, services, restart policies, kill settings,
// shutdown delays, change modes, logs, resources, settings.
func replaced(old, now *spec.Alloc) []string {
	var fields []string
	check := func(name string, a, b any) {
		if !same(a, b) {
			fields = append(fields, name)
		}
	}
	check("id", old.ID, now.ID)
	check("namespace", old.Namespace, now.Namespace)
	check("job_id", old.JobID, now.JobID)
	check("job_type", old.JobType, now.JobType)
	check("group", old.Group, now.Group)
	check("networks", old.Networks, now.Networks)
	check("ports", old.Ports, now.Ports)
	check("volumes", old.Volumes, now.Volumes)
	if !same(names(old), names(now)) {
		return append(fields, "tasks")
	}
	for i := range old.Tasks {
		a, b := &old.Tasks[i], &now.Tasks[i]
		at := func(field string) string { return fmt.Sprintf("tasks[%s].%s", a.Name, field) }
		check(at("driver"), a.Driver, b.Driver)
		check(at("config"), a.Config, b.Config)
		check(at("user"), a.User, b.User)
		check(at("env"), a.Env, b.Env)
		check(at("lifecycle"), a.Lifecycle, b.Lifecycle)
		check(at("leader"), a.Leader, b.Leader)
		check(at("depends_on"), a.DependsOn, b.DependsOn)
		check(at("resources.networks"), a.Resources.Networks, b.Resources.Networks)
		check(at("resources.devices"), a.Resources.Devices, b.Resources.Devices)
		check(at("attach"), fixed(a.Attach), fixed(b.Attach))
	}
	return fields
}

// fixed is the part of a task's attachments that only a new alloc can change.
func fixed(a spec.Attachments) spec.Attachments {
	a.Services, a.Actions, a.Schedule, a.Scaling = nil, nil, nil, nil
	a.Templates = append([]spec.Template(nil), a.Templates...)
	for i := range a.Templates {
		t := &a.Templates[i]
		t.ChangeMode, t.ChangeSignal, t.ChangeScript, t.Splay = "", "", nil, nil
	}
	a.Identities = append([]spec.Identity(nil), a.Identities...)
	for i := range a.Identities {
		a.Identities[i].ChangeMode, a.Identities[i].ChangeSignal = "", ""
	}
	if a.Vault != nil {
		v := *a.Vault
		v.ChangeMode, v.ChangeSignal = "", ""
		a.Vault = &v
	}
	return a
}

func names(a *spec.Alloc) []string {
	all := make([]string, len(a.Tasks))
	for i := range a.Tasks {
		all[i] = a.Tasks[i].Name
	}
	return all
}

// same compares two values by their JSON: nil and empty are one, as are two ways
// of spacing a task's configuration.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

func empty(js []byte) bool {
	return string(js) == "null" || string(js) == "[]" || string(js) == "{}"
}
