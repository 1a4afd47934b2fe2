// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

func valid() *spec.Alloc {
	return &spec.Alloc{ID: "a1", Group: "g", Tasks: []spec.Task{
		{Name: "web", Driver: "raw_exec", Config: json.RawMessage(`{"command": "true"}`)},
		{Name: "log", Driver: "raw_exec"},
	}}
}

// invalid are allocs with one fault each.
var invalid = []struct {
	want string // the whole text of the only fault
	make func(*spec.Alloc)
}{
	{`id: "" has 0 bytes; allowed: 1 to 128 bytes`, func(a *spec.Alloc) { a.ID = "" }},
	{`group: is required; allowed: the name of the group this is an alloc of`, func(a *spec.Alloc) { a.Group = "" }},
	{`job_type: "cron" is unknown; allowed: service, batch, system, sysbatch`, func(a *spec.Alloc) { a.JobType = "cron" }},
	{`desired_status: "maybe" is unknown; allowed: run, stop, evict`, func(a *spec.Alloc) { a.DesiredStatus = "maybe" }},
	{`index: -1 is negative; allowed: 0 or more`, func(a *spec.Alloc) { a.Index = -1 }},
	{`previous_alloc: "a" is this alloc itself, which would wait for its own end; allowed: another alloc, or nothing`, func(a *spec.Alloc) { a.ID, a.PreviousAlloc = "a", "a" }},
	{`tasks: is empty; allowed: one task or more`, func(a *spec.Alloc) { a.Tasks = nil }},
	{`tasks[1].name: "alloc" is reserved; allowed: any but ".", ".." and "alloc", in any case`, func(a *spec.Alloc) { a.Tasks[1].Name = "alloc" }},
	{`tasks[1].name: "WEB" is there already: task "web"; allowed: names that differ in more than case`, func(a *spec.Alloc) { a.Tasks[1].Name = "WEB" }},
	{`tasks[1].leader: true makes a second leader, task "web" is one; allowed: one leader at most`, func(a *spec.Alloc) { a.Tasks[0].Leader, a.Tasks[1].Leader = true, true }},
	{`tasks[0].kill_signal: "SIGFOO" is unknown; allowed: 1 to 64, or a name such as "SIGTERM"`, func(a *spec.Alloc) { a.Tasks[0].KillSignal = "SIGFOO" }},
	{`tasks[0].driver: is required; allowed: a driver's name such as "raw_exec"`, func(a *spec.Alloc) { a.Tasks[0].Driver = "" }},
	{`tasks[0].config: "[1]" is not a JSON object; allowed: an object, or nothing`, func(a *spec.Alloc) { a.Tasks[0].Config = json.RawMessage(`[1]`) }},
	{`tasks[0].config: "{" is not a JSON object; allowed: an object, or nothing`, func(a *spec.Alloc) { a.Tasks[0].Config = json.RawMessage(`{`) }},
	{`tasks[0].env["X"]: "a\x00" contains NUL; allowed: any other byte`, func(a *spec.Alloc) { a.Tasks[0].Env = map[string]string{"X": "a\x00"} }},
	{`tasks[0].env: is required; allowed: names that are not empty`, func(a *spec.Alloc) { a.Tasks[0].Env = map[string]string{"": "x"} }},
	{`tasks[0].lifecycle.hook: "start" is unknown; allowed: prestart, poststart, poststop`, func(a *spec.Alloc) { a.Tasks[0].Lifecycle = &spec.Lifecycle{Hook: "start"} }},
	{`tasks[0].lifecycle.sidecar: true is of no use with this hook; allowed: hook prestart or poststart`, func(a *spec.Alloc) { a.Tasks[0].Lifecycle = &spec.Lifecycle{Sidecar: true} }},
	{`tasks[0].restart.attempts: -1 is negative; allowed: 0 or more`, func(a *spec.Alloc) { a.Tasks[0].Restart = &spec.RestartPolicy{Attempts: -1} }},
	{`tasks[0].restart.delay: "-1s" is negative; allowed: 0 or more`, func(a *spec.Alloc) { a.Tasks[0].Restart = &spec.RestartPolicy{Delay: -time.Second} }},
	{`tasks[0].restart.mode: "later" is unknown; allowed: fail, delay`, func(a *spec.Alloc) { a.Tasks[0].Restart = &spec.RestartPolicy{Mode: "later"} }},
	{`tasks[0].restart.max_delay: "1m0s" is of no use with this delay_function; allowed: delay_function exponential`, restart(spec.RestartPolicy{MaxDelay: time.Minute})},
	{`tasks[0].restart.reset_after: "1m0s" is of no use with this delay_function; allowed: delay_function exponential`, restart(spec.RestartPolicy{ResetAfter: time.Minute, DelayFunction: "constant"})},
	{`tasks[0].restart.max_delay: "1s" is below the delay; allowed: 1m0s or more`, restart(spec.RestartPolicy{MaxDelay: time.Second, Delay: time.Minute, DelayFunction: "exponential"})},
	{`tasks[0].restart.delay_function: "fibonacci" is unknown; allowed: constant, exponential`, restart(spec.RestartPolicy{DelayFunction: "fibonacci"})},
	{`tasks[0].restart.on_exit[0].action: is required; allowed: restart, fail, complete`, restart(spec.RestartPolicy{OnExit: []spec.ExitRule{{OOM: true}}})},
	{`tasks[0].restart.on_exit[0].action: "explode" is unknown; allowed: restart, fail, complete`, restart(spec.RestartPolicy{OnExit: []spec.ExitRule{{Action: "explode"}}})},
	{`tasks[0].restart.on_exit[0].codes[1]: -2 is no exit code; allowed: 0 or more, -1 for an exit nobody saw`, restart(spec.RestartPolicy{OnExit: []spec.ExitRule{{Codes: []int{1, -2}, Action: "fail"}}})},
	{`tasks[0].restart.on_exit[0].signals[0]: "KILL" is unknown; allowed: 1 to 64, or a name such as "SIGTERM"`, restart(spec.RestartPolicy{OnExit: []spec.ExitRule{{Signals: []string{"KILL"}, Action: "fail"}}})},
	{`tasks[0].kill_timeout: "-1ns" is negative; allowed: 0 or more`, func(a *spec.Alloc) { a.Tasks[0].KillTimeout = -1 }},
	{`tasks[0].logs.max_size: -1 is negative; allowed: 0 or more`, func(a *spec.Alloc) { a.Tasks[0].Logs = &spec.LogConfig{MaxSize: -1} }},
	{`tasks[0].depends_on[0].task: "db" is no task of this alloc; allowed: web, log`, func(a *spec.Alloc) { a.Tasks[0].DependsOn = []spec.Dependency{{Task: "db"}} }},
	{`tasks[0].depends_on[0].condition: "soon" is unknown; allowed: started, healthy, completed`, func(a *spec.Alloc) { a.Tasks[0].DependsOn = []spec.Dependency{{Task: "log", Condition: "soon"}} }},
	{`tasks: wait for each other: web -(depends_on)-> log -(depends_on)-> web; allowed: depends_on without a cycle, stages included`, func(a *spec.Alloc) {
		a.Tasks[0].DependsOn = []spec.Dependency{{Task: "log"}}
		a.Tasks[1].DependsOn = []spec.Dependency{{Task: "web"}}
	}},
	{`tasks: wait for each other: web -(depends_on)-> web; allowed: depends_on without a cycle, stages included`, func(a *spec.Alloc) {
		a.Tasks[0].DependsOn = []spec.Dependency{{Task: "web"}}
	}},
	{`tasks: wait for each other: web -(depends_on)-> log -(stage)-> web; allowed: depends_on without a cycle, stages included`, func(a *spec.Alloc) {
		a.Tasks[0].DependsOn = []spec.Dependency{{Task: "log"}}
		a.Tasks[1].Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePoststart}
	}},
	{`tasks[0].depends_on[0].condition: "log" never completes: it is started again when it ends well; allowed: started, healthy`, func(a *spec.Alloc) {
		a.Tasks[0].DependsOn = []spec.Dependency{{Task: "log", Condition: spec.DependCompleted}}
	}},
	{`deployment_status: "paused" is unknown; allowed: running, successful, failed`, func(a *spec.Alloc) { a.DeploymentStatus = "paused" }},
	{`settings.health.deadline: "5s" is below min_healthy; allowed: 10s or more`, func(a *spec.Alloc) { a.Settings.Health = &spec.HealthPolicy{Deadline: 5 * time.Second} }},
	{`tasks[0].resources.memory_max_mb: 200 is below the memory that is reserved; allowed: 300 or more, 0 for the same, -1 for no limit`, func(a *spec.Alloc) { a.Tasks[0].Resources.MemoryMaxMB = 200 }},
	{`tasks[0].resources.core_ids[1]: 3 is there already; allowed: each core once`, func(a *spec.Alloc) { a.Tasks[0].Resources.CoreIDs = []int{3, 3} }},
	{`tasks[0].resources.devices[0].affinities[0].weight: 101 is out of range; allowed: -100 to 100`, func(a *spec.Alloc) {
		a.Tasks[0].Resources.Devices = []spec.DeviceRequest{{Name: "gpu", Affinities: []spec.Constraint{{Weight: 101}}}}
	}},
	{`tasks[0].resources.numa.affinity: "all" is unknown; allowed: none, prefer, require`, func(a *spec.Alloc) { a.Tasks[0].Resources.Numa = &spec.Numa{Affinity: "all"} }},
	{`networks[0].mode: "bridged" is unknown; allowed: host, none, bridge, cni/<name>`, func(a *spec.Alloc) { a.Networks = []spec.Network{{Mode: "bridged"}} }},
	{`networks[0].ports[1].label: "x" is there already; allowed: each label once`, func(a *spec.Alloc) {
		a.Networks = []spec.Network{{Mode: "cni/x", Ports: []spec.Port{{Label: "x", To: -1}, {Label: "x"}}}}
	}},
	{`ports[0].value: 0 is no port; allowed: 1 to 65535`, func(a *spec.Alloc) { a.Ports = []spec.PortMapping{{Label: "x"}} }},
	{`tasks[0].attach.mounts[0].volume: "v" is no volume of this alloc`, func(a *spec.Alloc) {
		a.Tasks[0].Attach.Mounts = []spec.VolumeMount{{Volume: "v", Destination: "/v"}}
	}},
	{`volumes["v"].type: "nfs" is unknown; allowed: host, csi`, func(a *spec.Alloc) { a.Volumes = map[string]spec.Volume{"v": {Type: "nfs", Source: "x"}} }},
	{`settings.lost_contact.fence: true has no time to stop at; allowed: stop_after`, func(a *spec.Alloc) { a.Settings.LostContact.Fence = true }},
	{`settings.health.check: "luck" is unknown; allowed: checks, task_states, manual`, func(a *spec.Alloc) { a.Settings.Health = &spec.HealthPolicy{Check: "luck"} }},
	{`tasks[0].attach.templates[0]: has nothing to render; allowed: source or data`, template(spec.Template{Destination: "x"})},
	{`tasks[0].attach.templates[0]: has source and data; allowed: one of them`, template(spec.Template{Destination: "x", Source: "a", Data: "b"})},
	{`tasks[0].attach.templates[0].perms: "999" is no file mode; allowed: octal digits such as "644"`, template(spec.Template{Destination: "x", Data: "b", Perms: "999"})},
	{`tasks[0].attach.templates[0].change_signal: is required with change_mode signal; allowed: a signal's name such as "SIGHUP"`, template(spec.Template{Destination: "x", Data: "b", ChangeMode: "signal"})},
	{`tasks[0].attach.templates[0].change_signal: "SIGHUP" is of no use with this change_mode; allowed: change_mode signal`, template(spec.Template{Destination: "x", Data: "b", ChangeSignal: "SIGHUP"})},
	{`tasks[0].attach.templates[0].change_script: is required with change_mode script; allowed: a script`, template(spec.Template{Destination: "x", Data: "b", ChangeMode: "script"})},
	{`tasks[0].attach.templates[0].wait.max: "1s" is below min; allowed: 2s or more`, template(spec.Template{Destination: "x", Data: "b", Wait: &spec.WaitBounds{Min: 2 * time.Second, Max: time.Second}})},
	{`tasks[0].attach.artifacts[0].source: is required; allowed: an address to fetch from`, func(a *spec.Alloc) { a.Tasks[0].Attach.Artifacts = []spec.Artifact{{}} }},
	{`tasks[0].attach.actions[1].name: "x" is there already; allowed: each name once`, func(a *spec.Alloc) {
		a.Tasks[0].Attach.Actions = []spec.Action{{Name: "x", Command: "y"}, {Name: "x", Command: "y"}}
	}},
	{`tasks[0].attach.payload.file: is required; allowed: a path below local/`, func(a *spec.Alloc) { a.Tasks[0].Attach.Payload = &spec.DispatchPayload{} }},
	{`services[0].checks[0].path: is required; allowed: a path such as "/health"`, func(a *spec.Alloc) {
		a.Services = []spec.Service{{Checks: []spec.Check{{Type: "http"}}}}
	}},
	{`services[0].check_restart.limit: -1 is negative; allowed: 0 or more`, func(a *spec.Alloc) {
		a.Services = []spec.Service{{CheckRestart: &spec.CheckRestart{Limit: -1}}}
	}},
}

