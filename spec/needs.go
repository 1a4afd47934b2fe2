// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import "fmt"

// Need is one thing an alloc asks for that somebody beside the runners and the
// driver must do: a hook of that name, usually.
type Need struct {
	Feature string // such as "templates": the JSON name of the field that asks
	Field   string // where, such as "tasks[0].attach.templates"
}

// Needs lists what an alloc asks for beyond its tasks' processes, directories,
// environment and logs, in the order of the fields. A node that does not act on
// one of them must not run the alloc as if it did. What belongs to the scheduler
// alone (scaling, reschedule) and what is only done on request (actions) is not
// among them. Volumes and networks count only where something must be made:
// a network of mode host, or none given, is the machine's own.
func (a *Alloc) Needs() (l []Need) {
	add := func(asked bool, feature, field string) {
		if asked {
			l = append(l, Need{feature, field})
		}
	}
	for i, n := range a.Networks {
		add(n.Mode != "" && n.Mode != "host", "networks", fmt.Sprintf("networks[%d].mode", i))
	}
	add(len(a.Services) > 0, "services", "services")
	add(len(a.Volumes) > 0, "volumes", "volumes")
	for i := range a.Tasks {
		t := &a.Tasks[i]
		field := func(name string) string { return fmt.Sprintf("tasks[%d].%s", i, name) }
		attach := func(asked bool, name string) { add(asked, name, field("attach."+name)) }
		add(len(t.Resources.Devices) > 0, "devices", field("resources.devices"))
		attach(len(t.Attach.Templates) > 0, "templates")
		attach(len(t.Attach.Artifacts) > 0, "artifacts")
		attach(len(t.Attach.Services) > 0, "services")
		attach(len(t.Attach.Mounts) > 0, "mounts")
		attach(t.Attach.Vault != nil, "vault")
		attach(t.Attach.Consul != nil, "consul")
		attach(len(t.Attach.Identities) > 0, "identities")
		attach(len(t.Attach.Secrets) > 0, "secrets")
		attach(t.Attach.Payload != nil, "payload")
		attach(t.Attach.Schedule != nil, "schedule")
		attach(len(t.Attach.CSIPlugin) > 0, "csi_plugin")
	}
	return l
}
