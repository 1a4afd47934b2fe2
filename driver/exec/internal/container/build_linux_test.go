// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
)

// all is a machine that has everything.
func all() Features {
	return Features{Cgroup: "v2", Controllers: []string{"cpu", "cpuset", "memory", "pids", "devices"}, Root: true}
}

// plain are surroundings in which a task can be built; nothing of them need be there.
func plain() (driver.TaskConfig, map[string]any, NodeOptions) {
	users := map[string]account.Account{
		"nobody": {Name: "nobody", UID: 65534, GID: 65534, Groups: []int{65534}},
		"root":   {Name: "root"},
		"app":    {Name: "app", UID: 1000, GID: 1000, Groups: []int{1000, 44}},
		"wheel":  {Name: "wheel", UID: 1001, GID: 1001, Groups: []int{1001, 0}},
	}
	lookup := func(name string) (account.Account, error) {
		if a, ok := users[name]; ok {
			return a, nil
		}
		return account.Account{}, errors.New("no such user")
	}
	return driver.TaskConfig{ID: "a/b/0", Owner: driver.Owner{AllocID: "a"}, Env: []string{"A=1"},
			Dirs: driver.Dirs{Alloc: "/x/alloc", Task: "/x/task", Local: "/x/task/local", Secrets: "/x/task/secrets"}},
		map[string]any{"command": "/bin/true"},
		NodeOptions{StateRoot: "/run/x/ctr", Cgroup: "/slice/x.scope", Features: all(), Lookup: lookup, ResolvConf: os.DevNull}
}