func TestValidate(t *testing.T) {
	require.NoError(t, valid().Validate())
	for _, c := range invalid {
		a := valid()
		c.make(a)
		err := a.Validate()
		require.Error(t, err, c.want)
		require.Equal(t, c.want, err.Error())
		require.Len(t, spec.Faults(err), 1)
	}
}

func restart(p spec.RestartPolicy) func(*spec.Alloc) {
	return func(a *spec.Alloc) { a.Tasks[0].Restart = &p }
}

// What may complete may be waited for; a poststop task may wait for anything.
func TestDependencies(t *testing.T) {
	completed := []spec.Dependency{{Task: "log", Condition: spec.DependCompleted}}
	for name, edit := range map[string]func(*spec.Alloc){
		"batch":      func(a *spec.Alloc) { a.JobType = spec.JobBatch },
		"attempts 0": func(a *spec.Alloc) { a.Tasks[1].Restart = &spec.RestartPolicy{} },
		"a rule": func(a *spec.Alloc) {
			a.Tasks[1].Restart = &spec.RestartPolicy{Attempts: 1, OnExit: []spec.ExitRule{{Codes: []int{3}, Action: spec.ExitComplete}}}
		},
		"once":            func(a *spec.Alloc) { a.Tasks[1].Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePrestart} },
		"poststop":        func(a *spec.Alloc) { a.Tasks[0].Lifecycle = &spec.Lifecycle{Hook: spec.LifecyclePoststop} },
		"another, no say": func(a *spec.Alloc) { a.Tasks[0].DependsOn = []spec.Dependency{{Task: "log"}} },
	} {
		a := valid()
		a.Tasks[0].DependsOn = completed
		edit(a)
		require.NoError(t, a.Validate(), name)
		for _, d := range a.WithDefaults().Tasks[0].DependsOn {
			require.NotEmpty(t, d.Condition, name)
		}
	}
}

