// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"fmt"
	"time"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/nodekeep/nodekeep/spec"
)

// The language. A block that this version learns to run gets a table of its own
// and leaves the list of what comes later; nothing else knows block names. The
// tables are never changed.
//
// The field of an argument is its path in spec.Alloc where that differs from its
// name. It has one purpose: what spec.Validate finds wrong is shown at the line
// it is written on. So ranges, enumerations and whatever concerns more than one
// field are judged there and not here.

var (
	jobMeta, jobMetaBlock     = texts("meta", func(j *Job) *map[string]string { return &j.Meta })
	groupMeta, groupMetaBlock = texts("meta", func(g *Group) *map[string]string { return &g.Meta })
	taskMeta, taskMetaBlock   = texts("meta", func(t *task) *map[string]string { return &t.Meta })
	taskEnv, taskEnvBlock     = texts("env", func(t *task) *map[string]string { return &t.Env })
)

var jobBlock = blockType[Job]{
	name: "a job block",
	attrs: map[string]attr[Job]{
		"id":          str("", formPlain, func(j *Job) *string { return &j.ID }),
		"name":        str("", formPlain, func(j *Job) *string { return &j.Name }),
		"type":        {"job_type", setJobType},
		"namespace":   str("", formPlain, func(j *Job) *string { return &j.Namespace }),
		"region":      str("", formPlain, func(j *Job) *string { return &j.Region }),
		"datacenters": words("", func(j *Job) *[]string { return &j.Datacenters }),
		"priority":    whole("", 1, 1, func(j *Job) *int { return &j.Priority }),
		"meta":        jobMeta,
	},
	blocks: []child[Job]{jobMetaBlock, {name: "group", labels: 1, decode: decodeGroup}},
	later: []string{
		"affinity", "all_at_once", "consul_token", "constraint", "migrate", "multiregion", "node_pool", "parameterized", "periodic",
		"reschedule", "spread", "task", "ui", "update", "vault", "vault_token",
	},
}

var groupBlock = blockType[Group]{
	name: "a group block",
	attrs: map[string]attr[Group]{
		"count":          whole("count", 0, 1, func(g *Group) *int { return &g.Count }),
		"meta":           groupMeta,
		"shutdown_delay": duration("settings.shutdown_delay", 0, func(g *Group) *time.Duration { return &g.ShutdownDelay }),
	},
	blocks: []child[Group]{
		groupMetaBlock,
		{name: "ephemeral_disk", once: true, decode: func(p *parser, b *hclsyntax.Block, path string, g *Group) {
			decode(p, &diskBlock, b.Body, path+"settings.disk.", &g.Disk)
		}},
		{name: "restart", once: true, decode: func(p *parser, b *hclsyntax.Block, path string, g *Group) {
			decode(p, &restartBlock, b.Body, path+"restart.", &g.restart)
		}},
		{name: "task", labels: 1, decode: decodeTask}, // last: takes restart over
	},
	later: []string{
		"affinity", "constraint", "consul", "disconnect", "max_client_disconnect", "migrate", "network", "prevent_reschedule_on_lost",
		"reschedule", "scaling", "service", "spread", "stop_after_client_disconnect", "update", "vault", "volume",
	},
}

var taskBlock = blockType[task]{
	name: "a task block",
	attrs: map[string]attr[task]{
		"driver":         str("", formPlain, func(t *task) *string { return &t.Driver }),
		"user":           str("", formText, func(t *task) *string { return &t.User }),
		"leader":         boolean("", func(t *task) *bool { return &t.Leader }),
		"kill_timeout":   duration("", time.Nanosecond, func(t *task) *time.Duration { return &t.KillTimeout }), // "0s" is at once
		"kill_signal":    str("", formPlain, func(t *task) *string { return &t.KillSignal }),
		"shutdown_delay": duration("", 0, func(t *task) *time.Duration { return &t.ShutdownDelay }),
		"env":            taskEnv,
		"meta":           taskMeta,
	},
	blocks: []child[task]{
		taskEnvBlock, taskMetaBlock,
		{name: "config", once: true, decode: decodeConfig},
		{name: "resources", once: true, decode: func(p *parser, b *hclsyntax.Block, path string, t *task) {
			decode(p, &resourcesBlock, b.Body, path+"resources.", &t.Resources)
			if t.Resources.Cores > 0 && t.Resources.CPU > 0 {
				p.diags.add(b.DefRange(), "Cores and cpu", "A task has whole cores or a share of cpu, not both.")
			}
		}},
		{name: "restart", once: true, decode: func(p *parser, b *hclsyntax.Block, path string, t *task) {
			decode(p, &restartBlock, b.Body, path+"restart.", t.Restart)
		}},
		{name: "lifecycle", once: true, decode: decodeLifecycle},
		{name: "logs", once: true, decode: func(p *parser, b *hclsyntax.Block, path string, t *task) {
			t.Logs = new(spec.DefaultLogs())
			decode(p, &logsBlock, b.Body, path+"logs.", t.Logs)
		}},
	},
	later: []string{
		"action", "affinity", "artifact", "constraint", "consul", "csi_plugin", "device", "dispatch_payload", "identity", "kind",
		"numa", "scaling", "schedule", "secret", "service", "template", "vault", "volume_mount",
	},
}