// TestRefused: each value that cannot be taken is refused by name, and all at once.
func TestRefused(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name   string
		config map[string]any
		change func(*driver.TaskConfig, *NodeOptions)
		fields []string
	}{
		{"no command", map[string]any{"command": ""}, nil, []string{"config.command"}},
		{"command leads out", map[string]any{"command": "../../bin/sh"}, nil, []string{"config.command"}},
		{"NUL", map[string]any{"args": []string{"a\x00b"}, "work_dir": "\x00"}, nil, []string{"config.args[0]", "config.work_dir"}},
		{"capabilities", map[string]any{"cap_add": []string{"sys_admin", "nonsense", "all", "chown"}, "cap_drop": []string{"x"}}, nil,
			[]string{"config.cap_drop[0]", "config.cap_add[0]", "config.cap_add[1]", "config.cap_add[2]"}},
		{"modes", map[string]any{"pid_mode": "host", "ipc_mode": "other"}, nil, []string{"config.pid_mode", "config.ipc_mode"}},
		{"setuid", map[string]any{"no_new_privs": false, "seccomp": "unconfined"}, nil, []string{"config.no_new_privs", "config.seccomp"}},
		{"filter without no_new_privs", map[string]any{"no_new_privs": false}, func(_ *driver.TaskConfig, n *NodeOptions) { n.AllowSetuid = true }, []string{"config.seccomp"}},
		{"profile", map[string]any{"seccomp": "/etc/passwd"}, nil, []string{"config.seccomp"}},
		{"image", map[string]any{"image": "/etc"}, nil, []string{"config.image"}},
		{"image up", map[string]any{"image": "local/../../x"}, nil, []string{"config.image"}},
		{"image itself", map[string]any{"image": "."}, nil, []string{"config.image"}},
		{"sizes", map[string]any{"tmp_mb": -1, "shm_mb": -1, "pids_limit": -1, "memory_swap_mb": -2, "oom_score_adj": 1001}, nil,
			[]string{"config.tmp_mb", "config.shm_mb", "config.pids_limit", "config.memory_swap_mb", "config.oom_score_adj"}},
		{"scores", map[string]any{"oom_score_adj": -1}, nil, []string{"config.oom_score_adj"}},
		{"ulimits", map[string]any{"ulimit": map[string]string{"nofile": "20:10", "nothing": "1", "core": "x"}}, nil,
			[]string{"config.ulimit.nofile", "config.ulimit.nothing", "config.ulimit.core"}},
		{"hard limit", map[string]any{"cpu_hard_limit": true}, nil, []string{"config.cpu_hard_limit"}},
		{"user namespace", map[string]any{"user_namespace": true}, nil, []string{"config.user_namespace"}},
		{"init", map[string]any{"init": true, "pid_mode": "host"}, func(_ *driver.TaskConfig, n *NodeOptions) { n.AllowHostPID = true }, []string{"config.init"}},
		{"hostname", map[string]any{"hostname": "a b"}, nil, []string{"config.hostname"}},
		{"hostname", map[string]any{"hostname": long}, nil, []string{"config.hostname"}},
		{"patterns", map[string]any{"denied_envvars": []string{"[", ""}}, nil, []string{"config.denied_envvars[0]", "config.denied_envvars[1]"}},
		{"root", nil, func(c *driver.TaskConfig, _ *NodeOptions) { c.User = "root" }, []string{"user"}},
		{"root's group", nil, func(c *driver.TaskConfig, _ *NodeOptions) { c.User = "wheel" }, []string{"user"}},
		{"denied", nil, func(c *driver.TaskConfig, n *NodeOptions) { c.User, n.DeniedUsers = "app", []string{"1-99", "1000"} }, []string{"user"}},
		{"denied by name", nil, func(c *driver.TaskConfig, n *NodeOptions) { c.User, n.DeniedUsers = "app", []string{"app"} }, []string{"user"}},
		{"environment", nil, func(c *driver.TaskConfig, _ *NodeOptions) { c.Env = []string{"=x", "nothing", "A=\x00"} }, []string{"environment", "environment", "environment"}},
		{"mounts", nil, func(c *driver.TaskConfig, _ *NodeOptions) {
			for _, target := range []string{"/", "/proc", "/proc/sys", "/dev/x", "/sys", "relative", "/a/../b", "/local", ""} {
				c.Mounts = append(c.Mounts, driver.Mount{Source: "/src", Target: target})
			}
			c.Mounts = append(c.Mounts, driver.Mount{Source: "src", Target: "/ok"}, driver.Mount{Source: "/src", Target: "/ok2", Propagation: "bidirectional"})
		}, []string{"mounts[0].target", "mounts[1].target", "mounts[2].target", "mounts[3].target", "mounts[4].target", "mounts[5].target", "mounts[6].target",
			"mounts[7].target", "mounts[8].target", "mounts[9].source", "mounts[10].propagation"}},
		{"devices", nil, func(c *driver.TaskConfig, _ *NodeOptions) {
			c.Devices = []driver.Device{{HostPath: "/etc/passwd", TaskPath: "/dev/x"}, {HostPath: "/dev/null", TaskPath: "/etc/x"}, {HostPath: "/dev/null", Permissions: "rwx"}, {HostPath: "/nowhere"}}
		}, []string{"devices[0].host_path", "devices[1].task_path", "devices[2].permissions", "devices[3].task_path", "devices[3].host_path"}},
		{"network", nil, func(c *driver.TaskConfig, _ *NodeOptions) {
			c.Network = &driver.Network{Path: "ns", Address: "1.2.3.4\n6.6.6.6 evil"}
			c.DNS = &driver.DNS{Servers: []string{"1.1.1.1\nnameserver 6.6.6.6"}, Options: []string{"a b"}}
		}, []string{"network.path", "network.address", "network.dns", "network.dns"}},
		{"resources", nil, func(c *driver.TaskConfig, _ *NodeOptions) {
			c.Res = driver.Resources{CPU: -1, MemoryMB: -1, Cores: []int{-1}}
		}, []string{"resources.cpu", "resources.memory", "resources.cores"}},
		{"node", nil, func(_ *driver.TaskConfig, n *NodeOptions) {
			n.StateRoot, n.Cgroup, n.Entries = "x", "", []Entry{{Source: "usr", Target: "/proc"}}
		}, []string{"NodeOptions.StateRoot", "NodeOptions.Cgroup", "NodeOptions.Entries[0].Source", "NodeOptions.Entries[0].Target"}},
		{"outside of the namespace", map[string]any{"user_namespace": true}, func(c *driver.TaskConfig, n *NodeOptions) { n.IDs = IDs{Host: 5000, Size: 100} },
			[]string{"user", "group", "group"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			task, config, node := plain()
			for k, v := range c.config {
				config[k] = v
			}
			if c.change != nil {
				c.change(&task, &node)
			}
			_, _, err := Build(task, options(t, config), node)
			got := fields(err)
			slices.Sort(got)
			slices.Sort(c.fields)
			require.Equal(t, c.fields, got, "%v", err)
			require.NotContains(t, err.Error(), long)
		})
	}
	task, config, node := plain()
	task.User = "missing"
	_, _, err := Build(task, options(t, config), node)
	require.ErrorContains(t, err, "no such user")
	node.Features.Unusable = "built without"
	_, _, err = Build(task, options(t, config), node)
	require.ErrorIs(t, err, ErrUnsupported)
	for _, raw := range []string{"", "[]", `{"command":1}`, `{"unknown":1}`} {
		_, err := Decode(json.RawMessage(raw))
		var field *FieldError
		require.ErrorAs(t, err, &field, raw)
	}
}

