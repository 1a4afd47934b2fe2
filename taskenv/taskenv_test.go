// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskenv

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/spec"
)

// sample is an alloc with a bit of everything.
func sample() Config {
	return Config{
		Alloc: &spec.Alloc{
			ID: "0123456789abcdef", JobID: "job/dispatch-1", JobName: "job", ParentJobID: "job",
			Group: "api", Index: 2, Namespace: "prod", Region: "eu", Datacenter: "dc1",
			JobMeta: map[string]string{"owner": "job", "team": "core"},
			Meta:    map[string]string{"owner": "group", "my-key": "dashed"},
			Ports: []spec.PortMapping{
				{Label: "http", HostIP: "10.0.0.1", Value: 20001, To: 8080},
				{Label: "my-admin.x", HostIP: "10.0.0.1", Value: 20002},
			},
			Tasks: []spec.Task{{
				Name: "web",
				Meta: map[string]string{"owner": "task", "where": "${node.datacenter}"},
				Env:  map[string]string{"FOO": "task", "LISTEN": "${NOMAD_ADDR_http}"},
				Resources: spec.Resources{
					CPU: 500, MemoryMB: 256, MemoryMaxMB: 512, CoreIDs: []int{7, 0, 2, 1, 12, 13},
				},
			}},
		},
		Task: "web",
		Node: Node{
			ID: "n1", Name: "node-1", Class: "big", Pool: "default", Datacenter: "dc1", Region: "eu",
			Attrs: map[string]string{"cpu.arch": "amd64", "driver.x": "1", "driver.x.version": "2.0"},
			Meta:  map[string]string{"rack": "r1"},
		},
		Dirs:         Dirs{Alloc: "/alloc", Task: "/local", Secrets: "/secrets"},
		Host:         map[string]string{"PATH": "/bin", "FOO": "host"},
		Defaults:     map[string]string{"TZ": "UTC"},
		ParentCgroup: "nodekeep.slice/n1",
	}
}