func TestSignalNumber(t *testing.T) {
	for name, want := range map[string]int{
		"SIGHUP": 1, "SIGKILL": 9, "SIGTERM": 15, "SIGCHLD": 17, "SIGIO": 29, "SIGSYS": 31, "9": 9, "34": 34, "64": 64,
		"": 0, "0": 0, "65": 0, "09": 0, "+9": 0, "-1": 0, "KILL": 0, "sigkill": 0, "SIGRTMIN": 0,
	} {
		require.Equal(t, want, spec.SignalNumber(name), name)
	}
}

func TestSignalName(t *testing.T) {
	for name, want := range map[string]string{
		"1": "SIGHUP", "hup": "SIGHUP", "SIGHUP": "SIGHUP", "SigTerm": "SIGTERM", "31": "SIGSYS",
		"": "", "0": "0", "42": "42", "SIGRTMIN+1": "SIGRTMIN+1", "nix": "nix",
	} {
		require.Equal(t, want, spec.SignalName(name), name)
	}
}

func template(x spec.Template) func(*spec.Alloc) {
	return func(a *spec.Alloc) { a.Tasks[0].Attach.Templates = []spec.Template{x} }
}

// All faults come at once, also through wrapping, each with its path.
func TestFaults(t *testing.T) {
	a := &spec.Alloc{Index: -2, Tasks: []spec.Task{{}, {Name: "x", Driver: "d", Restart: &spec.RestartPolicy{Attempts: -1, Interval: -1}}}}
	err := fmt.Errorf("alloc: %w", a.Validate())
	var first *spec.FieldError
	require.ErrorAs(t, err, &first)
	require.Equal(t, "id", first.Path)
	var paths []string
	for _, f := range spec.Faults(a.Validate()) {
		paths = append(paths, f.Path)
	}
	require.Equal(t, []string{
		"id", "group", "index", "tasks[0].name", "tasks[0].driver", "tasks[1].restart.attempts", "tasks[1].restart.interval",
	}, paths)
	require.Empty(t, spec.Faults(nil))
}
