// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/spec"
)

func TestReplaced(t *testing.T) {
	base := (&spec.Alloc{
		ID: "a", JobID: "j", Group: "g",
		Tasks: []spec.Task{
			{Name: "web", Driver: "d", Config: json.RawMessage(`{"command": "x"}`), Attach: spec.Attachments{
				Templates: []spec.Template{{Destination: "local/t", Data: "x"}},
				Vault:     &spec.Vault{Role: "r"},
			}},
			{Name: "log", Driver: "d"},
		},
	}).WithDefaults()
	for name, c := range map[string]struct {
		change func(*spec.Alloc)
		want   []string
	}{
		"nothing": {func(*spec.Alloc) {}, nil},
		"in place": {func(a *spec.Alloc) {
			a.DesiredStatus, a.Meta, a.JobMeta = spec.DesiredStop, map[string]string{"a": "b"}, map[string]string{"c": "d"}
			a.Services = []spec.Service{{Name: "s"}}
			a.Settings.ShutdownDelay = time.Hour
			w := &a.Tasks[0]
			w.Restart.Attempts, w.KillTimeout, w.KillSignal, w.ShutdownDelay = 9, time.Hour, "SIGINT", time.Hour
			w.Logs.MaxFiles, w.Resources.CPU, w.Meta = 3, 7, map[string]string{"x": "y"}
			w.Attach.Services = []spec.Service{{Name: "s"}}
			w.Attach.Templates[0].ChangeMode, w.Attach.Vault.ChangeMode = "noop", "noop"
		}, nil},
		"spacing and emptiness": {func(a *spec.Alloc) {
			a.Tasks[0].Config = json.RawMessage(`{"command":"x"}`)
			a.Tasks[0].Env, a.Networks, a.Volumes = map[string]string{}, []spec.Network{}, map[string]spec.Volume{}
		}, nil},
		"task added":   {func(a *spec.Alloc) { a.Tasks = append(a.Tasks, spec.Task{Name: "x"}) }, []string{"tasks"}},
		"task renamed": {func(a *spec.Alloc) { a.Tasks[1].Name = "x" }, []string{"tasks"}},
		"order":        {func(a *spec.Alloc) { a.Tasks[0], a.Tasks[1] = a.Tasks[1], a.Tasks[0] }, []string{"tasks"}},
		"all else": {func(a *spec.Alloc) {
			a.Group, a.Networks = "x", []spec.Network{{Mode: "bridge"}}
			a.Volumes = map[string]spec.Volume{"v": {}}
			w := &a.Tasks[0]
			w.Driver, w.Config, w.User, w.Env = "x", json.RawMessage(`{}`), "nobody", map[string]string{"a": "b"}
			w.Lifecycle, w.Leader = &spec.Lifecycle{Hook: spec.LifecyclePoststop}, true
			w.Attach.Templates[0].Data = "y"
		}, []string{"group", "networks", "volumes", "tasks[web].driver", "tasks[web].config", "tasks[web].user",
			"tasks[web].env", "tasks[web].lifecycle", "tasks[web].leader", "tasks[web].attach"}},
	} {
		t.Run(name, func(t *testing.T) {
			now := base.Clone()
			c.change(now)
			before, err := json.Marshal(now)
			require.NoError(t, err)
			require.Equal(t, c.want, replaced(base, now))
			after, err := json.Marshal(now)
			require.NoError(t, err)
			require.Equal(t, string(before), string(after), "the alloc was changed")
		})
	}
}