// fields are the fields that an error names; any other error is "?".
func fields(err error) (out []string) {
	switch e := err.(type) { // a cause below a FieldError is its own matter
	case nil:
		return nil
	case *FieldError:
		return []string{e.Field}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			out = append(out, fields(one)...)
		}
		return out
	}
	return []string{"?"}
}

// TestLimitsOf are the numbers that the kernel is told.
func TestLimitsOf(t *testing.T) {
	for _, c := range []struct {
		cpu    int64
		v1, v2 uint64
	}{{1, 2, 1}, {2, 2, 1}, {100, 100, 9}, {1024, 1024, 100}, {102400, 102400, 10000}, {262144, 262144, 10000}, {300000, 262144, 10000}} {
		v1, v2 := shares(c.cpu)
		require.Equal(t, []uint64{c.v1, c.v2}, []uint64{v1, v2}, c.cpu)
	}
	var l1, l2 uint64
	for cpu := int64(1); cpu < 400000; cpu += 37 {
		v1, v2 := shares(cpu)
		require.True(t, v1 >= l1 && v2 >= l2, "they grow with it")
		l1, l2 = v1, v2
	}
	for _, c := range []struct {
		name    string
		res     driver.Resources
		config  map[string]any
		has     []string
		want    Limits
		missing []string
	}{
		{"reserve", driver.Resources{CPU: 500, MemoryMB: 64}, nil, nil, Limits{CPUShares: 500, CPUWeight: 48, Memory: 64 << 20}, nil},
		{"most", driver.Resources{MemoryMB: 64, MemoryMax: 100}, nil, nil, Limits{Memory: 100 << 20, MemoryReserve: 64 << 20}, nil},
		{"no limit", driver.Resources{MemoryMB: 64, MemoryMax: -1}, nil, nil, Limits{MemoryReserve: 64 << 20}, nil},
		{"most below the reserve", driver.Resources{MemoryMB: 64, MemoryMax: 10}, nil, nil, Limits{Memory: 64 << 20}, nil},
		{"swap", driver.Resources{MemoryMB: 64}, map[string]any{"memory_swap_mb": 10}, nil, Limits{Memory: 64 << 20, Swap: 10 << 20}, nil},
		{"any swap", driver.Resources{MemoryMB: 64}, map[string]any{"memory_swap_mb": -1}, nil, Limits{Memory: 64 << 20, Swap: -1}, nil},
		{"cores", driver.Resources{Cores: []int{3, 1, 3}}, map[string]any{"cpu_hard_limit": true}, nil, Limits{Cpus: "1,3"}, nil},
		{"hard", driver.Resources{CPU: 500}, map[string]any{"cpu_hard_limit": true}, nil, Limits{CPUShares: 500, CPUWeight: 48, CPUQuota: 25000, CPUPeriod: 100000}, nil},
		{"hard, least", driver.Resources{CPU: 1}, map[string]any{"cpu_hard_limit": true}, nil, Limits{CPUShares: 2, CPUWeight: 1, CPUQuota: 1000, CPUPeriod: 100000}, nil},
		{"pids", driver.Resources{}, map[string]any{"pids_limit": 7}, nil, Limits{Pids: 7}, nil},
		{"no controllers", driver.Resources{CPU: 500, MemoryMB: 64, Cores: []int{1}}, map[string]any{"pids_limit": 7}, []string{"devices"}, Limits{},
			[]string{"cpu share: no cpu controller", "cores: no cpuset controller", "memory limit: no memory controller", "pids limit: no pids controller"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			task, config, node := plain()
			task.Res, node.CoreMHz = c.res, 2000
			for k, v := range c.config {
				config[k] = v
			}
			if c.has != nil {
				node.Features.Controllers = c.has
			}
			s, applied, err := Build(task, options(t, config), node)
			require.NoError(t, err)
			require.Equal(t, c.want, s.Limits)
			require.Equal(t, c.want, applied.Limits)
			require.Equal(t, c.missing, applied.Missing)
			config["strict"] = true
			if _, _, err = Build(task, options(t, config), node); c.missing != nil {
				require.ErrorIs(t, err, ErrLess)
				require.ErrorContains(t, err, c.missing[0])
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// TestApplied: what is told is what is in force.
func TestApplied(t *testing.T) {
	task, config, node := plain()
	task.User = "app"
	config["cap_add"] = []string{"cap_CHOWN"}
	s, a, err := Build(task, options(t, config), node)
	require.NoError(t, err)
	require.Equal(t, Applied{Root: "host", Namespaces: []string{"cgroup", "ipc", "mount", "pid", "uts"}, UID: 1000, GID: 1000,
		Caps: []string{"CAP_CHOWN"}, NoNewPrivs: true, Seccomp: true}, a)
	require.Equal(t, []int{1000, 44}, s.Process.Groups)
	node.Features.Seccomp = "none here"
	s, a, err = Build(task, options(t, config), node)
	require.NoError(t, err)
	require.False(t, s.Process.Seccomp || a.Seccomp)
	require.Equal(t, []string{"seccomp: none here"}, a.Missing)
	node.AllowRoot, node.AllowCaps, task.User = true, []string{"ALL"}, "root"
	config["cap_add"], config["cap_drop"] = []string{"all"}, []string{"All"}
	_, a, err = Build(task, options(t, config), node)
	require.NoError(t, err)
	require.Len(t, a.Caps, len(capNames))
}

// TestPlaces are where a command is looked for.
func TestPlaces(t *testing.T) {
	env := []string{"PATH=/a", "PATH=/b:rel::/c"}
	require.Equal(t, []string{"/bin/x"}, places("/bin//x", env, true))
	require.Equal(t, []string{"/local/x", "/x", "/b/x", "/c/x"}, places("x", env, true))
	require.Equal(t, []string{"/local/d/x", "/d/x"}, places("d/x", env, true))
	require.Equal(t, []string{"/b/x", "/c/x"}, places("x", env, false))
	require.Empty(t, places("../x", env, true))
	require.Empty(t, places("", env, true))
}

// TestMakeExecutable changes a program of the task's, and no other file.
func TestMakeExecutable(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o644))
	require.NoError(t, os.WriteFile(dir+"/prog", nil, 0o640))
	require.NoError(t, os.WriteFile(dir+"/two", nil, 0o640))
	require.NoError(t, os.Link(dir+"/two", dir+"/names"))
	require.NoError(t, os.Symlink(outside, dir+"/link"))
	for name, want := range map[string]os.FileMode{"prog": 0o750, "two": 0o640, "link": 0o644, "../outside": 0} {
		task, config, node := plain()
		task.Dirs.Local, config["command"] = dir, name
		_, _, _ = Build(task, options(t, config), node)
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
			require.Equal(t, want, st.Mode().Perm(), name)
		}
	}
}

// TestProbe: this machine is described, and what is missing says why.
func TestProbe(t *testing.T) {
	f := Probe(t.Context())
	require.Contains(t, []string{"v1", "v2", "hybrid", "none"}, f.Cgroup)
	t.Logf("%+v", f)
	for _, m := range f.Missing() {
		name, why, _ := strings.Cut(m, ": ")
		require.NotEmpty(t, name)
		require.NotEmpty(t, why)
	}
}

// FuzzBuild: whatever a job says, there is a spec that a creator takes, or errors
// that name fields.
func FuzzBuild(f *testing.F) {
	f.Add([]byte(`{"command":"x","args":["a"],"cap_add":["all"],"image":"local/r","ulimit":{"nofile":"1:2"}}`), "/data", "/dev/null", "a b")
	f.Add([]byte(`{"command":"/bin/true","user_namespace":true,"init":true,"work_dir":"../.."}`), "/", "/etc", "")
	f.Fuzz(func(t *testing.T, raw []byte, target, device, host string) {
		c, err := Decode(raw)
		if err != nil {
			require.NotContains(t, fields(err), "?")
			return
		}
		task, _, node := plain()
		task.Mounts = []driver.Mount{{Source: "/src", Target: target}}
		if device != "" {
			task.Devices = []driver.Device{{HostPath: "/dev/null", TaskPath: device}}
		}
		task.Network = &driver.Network{Mode: "none", Hostname: host}
		s, _, err := Build(task, c, node)
		if err != nil {
			require.NotContains(t, fields(err), "?", err)
			return
		}
		require.NoError(t, s.check())
		b, err := s.Encode()
		require.NoError(t, err)
		var back Spec
		require.NoError(t, decode(b, &back))
	})
}

// FuzzSpec: a creator refuses what was not made by Build, and never panics over it.
func FuzzSpec(f *testing.F) {
	task, config, node := plain()
	raw, _ := json.Marshal(config)
	c, _ := Decode(raw)
	s, _, err := Build(task, c, node)
	require.NoError(f, err)
	b, err := s.Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"version":1,"id":"../x","state_root":"/","root":{"dir":"/","dirs":["/../../etc"]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Spec
		if decode(b, &s) != nil || s.check() != nil {
			return
		}
		require.False(t, strings.ContainsAny(s.ID, "/\x00"))
		for _, m := range s.Mounts {
			require.True(t, filepath.IsLocal(m.Target[1:]))
		}
		_, _ = json.Marshal(system(s))
		_ = namespaces(s)
		var x Exec
		if decode(b, &x) == nil && x.check() == nil {
			_ = x.beside(s.Process)
		}
	})
}
