// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every field of an alloc has exactly one rule, and every rule is some field's.
func TestEveryFieldHasAChangeRule(t *testing.T) {
	rules, used := changeRules(), map[string]bool{}
	var walk func(pattern string, typ reflect.Type)
	walk = func(pattern string, typ reflect.Type) {
		if _, ok := rules[pattern]; ok {
			used[pattern] = true
			return
		}
		switch {
		case typ.Kind() == reflect.Pointer:
			walk(pattern, typ.Elem())
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
			walk(pattern+"[]", typ.Elem())
		case typ.Kind() == reflect.Struct && typ != reflect.TypeFor[time.Time]():
			for i := range typ.NumField() {
				walk(below(pattern, fieldName(typ.Field(i))), typ.Field(i).Type)
			}
		default:
			t.Errorf("no rule says what a change of %s means", pattern)
		}
	}
	walk("", reflect.TypeFor[Alloc]())
	for p := range rules {
		require.True(t, used[p], "a rule for what is no field: %s", p)
	}
}

func TestDiff(t *testing.T) {
	base := &Alloc{
		ID: "a", JobID: "j", Group: "g",
		Tasks: []Task{
			{Name: "web", Driver: "d", Config: json.RawMessage(`{"command": "x"}`), Attach: Attachments{
				Templates:  []Template{{Destination: "local/t", Data: "x"}, {Destination: "local/u", Data: "x"}},
				Vault:      &Vault{Role: "r"},
				Identities: []Identity{{Name: "i"}},
			}},
			{Name: "log", Driver: "d"},
		},
	}
	for name, c := range map[string]struct {
		change  func(*Alloc)
		inPlace string
		replace string
	}{
		"nothing": {func(*Alloc) {}, "", ""},
		"in place": {func(a *Alloc) {
			a.DesiredStatus, a.Meta, a.JobMeta = DesiredStop, map[string]string{"a": "b"}, map[string]string{"c": "d"}
			a.DeploymentID, a.DeploymentStatus, a.ModifyIndex = "d", DeploymentSuccessful, 9
			a.Services = []Service{{Name: "s", Checks: []Check{{Name: "c"}}}}
			a.Settings.ShutdownDelay, a.Settings.MaxRun = time.Hour, time.Hour
			w := &a.Tasks[0]
			w.Restart = &RestartPolicy{Attempts: 9}
			w.KillTimeout, w.KillSignal, w.ShutdownDelay = time.Hour, "SIGINT", time.Hour
			w.Logs, w.Resources.CPU, w.Meta = &LogConfig{MaxFiles: 3}, 7, map[string]string{"x": "y"}
			w.Attach.Services = []Service{{Name: "s"}}
			w.Attach.Templates[1].ChangeMode, w.Attach.Vault.ChangeMode, w.Attach.Identities[0].ChangeMode = "noop", "noop", "noop"
		}, `deployment_id deployment_status desired_status modify_index tasks[web].meta tasks[web].resources.cpu tasks[web].restart
			tasks[web].kill_timeout tasks[web].kill_signal tasks[web].shutdown_delay tasks[web].logs.max_files
			tasks[web].attach.templates[1].change_mode tasks[web].attach.services tasks[web].attach.vault.change_mode
			tasks[web].attach.identities[0].change_mode job_meta meta services settings`, ""},
		"defaults, spacing and emptiness": {func(a *Alloc) {
			a.JobType, a.Namespace, a.Tasks[0].KillTimeout = JobService, DefaultNamespace, DefaultKillTimeout
			a.Tasks[0].Config = json.RawMessage(`{"command":"x"}`)
			a.Tasks[0].Env, a.Networks, a.Volumes = map[string]string{}, []Network{}, map[string]Volume{}
		}, "", ""},
		"task added":     {func(a *Alloc) { a.Tasks = append(a.Tasks, Task{Name: "x"}) }, "", "tasks"},
		"task renamed":   {func(a *Alloc) { a.Tasks[1].Name = "x" }, "", "tasks"},
		"order":          {func(a *Alloc) { a.Tasks[0], a.Tasks[1] = a.Tasks[1], a.Tasks[0] }, "", "tasks"},
		"template added": {func(a *Alloc) { a.Tasks[0].Attach.Templates = append(a.Tasks[0].Attach.Templates, Template{}) }, "", "tasks[web].attach.templates"},
		"vault gone":     {func(a *Alloc) { a.Tasks[0].Attach.Vault = nil }, "", "tasks[web].attach.vault"},
		"job type":       {func(a *Alloc) { a.JobType = JobBatch }, "tasks[web].restart tasks[log].restart", "job_type"},
		"logs off":       {func(a *Alloc) { a.Tasks[0].Logs = &LogConfig{Disabled: true} }, "", "tasks[web].logs.disabled"},
		"all else": {func(a *Alloc) {
			a.Group, a.Networks = "x", []Network{{Mode: "bridge"}}
			a.Volumes = map[string]Volume{"v": {}}
			w := &a.Tasks[0]
			w.Driver, w.Config, w.User, w.Env = "x", json.RawMessage(`{}`), "nobody", map[string]string{"a": "b"}
			w.Lifecycle, w.Leader, w.DependsOn = &Lifecycle{Hook: LifecyclePoststop}, true, []Dependency{{Task: "log"}}
			w.Attach.Templates[0].Data, w.Attach.Artifacts = "y", []Artifact{{Source: "s"}}
			w.Resources.Devices = []DeviceRequest{{Name: "gpu"}}
		}, "name", `group tasks[web].driver tasks[web].config tasks[web].user tasks[web].env tasks[web].resources.devices tasks[web].lifecycle
			tasks[web].leader tasks[web].depends_on tasks[web].attach.templates[0].data tasks[web].attach.artifacts networks volumes`},
	} {
		t.Run(name, func(t *testing.T) {
			now := base.Clone()
			c.change(now)
			before := now.Clone()
			var changes []string
			diff := Diff(base, now)
			for _, d := range diff {
				if !d.Replace {
					changes = append(changes, d.Path)
				}
			}
			require.Equal(t, strings.Fields(c.inPlace), append([]string{}, changes...))
			require.Equal(t, strings.Fields(c.replace), append([]string{}, Replaced(diff)...))
			require.Equal(t, before, now, "the alloc was changed")
		})
	}
}

// FuzzDiff: an alloc does not differ from itself, and what differs one way does
// so the other way round.
func FuzzDiff(f *testing.F) {
	f.Add([]byte(`{"id":"a","tasks":[{"name":"x","config":{"a":1}}]}`), []byte(`{"id":"a","tasks":[{"name":"x","config":{"a":2}}]}`))
	f.Add([]byte(`{"tasks":[{"name":"x","attach":{"vault":{}}}]}`), []byte(`{"tasks":[{"name":"x"}],"volumes":{"v":{}}}`))
	f.Fuzz(func(t *testing.T, x, y []byte) {
		var a, b Alloc
		if json.Unmarshal(x, &a) != nil || json.Unmarshal(y, &b) != nil {
			return
		}
		require.Empty(t, Diff(&a, a.Clone()))
		require.Empty(t, Diff(&a, a.WithDefaults()))
		paths := func(cs []Change) (out []string) {
			for _, c := range cs {
				out = append(out, c.Path)
			}
			return out
		}
		require.Equal(t, paths(Diff(&a, &b)), paths(Diff(&b, &a)))
	})
}
