// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Validate reports all faults of a at once, each a *FieldError, joined (Faults
// takes them apart), in a fixed order. It judges a as it stands: what is zero
// and has a default is right. Whether the driver exists and likes the task's
// configuration is not known here.
func (a *Alloc) Validate() error {
	f := &faults{}
	f.name("id", a.ID)
	f.required("group", a.Group, "the name of the group this is an alloc of")
	f.enum("job_type", string(a.JobType), string(JobService), string(JobBatch), string(JobSystem), string(JobSysbatch))
	f.enum("desired_status", string(a.DesiredStatus), string(DesiredRun), string(DesiredStop), string(DesiredEvict))
	f.enum("deployment_status", string(a.DeploymentStatus), string(DeploymentRunning), string(DeploymentSuccessful), string(DeploymentFailed))
	f.notNegative("index", int64(a.Index))
	if a.PreviousAlloc != "" && a.PreviousAlloc == a.ID {
		f.add("previous_alloc", a.PreviousAlloc, "is this alloc itself, which would wait for its own end", "another alloc, or nothing")
	}
	a.validateTasks(f)
	f.networks("networks", a.Networks)
	for i, p := range a.Ports {
		path := at("ports", i)
		f.required(path+".label", p.Label, "a port's label")
		f.port(path+".value", p.Value, 1)
		f.port(path+".to", p.To, -1)
	}
	f.services("services", a.Services)
	for _, name := range slices.Sorted(maps.Keys(a.Volumes)) {
		v, path := a.Volumes[name], fmt.Sprintf("volumes[%q]", name)
		f.enum(path+".type", v.Type, "host", "csi")
		if v.Type != "csi" {
			f.required(path+".source", v.Source, "the name of a host volume")
		}
	}
	a.Settings.validate(f)
	return errors.Join(f.errs...)
}

func (a *Alloc) validateTasks(f *faults) {
	if len(a.Tasks) == 0 {
		f.add("tasks", nil, "is empty", "one task or more")
	}
	seen, leader := map[string]string{}, ""
	for i := range a.Tasks {
		t, path := &a.Tasks[i], at("tasks", i)
		if f.name(path+".name", t.Name) {
			if first, twice := seen[FoldName(t.Name)]; twice {
				f.add(path+".name", t.Name, fmt.Sprintf("is there already: task %q", first), "names that differ in more than case")
			}
			seen[FoldName(t.Name)] = t.Name
		}
		if t.Leader && leader != "" {
			f.add(path+".leader", true, fmt.Sprintf("makes a second leader, task %s is one", leader), "one leader at most")
		} else if t.Leader {
			leader = fmt.Sprintf("%q", t.Name)
		}
		a.validateDependencies(f, t, path)
		for j, m := range t.Attach.Mounts {
			if _, ok := a.Volumes[m.Volume]; !ok {
				f.add(at(path+".attach.mounts", j)+".volume", m.Volume, "is no volume of this alloc",
					strings.Join(slices.Sorted(maps.Keys(a.Volumes)), ", "))
			}
		}
		t.validate(f, path)
	}
	if cycle := a.waitCycle(); cycle != "" {
		f.add("tasks", nil, "wait for each other: "+cycle, "depends_on without a cycle, stages included")
	}
}

func (t *Task) validate(f *faults, path string) {
	f.required(path+".driver", t.Driver, `a driver's name such as "raw_exec"`)
	if c := bytes.TrimSpace(t.Config); len(c) > 0 && (c[0] != '{' || !json.Valid(c)) {
		f.add(path+".config", string(c), "is not a JSON object", "an object, or nothing")
	}
	f.text(path+".user", t.User)
	if s := t.KillSignal; s != "" && !sendable(s) {
		f.add(path+".kill_signal", s, "is unknown", `1 to 64, or a name such as "SIGTERM"`)
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		f.text(path+".env", k)
		f.text(fmt.Sprintf("%s.env[%q]", path, k), t.Env[k])
		f.required(path+".env", k, "names that are not empty")
	}
	if l := t.Lifecycle; l != nil {
		f.enum(path+".lifecycle.hook", string(l.Hook), string(LifecyclePrestart), string(LifecyclePoststart), string(LifecyclePoststop))
		if l.Sidecar && (l.Hook == LifecycleMain || l.Hook == LifecyclePoststop) {
			f.add(path+".lifecycle.sidecar", true, "is of no use with this hook", "hook prestart or poststart")
		}
	}
	if r := t.Restart; r != nil {
		r.validate(f, path+".restart")
	}
	f.duration(path+".kill_timeout", t.KillTimeout)
	f.duration(path+".shutdown_delay", t.ShutdownDelay)
	if l := t.Logs; l != nil {
		f.notNegative(path+".logs.max_files", int64(l.MaxFiles))
		f.notNegative(path+".logs.max_size", l.MaxSize)
	}
	t.Resources.validate(f, path+".resources")
	t.Attach.validate(f, path+".attach")
}