var resourcesBlock = blockType[spec.Resources]{
	name: "a resources block",
	attrs: map[string]attr[spec.Resources]{
		"cpu":        whole("cpu", 1, 1, func(r *spec.Resources) *int64 { return &r.CPU }),
		"cores":      whole("cores", 1, 1, func(r *spec.Resources) *int { return &r.Cores }),
		"memory":     whole("memory_mb", 1, 1, func(r *spec.Resources) *int64 { return &r.MemoryMB }),
		"memory_max": whole("memory_max_mb", -1, 1, func(r *spec.Resources) *int64 { return &r.MemoryMaxMB }),
		"secrets":    whole("secrets_mb", 1, 1, func(r *spec.Resources) *int64 { return &r.SecretsMB }),
	},
	later: []string{"device", "disk", "iops", "network", "numa"},
}

var restartBlock = blockType[spec.RestartPolicy]{
	name: "a restart block",
	attrs: map[string]attr[spec.RestartPolicy]{
		"attempts": whole("", 0, 1, func(r *spec.RestartPolicy) *int { return &r.Attempts }),
		"interval": duration("", 0, func(r *spec.RestartPolicy) *time.Duration { return &r.Interval }),
		"delay":    duration("", 0, func(r *spec.RestartPolicy) *time.Duration { return &r.Delay }),
		"mode": {"", func(p *parser, in *input, r *spec.RestartPolicy) {
			if s, ok := p.text(in, formPlain); ok {
				r.Mode = spec.RestartMode(s)
			}
		}},
	},
	later: []string{"render_templates"},
}

var logsBlock = blockType[spec.LogConfig]{
	name: "a logs block",
	attrs: map[string]attr[spec.LogConfig]{
		"max_files":     whole("", 1, 1, func(l *spec.LogConfig) *int { return &l.MaxFiles }),
		"max_file_size": whole("max_size", 1, 1<<20, func(l *spec.LogConfig) *int64 { return &l.MaxSize }),
		"disabled":      boolean("", func(l *spec.LogConfig) *bool { return &l.Disabled }),
	},
	later: []string{"enabled"},
}

var diskBlock = blockType[spec.EphemeralDisk]{
	name: "an ephemeral_disk block",
	attrs: map[string]attr[spec.EphemeralDisk]{
		"size": whole("size_mb", 1, 1, func(d *spec.EphemeralDisk) *int64 { return &d.SizeMB }),
	},
	later: []string{"migrate", "sticky"},
}

var lifecycleBlock = blockType[spec.Lifecycle]{
	name: "a lifecycle block",
	attrs: map[string]attr[spec.Lifecycle]{
		"hook": {"", func(p *parser, in *input, l *spec.Lifecycle) {
			if s, ok := p.text(in, formPlain); ok {
				l.Hook = spec.LifecycleHook(s)
			}
		}},
		"sidecar": boolean("", func(l *spec.Lifecycle) *bool { return &l.Sidecar }),
	},
}

// maxCount keeps a slip of the finger from filling the memory.
const maxCount = 10_000

// task is a spec.Task while it is decoded; the name is its own so that the table
// has a type.
type task = spec.Task

func setJobType(p *parser, in *input, j *Job) {
	if s, ok := p.text(in, formPlain); ok {
		j.Type = spec.JobType(s)
	}
}

// decodeGroup reads a group. Its restart block is not part of an alloc: it is
// where its tasks begin, and where the job's type decides the defaults.
func decodeGroup(p *parser, b *hclsyntax.Block, _ string, j *Job) {
	path := fmt.Sprintf("groups[%d].", len(j.Groups))
	p.where[path] = place{b.Type, b.DefRange()}
	p.where[path+"group"] = place{"group", b.LabelRanges[0]}
	for _, g := range j.Groups {
		if g.Name == b.Labels[0] {
			p.diags.add(b.LabelRanges[0], "Duplicate group", "The group %q is there already; each has a name of its own.", g.Name)
		}
	}
	g := Group{Name: b.Labels[0], Count: 1, restart: spec.DefaultRestart(j.Type)}
	decode(p, &groupBlock, b.Body, path, &g)
	j.Groups = append(j.Groups, g)
	if g.Count > maxCount {
		p.diags.add(p.where[path+"count"].Range, "Invalid value for count", "%d is out of range, %d or less is needed.", g.Count, maxCount)
	}
	if len(g.Tasks) == 0 {
		p.diags.add(b.DefRange(), "Group without a task", "The group %q has nothing to run; it needs a task block.", g.Name)
	}
}

// decodeTask reads a task. It starts with its group's restart policy, which its
// own restart block changes argument by argument.
func decodeTask(p *parser, b *hclsyntax.Block, path string, g *Group) {
	path = fmt.Sprintf("%stasks[%d].", path, len(g.Tasks))
	p.where[path] = place{b.Type, b.DefRange()}
	p.where[path+"name"] = place{"name", b.LabelRanges[0]}
	t := task{Name: b.Labels[0], Restart: new(g.restart)}
	decode(p, &taskBlock, b.Body, path, &t)
	g.Tasks = append(g.Tasks, t)
}

func decodeLifecycle(p *parser, b *hclsyntax.Block, path string, t *task) {
	t.Lifecycle = &spec.Lifecycle{}
	decode(p, &lifecycleBlock, b.Body, path+"lifecycle.", t.Lifecycle)
	if b.Body.Attributes["hook"] == nil {
		p.diags.add(b.DefRange(), "Missing hook", "A lifecycle block says when the task runs: hook = \"prestart\", \"poststart\" or \"poststop\".")
	}
}