func TestGenerated(t *testing.T) {
	e := New(sample()).Env()
	require.NoError(t, e.Err())
	require.Empty(t, e.Missing())
	require.Equal(t, map[string]string{
		"PATH": "/bin", "TZ": "UTC", "FOO": "task", "LISTEN": "10.0.0.1:20001",
		"NOMAD_ALLOC_DIR": "/alloc", "NOMAD_TASK_DIR": "/local", "NOMAD_SECRETS_DIR": "/secrets",
		"NOMAD_ALLOC_ID": "0123456789abcdef", "NOMAD_SHORT_ALLOC_ID": "01234567",
		"NOMAD_ALLOC_NAME": spec.AllocName("job/dispatch-1", "api", 2), "NOMAD_ALLOC_INDEX": "2",
		"NOMAD_TASK_NAME": "web", "NOMAD_GROUP_NAME": "api",
		"NOMAD_JOB_ID": "job/dispatch-1", "NOMAD_JOB_NAME": "job", "NOMAD_JOB_PARENT_ID": "job",
		"NOMAD_NAMESPACE": "prod", "NOMAD_REGION": "eu", "NOMAD_DC": "dc1",
		"NOMAD_PARENT_CGROUP": "nodekeep.slice/n1",
		"NOMAD_CPU_LIMIT":     "500", "NOMAD_CPU_CORES": "0-2,7,12-13",
		"NOMAD_MEMORY_LIMIT": "256", "NOMAD_MEMORY_MAX_LIMIT": "512",
		"NOMAD_IP_http": "10.0.0.1", "NOMAD_HOST_IP_http": "10.0.0.1", "NOMAD_ALLOC_IP_http": "10.0.0.1",
		"NOMAD_PORT_http": "8080", "NOMAD_HOST_PORT_http": "20001", "NOMAD_ALLOC_PORT_http": "8080",
		"NOMAD_ADDR_http": "10.0.0.1:20001", "NOMAD_HOST_ADDR_http": "10.0.0.1:20001", "NOMAD_ALLOC_ADDR_http": "10.0.0.1:8080",
		"NOMAD_IP_my_admin_x": "10.0.0.1", "NOMAD_HOST_IP_my_admin_x": "10.0.0.1", "NOMAD_ALLOC_IP_my_admin_x": "10.0.0.1",
		"NOMAD_PORT_my_admin_x": "20002", "NOMAD_HOST_PORT_my_admin_x": "20002", "NOMAD_ALLOC_PORT_my_admin_x": "20002",
		"NOMAD_ADDR_my_admin_x": "10.0.0.1:20002", "NOMAD_HOST_ADDR_my_admin_x": "10.0.0.1:20002", "NOMAD_ALLOC_ADDR_my_admin_x": "10.0.0.1:20002",
		"NOMAD_META_owner": "task", "NOMAD_META_OWNER": "task",
		"NOMAD_META_team": "core", "NOMAD_META_TEAM": "core",
		"NOMAD_META_my_key": "dashed", "NOMAD_META_MY_KEY": "dashed",
		"NOMAD_META_where": "dc1", "NOMAD_META_WHERE": "dc1",
	}, e.Map())
	var names []string
	for _, kv := range e.List() {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	require.True(t, slices.IsSorted(names))
	require.Len(t, e.List(), len(e.Map()))
}

func TestLittleIsKnown(t *testing.T) {
	require.Empty(t, Builder{}.Env().List())
	require.Empty(t, New(Config{}).Env().List())
	e := New(Config{Alloc: &spec.Alloc{ID: "a", JobID: "j", Group: "g"}, Task: "gone"}).Env()
	require.Equal(t, []string{
		"NOMAD_ALLOC_ID=a", "NOMAD_ALLOC_INDEX=0", "NOMAD_ALLOC_NAME=" + spec.AllocName("j", "g", 0),
		"NOMAD_GROUP_NAME=g", "NOMAD_JOB_ID=j", "NOMAD_JOB_NAME=j", "NOMAD_SHORT_ALLOC_ID=a",
	}, e.List())
}

func TestPrefix(t *testing.T) {
	c := sample()
	c.Prefix = "NK_"
	c.Host["NK_TOKEN"], c.Host["NOMAD_TOKEN"] = "agent's", "fine"
	e := New(c).Env().Map()
	require.Equal(t, "web", e["NK_TASK_NAME"])
	require.Equal(t, "/local", e["NK_TASK_DIR"])
	require.NotContains(t, e, "NK_TOKEN")
	require.Equal(t, "fine", e["NOMAD_TOKEN"])
}

// FF-089: the agent's own identity never reaches a task; what texts see is what
// the task is given.
func TestPrecedence(t *testing.T) {
	c := sample()
	c.Host = map[string]string{
		"NOMAD_ALLOC_ID": "bogus", "NOMAD_TOKEN": "agent's", "A": "host", "B": "host", "C": "host", "D": "host", "E": "host",
	}
	c.Defaults = map[string]string{"B": "default", "C": "default", "D": "default", "E": "default"}
	c.Alloc.Tasks[0].Env = map[string]string{"C": "task", "D": "task", "E": "task", "NOMAD_DC": "mine", "SEEN": "${A} ${B} ${C} ${NOMAD_ALLOC_ID}"}
	b := New(c)
	h := b.WithHook(map[string]string{"D": "hook1"}).WithHook(map[string]string{"D": "hook", "E": "hook"})
	tm := h.WithTemplate(map[string]string{"E": "template"})

	m := tm.Env().Map()
	require.Equal(t, "0123456789abcdef", m["NOMAD_ALLOC_ID"])
	require.NotContains(t, m, "NOMAD_TOKEN")
	require.Equal(t, "mine", m["NOMAD_DC"])
	require.Equal(t, "host default task 0123456789abcdef", m["SEEN"])
	got, missing := tm.Env().Replace("${A} ${B} ${C} ${D} ${env.E}")
	require.Equal(t, "host default task hook template", got)
	require.Empty(t, missing)
	// Deriving changes nothing that was there before.
	got, _ = b.Env().Replace("${D} ${E}")
	require.Equal(t, "task task", got)
	got, _ = h.Env().Replace("${D} ${E}")
	require.Equal(t, "hook hook", got)
}

// FF-091: a task has what its job, the operator, the allow-list and the generator
// give it and nothing else.
func TestNothingElseLeaks(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	t.Setenv("NOMAD_PLUGIN_MAGIC_COOKIE", "x")
	e := New(Config{Alloc: &spec.Alloc{Tasks: []spec.Task{{Name: "web", Env: map[string]string{"A": "1"}}}}, Task: "web"}).Env()
	for _, kv := range e.List() {
		require.True(t, kv == "A=1" || strings.HasPrefix(kv, DefaultPrefix), kv)
		require.NotContains(t, kv, "COOKIE")
	}
}

func TestFilterHost(t *testing.T) {
	environ := []string{"PATH=/bin:/usr/bin", "LC_ALL=C", "AWS_SECRET_ACCESS_KEY=x", "TZ=a=b", "broken", "=C:=C:\\"}
	require.Equal(t, map[string]string{"PATH": "/bin:/usr/bin", "TZ": "a=b"}, FilterHost(environ, nil))
	require.Equal(t, map[string]string{"LC_ALL": "C"}, FilterHost(environ, []string{"LC_ALL", "NONE"}))
	require.Empty(t, FilterHost(environ, []string{}))
}

// FF-093: only generated names are cleaned.
func TestNamesPassUnchanged(t *testing.T) {
	c := sample()
	c.Alloc.Tasks[0].Env = map[string]string{
		"discovery.zen.hosts": "a", "my-key": "b", "1x": "c", "empty": "", "NOMAD_META_by-hand": "d",
		"SEEN": "${discovery.zen.hosts}${my-key}${1x}${empty}${NOMAD_META_my-key}${env.NOMAD_PORT_my-admin.x}",
	}
	e := New(c).Env()
	require.NoError(t, e.Err())
	m := e.Map()
	for k, v := range c.Alloc.Tasks[0].Env {
		if k != "SEEN" {
			require.Equal(t, v, m[k], k)
			require.Contains(t, m, k)
		}
	}
	require.Equal(t, "abcdashed20002", m["SEEN"])
	require.NotContains(t, m, "NOMAD_META_my-key")
	require.Equal(t, "dashed", e.Vars()["NOMAD_META_my-key"])

	c.Alloc.Tasks[0].Env = map[string]string{"a=b": "1", "n\x00l": "2", "": "3", "ok": "4", "value": "cut\x00here"}
	e = New(c).Env()
	require.ErrorIs(t, e.Err(), ErrVariable)
	for _, name := range []string{`"a=b"`, `"n\x00l"`, `""`, `"value"`} {
		require.ErrorContains(t, e.Err(), name)
	}
	require.Equal(t, "4", e.Map()["ok"])
	for _, kv := range e.List() {
		require.NotContains(t, kv, "\x00")
	}
}

func TestMetaNamesThatMeet(t *testing.T) {
	c := Config{Alloc: &spec.Alloc{Meta: map[string]string{"a-b": "1", "a_b": "2", "a.b": "3", "A_B": "4", "c-d": "5", "c.d": "6"}}}
	m := New(c).Env().Map()
	require.Equal(t, "2", m["NOMAD_META_a_b"], "the key that is written so")
	require.Equal(t, "4", m["NOMAD_META_A_B"])
	require.Equal(t, "5", m["NOMAD_META_c_d"], "else the smallest")
	require.Equal(t, "5", m["NOMAD_META_C_D"])
}

// FF-094: values arrive byte by byte, expanded once.
func TestValuesPassUnchanged(t *testing.T) {
	values := []string{
		"a=b=c", `"quoted"`, "$HOME", "${not", "${not closed ${", "100%", "multi\nline\n", "trailing ", "ünï→", "${}", "${ }",
		"$", "$$", "$${", "{}", "${a\nb}", strings.Repeat("x", 128<<10), "$(id)", "`id`", `\${x`,
	}
	c := sample()
	env := map[string]string{"EVIL": "${NOMAD_ALLOC_ID}"}
	for i, v := range values {
		env[string(rune('a'+i))] = v
	}
	c.Host["TEXT"] = "${NOMAD_ALLOC_ID}"
	env["ONCE"] = "${TEXT} ${hook}"
	c.Alloc.Tasks[0].Env = env
	e := New(c).WithHook(map[string]string{"HOOK": "${NOMAD_ALLOC_ID}"}).WithTemplate(map[string]string{"TEMPLATE": "$${x}"}).Env()
	m := e.Map()
	for i, v := range values {
		require.Equal(t, v, m[string(rune('a'+i))])
		got, missing := e.Replace(v)
		require.Equal(t, v, got)
		require.Empty(t, missing)
	}
	require.Equal(t, "${NOMAD_ALLOC_ID} ${hook}", m["ONCE"], "what was put in is not expanded again")
	require.Equal(t, "${NOMAD_ALLOC_ID}", m["HOOK"])
	require.Equal(t, "$${x}", m["TEMPLATE"])
	require.Equal(t, []string{"hook"}, e.Missing())
	got, _ := e.Replace("${HOOK}")
	require.Equal(t, "${NOMAD_ALLOC_ID}", got)
}

// FF-096: pairs that belong together, brackets around IPv6 in ADDR only, and each
// task sees its own port first.
func TestPorts(t *testing.T) {
	c := Config{
		Alloc: &spec.Alloc{
			Tasks: []spec.Task{{Name: "web"}, {Name: "side-car"}},
			Ports: []spec.PortMapping{
				{Label: "static", HostIP: "192.0.2.1", Value: 443, To: 8443},
				{Label: "dynamic", HostIP: "2001:db8::1", Value: 25000, To: -1},
				{Label: "own", HostIP: "192.0.2.2", Value: 1001, Task: "web"},
				{Label: "own", HostIP: "192.0.2.3", Value: 1002, Task: "side-car"},
				{Label: "static", HostIP: "192.0.2.3", Value: 1003, Task: "side-car"},
				{Label: "no-ip", Value: 7},
			},
		},
		AllocIP: "fd00::2",
	}
	for task, want := range map[string]map[string]string{
		"web": {
			"IP_static": "192.0.2.1", "PORT_static": "8443", "ADDR_static": "192.0.2.1:443",
			"HOST_IP_static": "192.0.2.1", "HOST_PORT_static": "443", "HOST_ADDR_static": "192.0.2.1:443",
			"ALLOC_IP_static": "fd00::2", "ALLOC_PORT_static": "8443", "ALLOC_ADDR_static": "[fd00::2]:8443",
			"IP_dynamic": "2001:db8::1", "PORT_dynamic": "25000", "ADDR_dynamic": "[2001:db8::1]:25000",
			"ALLOC_ADDR_dynamic": "[fd00::2]:25000",
			"PORT_own":           "1001", "ADDR_own": "192.0.2.2:1001",
			"PORT_web_own": "1001", "ADDR_side_car_own": "192.0.2.3:1002", "IP_side_car_own": "192.0.2.3",
			"PORT_no_ip": "7", "IP_no_ip": "", "ADDR_no_ip": "",
		},
		"side-car": {
			"PORT_own": "1002", "ADDR_own": "192.0.2.3:1002", "ADDR_web_own": "192.0.2.2:1001",
			"PORT_static": "1003", "ADDR_static": "192.0.2.3:1003", "ADDR_side_car_static": "192.0.2.3:1003",
		},
	} {
		c.Task = task
		m := New(c).Env().Map()
		for k, v := range want {
			require.Equal(t, v, m["NOMAD_"+k], "%s in %s", k, task)
		}
	}
	c.AllocIP, c.Task = "", "web"
	require.Equal(t, "192.0.2.1:8443", New(c).Env().Map()["NOMAD_ALLOC_ADDR_static"])
}

func TestNodeFacts(t *testing.T) {
	c := sample()
	c.Alloc.Tasks[0].Env = map[string]string{"attr.cpu.arch": "env", "attr.own": "env", "node.class": "env"}
	e := New(c).Env()
	for name, want := range map[string]string{
		"node.unique.id": "n1", "node.unique.name": "node-1", "node.class": "big", "node.pool": "default",
		"node.datacenter": "dc1", "node.region": "eu",
		"attr.cpu.arch": "amd64", "node.attr.cpu.arch": "amd64", "attr.driver.x": "1", "attr.driver.x.version": "2.0",
		"meta.rack": "r1", "node.meta.rack": "r1", "attr.own": "env", "env.attr.cpu.arch": "env",
		"PATH": "/bin", "env.PATH": "/bin", "NOMAD_META_my-key": "dashed",
	} {
		got, missing := e.Replace("<${" + name + "}>")
		require.Equal(t, "<"+want+">", got)
		require.Empty(t, missing)
		require.Equal(t, want, e.Vars()[name], name)
	}
	// One rule, two ways of asking.
	for name, want := range e.Vars() {
		got, missing := e.Replace("${" + name + "}")
		require.Empty(t, missing, name)
		require.Equal(t, want, got, name)
	}
	for _, name := range []string{"attr.none", "node.none", "node.attr.none", "meta.none", "attr", "node", "env.none", "env."} {
		got, missing := e.Replace("${" + name + "}")
		require.Equal(t, "${"+name+"}", got)
		require.Equal(t, []string{name}, missing)
		require.NotContains(t, e.Vars(), name)
	}
}

func TestReplace(t *testing.T) {
	e := New(sample()).Env()
	for in, want := range map[string]string{
		"":                            "",
		"plain":                       "plain",
		"${FOO}":                      "task",
		"a${FOO}b${FOO}c":             "ataskbtaskc",
		"${ FOO }":                    "task",
		"$${FOO}":                     "${FOO}",
		"$$${FOO}":                    "$${FOO}",
		"$${nobody knows}":            "${nobody knows}",
		"${FOO}$${FOO}${FOO}":         "task${FOO}task",
		"${not, but ${FOO}":           "${not, but task",
		"${${FOO}}":                   "${task}",
		"${x${FOO}":                   "${xtask",
		"${FOO:-default}":             "${FOO:-default}",
		"${b} ${a} ${b}":              "${b} ${a} ${b}",
		"$":                           "$",
		"${NOMAD_META_where}/${FOO}$": "dc1/task$",
	} {
		got, _ := e.Replace(in)
		require.Equal(t, want, got, in)
	}
	_, missing := e.Replace("${b} ${a} ${b} $${c} ${FOO} ${FOO:-x}")
	require.Equal(t, []string{"FOO:-x", "a", "b"}, missing)
}

func TestVariablesThatNameEachOther(t *testing.T) {
	c := sample()
	c.Alloc.Tasks[0].Meta = map[string]string{"base": "/srv/${NOMAD_TASK_NAME}", "sub": "${NOMAD_META_base}/sub"}
	c.Alloc.Tasks[0].Env = map[string]string{
		"PATH": "/opt/bin:${PATH}", "A": "<${B}>", "B": "${C}+${NOMAD_META_sub}", "C": "c", "D": "${env.A}",
		"X": "x${Y}", "Y": "y${X}", "SELF": "${SELF}",
	}
	for range 20 { // whatever the order of maps
		e := New(c).Env()
		m := e.Map()
		require.Equal(t, "/opt/bin:/bin", m["PATH"])
		require.Equal(t, "<c+/srv/web/sub>", m["A"])
		require.Equal(t, m["A"], m["D"])
		require.Equal(t, "xy${X}", m["X"])
		require.Equal(t, "y${X}", m["Y"])
		require.Equal(t, "${SELF}", m["SELF"])
		require.Equal(t, []string{"SELF", "X"}, e.Missing())
	}
}

// FF-098: the same text leads to the task's paths for the task and to the host's
// for the agent.
func TestTwoViews(t *testing.T) {
	c := sample()
	c.Alloc.Tasks[0].Env = map[string]string{"CONF": "${NOMAD_SECRETS_DIR}/conf"}
	task := New(c)
	host := task.WithDirs(Dirs{Alloc: "/data/a1/alloc", Task: "/data/a1/web/local", Secrets: "/data/a1/web/secrets"})
	for text, want := range map[string][2]string{
		"${NOMAD_SECRETS_DIR}/f": {"/secrets/f", "/data/a1/web/secrets/f"},
		"${NOMAD_TASK_DIR}/f":    {"/local/f", "/data/a1/web/local/f"},
		"${NOMAD_ALLOC_DIR}/f":   {"/alloc/f", "/data/a1/alloc/f"},
		"${CONF}":                {"/secrets/conf", "/data/a1/web/secrets/conf"},
	} {
		got, _ := task.Env().Replace(text)
		require.Equal(t, want[0], got)
		got, _ = host.Env().Replace(text)
		require.Equal(t, want[1], got)
	}
}

func TestResultsAreCopies(t *testing.T) {
	hook := map[string]string{"H": "1"}
	b := New(sample()).WithHook(hook)
	hook["H"] = "2"
	e := b.Env()
	require.Equal(t, "1", e.Map()["H"])
	e.Map()["H"] = "3"
	e.List()[0] = "x"
	require.Equal(t, "1", e.Map()["H"])
	require.Equal(t, b.Env().List(), e.List())
}

func TestCoreList(t *testing.T) {
	for want, ids := range map[string][]int{
		"": nil, "3": {3}, "0-2,7,12-14": {14, 0, 2, 1, 7, 12, 13}, "1,3": {3, 1, 3}, "1-2": {2, 1},
	} {
		require.Equal(t, want, coreList(ids))
	}
}

// FuzzReplace checks the scanner against its rules.
func FuzzReplace(f *testing.F) {
	for _, s := range []string{"${FOO}", "$${FOO}", "${a}${b}", "${${FOO}}", "$$${", "${\n}", "}${", "${ x }", "\xff${FOO}"} {
		f.Add(s)
	}
	e := New(sample()).Env()
	f.Fuzz(func(t *testing.T, s string) {
		got, missing := e.Replace(s)
		if !strings.Contains(s, "${") {
			require.Equal(t, s, got)
		}
		require.True(t, slices.IsSorted(missing))
		require.Len(t, slices.Compact(slices.Clone(missing)), len(missing))
		for _, name := range missing {
			require.NotEmpty(t, name)
			require.NotContains(t, e.Vars(), name)
			require.Contains(t, got, name)
		}
		// Text around it does not change how a part is read.
		again, _ := e.Replace("x" + s)
		require.Equal(t, "x"+got, again)
		// Through the env block it means the same.
		c := sample()
		c.Alloc.Tasks[0].Env = maps.Clone(c.Alloc.Tasks[0].Env)
		c.Alloc.Tasks[0].Env["FUZZ"] = s
		env := New(c).Env()
		if !strings.Contains(s, "FUZZ") && !strings.Contains(s, "\x00") {
			require.NoError(t, env.Err())
			require.Equal(t, got, env.Map()["FUZZ"])
		}
	})
}

func BenchmarkNew(b *testing.B) {
	c := sample()
	b.ReportAllocs()
	for b.Loop() {
		New(c)
	}
}

func BenchmarkEnv(b *testing.B) {
	base := New(sample())
	b.ReportAllocs()
	for b.Loop() {
		base.Env()
	}
}

func BenchmarkStart(b *testing.B) { // what one start of a task needs
	base := New(sample())
	hook := map[string]string{"A": "1"}
	b.ReportAllocs()
	for b.Loop() {
		e := base.WithHook(hook).Env()
		e.List()
	}
}

func BenchmarkVars(b *testing.B) {
	base := New(sample())
	for b.Loop() {
		base.Env().Vars()
	}
}

func BenchmarkReplace(b *testing.B) {
	e := New(sample()).Env()
	b.ReportAllocs()
	for b.Loop() {
		e.Replace("--bind=${NOMAD_ADDR_http} --dir=${NOMAD_TASK_DIR}")
	}
}