func (s *AllocSettings) validate(f *faults) {
	f.duration("settings.shutdown_delay", s.ShutdownDelay)
	f.duration("settings.max_run", s.MaxRun)
	if d := s.LostContact.StopAfter; d != nil {
		f.duration("settings.lost_contact.stop_after", *d)
	} else if s.LostContact.Fence {
		f.add("settings.lost_contact.fence", true, "has no time to stop at", "stop_after")
	}
	f.notNegative("settings.disk.size_mb", s.Disk.SizeMB)
	if h := s.Health; h != nil {
		f.enum("settings.health.check", h.Check, "checks", "task_states", "manual")
		f.duration("settings.health.min_healthy", h.MinHealthy)
		f.duration("settings.health.deadline", h.Deadline)
		if least, most := cmp.Or(h.MinHealthy, DefaultMinHealthy), cmp.Or(h.Deadline, DefaultHealthDeadline); most < least {
			f.add("settings.health.deadline", most.String(), "is below min_healthy", least.String()+" or more")
		}
		f.duration("settings.health.progress_deadline", h.ProgressDeadline)
	}
}

func (r *Resources) validate(f *faults, path string) {
	f.notNegative(path+".cpu", r.CPU)
	f.notNegative(path+".cores", int64(r.Cores))
	f.notNegative(path+".memory_mb", r.MemoryMB)
	f.notNegative(path+".secrets_mb", r.SecretsMB)
	memory := r.MemoryMB
	def(&memory, DefaultMemoryMB)
	if m := r.MemoryMaxMB; m < -1 || m > 0 && m < memory {
		f.add(path+".memory_max_mb", m, "is below the memory that is reserved", fmt.Sprintf("%d or more, 0 for the same, -1 for no limit", memory))
	}
	for i, id := range r.CoreIDs {
		f.notNegative(at(path+".core_ids", i), int64(id))
		if slices.Contains(r.CoreIDs[:i], id) {
			f.add(at(path+".core_ids", i), id, "is there already", "each core once")
		}
	}
	for i, d := range r.Devices {
		path := at(path+".devices", i)
		f.required(path+".name", d.Name, "type, vendor/type or vendor/type/name")
		f.notNegative(path+".count", int64(d.Count))
		for j, c := range d.Affinities {
			if c.Weight < -100 || c.Weight > 100 {
				f.add(at(path+".affinities", j)+".weight", c.Weight, "is out of range", "-100 to 100")
			}
		}
	}
	if r.Numa != nil {
		f.enum(path+".numa.affinity", r.Numa.Affinity, "none", "prefer", "require")
	}
	f.networks(path+".networks", r.Networks)
}

func (f *faults) networks(path string, networks []Network) {
	labels := map[string]bool{}
	for i, n := range networks {
		path := at(path, i)
		if !strings.HasPrefix(n.Mode, "cni/") {
			f.enum(path+".mode", n.Mode, "host", "none", "bridge", "cni/<name>")
		}
		for j, p := range n.Ports {
			path := at(path+".ports", j)
			f.required(path+".label", p.Label, "a label")
			if labels[p.Label] {
				f.add(path+".label", p.Label, "is there already", "each label once")
			}
			labels[p.Label] = true
			f.port(path+".static", p.Static, 0)
			f.port(path+".to", p.To, -1)
		}
	}
}

func (f *faults) port(path string, v, least int) {
	if v < least || v > 65535 {
		f.add(path, v, "is no port", fmt.Sprintf("%d to 65535", least))
	}
}
