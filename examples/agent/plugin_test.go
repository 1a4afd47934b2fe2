// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

// withPlugins is a box with a plugin directory that holds these drivers: scripts
// around this binary.
func withPlugins(t *testing.T, names ...string) (b *box, serve []string) {
	t.Helper()
	dir := t.TempDir()
	own, err := os.MkdirTemp("/dev/shm", "nk-own-")
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, n := range names {
		text := fmt.Sprintf("#!/bin/sh\nexport %s=%s %s=%s GORACE=atexit_sleep_ms=0\nexec %s\n", roleEnv, n, ownEnv, own, exe)
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte(text), 0o755))
	}
	file := filepath.Join(t.TempDir(), "plugins.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"max_backoff": "300ms"}`), 0o600))
	t.Cleanup(func() { // after the box's
		left := func() []int { return proctest.Marked(ownEnv + "=" + own) }
		if t.Failed() {
			for _, pid := range left() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		eventually(t, "drivers are left", func() string {
			if l := left(); len(l) > 0 {
				return fmt.Sprint(l)
			}
			return ""
		})
		require.NoError(t, os.RemoveAll(own))
	})
	return newBox(t), []string{"--plugin-dir", dir, "--plugin-config", file}
}

func (b *box) plugin(name string) (p api.Plugin) {
	b.t.Helper()
	var list []api.Plugin
	require.NoError(b.t, json.Unmarshal([]byte(b.ok("plugins", "--json")), &list))
	i := slices.IndexFunc(list, func(p api.Plugin) bool { return p.Program == name })
	require.GreaterOrEqual(b.t, i, 0)
	return list[i]
}

// runs waits until the driver has another process than old.
func (b *box) runs(name string, old int) (p api.Plugin) {
	b.t.Helper()
	eventually(b.t, "another process of "+name, func() string {
		if p = b.plugin(name); p.PID != 0 && p.PID != old && p.Health == "healthy" {
			return ""
		}
		return fmt.Sprintf("%+v", p)
	})
	return p
}

// driverJob is jobFile with another driver.
func (b *box) driverJob(driver, name, typ, script, more string) string {
	b.t.Helper()
	path := b.jobFile(name, typ, script, more)
	raw, err := os.ReadFile(path)
	require.NoError(b.t, err)
	text := strings.Replace(string(raw), `"raw_exec"`, strconv.Quote(driver), 1)
	require.NoError(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	require.NotZero(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// soon is two seconds, or more where this binary alone, with the race detector
// and everything else at once, takes longer than a fifth of a second to start.
func soon(t *testing.T) time.Duration {
	began := time.Now()
	require.NoError(t, exec.Command(os.Args[0], "-test.run=^$").Run())
	return max(2*time.Second, 10*time.Since(began))
}

func TestNodeAndPlugins(t *testing.T) {
	b, args := withPlugins(t, "remote", "pipes")
	b.serve(args...)
	var n api.Node
	require.NoError(t, json.Unmarshal([]byte(b.ok("node", "--json")), &n))
	require.NotEmpty(t, n.ID)
	require.True(t, n.Drivers["remote"].Healthy && n.Drivers["remote"].Detected && n.Drivers["raw_exec"].Healthy, "%+v", n.Drivers)
	require.Equal(t, "1", n.Drivers["pipes"].Version)
	require.Equal(t, "1", n.Attributes["driver.pipes"])
	require.Regexp(t, `(?m)^remote +healthy +\S+ +Healthy$`, b.ok("node"))
	require.Regexp(t, `(?m)^raw_exec +driver +raw_exec +healthy .* built in +0 `, b.ok("plugins"))
	require.NotZero(t, b.plugin("remote").PID)
	job := b.driverJob("remote", "hello", "batch", "echo hello from $NOMAD_TASK_NAME; exit 7", once)
	require.Equal(t, 1, b.nk("apply", job, "--wait", "complete").code)
	require.Equal(t, 7, *b.ps()["hello"].Tasks[0].ExitCode)
	require.Equal(t, "hello from main\n", b.ok("logs", "hello"))
	b.refused(1, "This node has exec, pipes, raw_exec, remote.", "apply", b.driverJob("nobody", "no", "batch", "true", ""))

	b.refused(2, "--plugin-dir /no/such: is no directory", "serve", "--plugin-dir", "/no/such")
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte("{\n\"plugin\": {}}"), 0o600))
	b.refused(1, `unknown field "plugin"`, "serve", "--plugin-config", bad)
}

// D15, D17: a driver opens its tasks' pipes for writing only. Neither the death of
// the supervisor that reads them nor that of the agent ends the task or costs a
// byte of its output. Meanwhile the driver logs a thousand lines, which the next
// agent has, of the same process.
func TestPluginOutlivesAgentAndSupervisor(t *testing.T) {
	b, args := withPlugins(t, "pipes")
	a := b.serve(args...)
	b.ok("apply", b.driverJob("pipes", "svc", "service", counter, ""), "--wait", "running")
	al := b.ps()["svc"]
	pid, plugin := al.Tasks[0].PID, b.plugin("pipes").PID
	start := started(pid)
	grows := func(when string) {
		t.Helper()
		at := b.written(al.ID)
		eventually(t, "log "+when, func() string {
			if b.written(al.ID) > at+20 {
				return ""
			}
			return fmt.Sprint(b.written(al.ID))
		})
		require.Equal(t, start, started(pid), when)
	}
	grows("at first")
	for range 3 {
		for _, s := range b.supervisors() {
			kill9(t, s)
		}
		grows("after the supervisor's death")
	}
	a.kill(syscall.SIGKILL)
	grows("after the agent's death")
	require.NoError(t, syscall.Kill(plugin, syscall.SIGUSR1))
	eventually(t, "the driver logs", func() string {
		files, _ := filepath.Glob(filepath.Join(b.run, ".plugins", "*", "stderr"))
		for _, f := range files {
			if raw, _ := os.ReadFile(f); strings.Contains(string(raw), "said 999 of 1000") {
				return ""
			}
		}
		return "nothing yet"
	})
	a = b.serve(args...)
	require.Equal(t, plugin, b.plugin("pipes").PID)
	eventually(t, "the driver's log arrives", func() string {
		if n := strings.Count(a.log(), " of 1000"); n != 1000 {
			return fmt.Sprint(n)
		}
		return ""
	})
	now := b.ps()["svc"]
	require.Equal(t, pid, now.Tasks[0].PID)
	require.Zero(t, now.Tasks[0].Restarts)
	for _, s := range b.supervisors() {
		kill9(t, s)
	}
	grows("after the supervisor's death under the next agent")
	b.follow("svc", b.written(al.ID)+10)
	b.ok("stop", "svc")
	require.Equal(t, []string{"Started", "Killing", "Terminated", "Killed"}, slices.DeleteFunc(b.kinds("svc"), func(k string) bool { return k == "Driver" }))
	require.Contains(t, b.ok("events", "--json", "svc"), `"color":"red"`, "what the driver tells is the task's event")
}

// crowd is a group of tasks of the driver remote; the first half end with a code
// of their own when a file is there.
func (b *box) crowd(n int, dir string) string {
	var text strings.Builder
	fmt.Fprint(&text, "job \"crowd\" {\n type = \"service\"\n group \"g\" {\n restart {\n attempts = 1\n delay = \"1h\"\n mode = \"delay\"\n }\n")
	for i := range n {
		script := "exec sleep 3600"
		if i < n/2 {
			script = fmt.Sprintf("while [ ! -e %s/go%d ]; do sleep 0.05; done; exit %d", dir, i%2, i+1)
		}
		fmt.Fprintf(&text, "task \"t%d\" {\n driver = \"remote\"\n config {\n command = \"/bin/sh\"\n args = [\"-c\", %q]\n }\n env { MARK = %q }\n resources {\n memory = 16\n }\n }\n", i, script, b.mark)
	}
	text.WriteString("}\n}\n")
	path := filepath.Join(b.t.TempDir(), "crowd.hcl")
	require.NoError(b.t, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

// A driver is killed while twenty of its tasks run, alone and together with the
// agent: no task ends, no status changes, exits that happen meanwhile arrive with
// their codes, commands and samples are there again within two seconds, and
// nothing grows over many such rounds.
func TestPluginDies(t *testing.T) {
	rounds := 3
	if os.Getenv("NODEKEEP_LONG") != "" {
		rounds = 100
	}
	b, args := withPlugins(t, "remote")
	a := b.serve(args...)
	dir := t.TempDir()
	b.ok("apply", b.crowd(20, dir), "--wait", "running")
	before := b.ps()["crowd"]
	run := map[string]string{}
	for _, task := range before.Tasks {
		require.Equal(t, "running", task.State)
		run[task.Name] = started(task.PID)
	}
	// same says that all tasks are as they were, but for those that ended meanwhile.
	same := func(ended func(i int) bool) {
		t.Helper()
		b.until("crowd", "shows its exits", func(now api.Alloc) bool {
			require.Equal(t, "running", string(now.Status))
			for i, task := range now.Tasks {
				if ended(i) && task.ExitCode == nil {
					return false
				}
			}
			return true
		})
		for i, task := range b.ps()["crowd"].Tasks {
			if ended(i) {
				require.Equal(t, i+1, *task.ExitCode, task.Name)
				continue
			}
			require.Nil(t, task.ExitCode, task.Name)
			require.Equal(t, before.Tasks[i].PID, task.PID)
			require.Equal(t, run[task.Name], started(task.PID))
			require.Zero(t, task.Restarts)
		}
	}
	c := api.Dial(socketPath(b.data))
	defer c.Close()
	// works measures until commands and samples are there.
	works := func() time.Duration {
		t.Helper()
		began := time.Now()
		eventually(t, "exec works", func() string {
			var out bytes.Buffer
			_, err := c.Exec(t.Context(), "crowd", "t15", driver.ExecRequest{Command: []string{"/bin/echo", "here"}, Stdout: &out})
			if err == nil && out.String() == "here\n" {
				return ""
			}
			return fmt.Sprint(err, out.String())
		})
		for u, err := range c.Stats(t.Context(), "crowd", "t15", 50*time.Millisecond, true) {
			require.NoError(t, err)
			require.Equal(t, "t15", u.Task)
			break
		}
		return time.Since(began)
	}
	fds := func(pid int) int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(t, err)
		return len(entries)
	}
	none := func(int) bool { return false }
	works()
	first := 0
	for n := range rounds {
		old := b.plugin("remote").PID
		kill9(t, old)
		took := works()
		require.Less(t, took, soon(t))
		t.Log("works again after ", took)
		b.runs("remote", old)
		same(none)
		if n == 1 {
			first = fds(a.cmd.Process.Pid)
		}
	}
	require.InDelta(t, first, fds(a.cmd.Process.Pid), 3)

	// It cannot come back for a while, in which some tasks end.
	program := filepath.Join(args[1], "remote")
	old := b.plugin("remote").PID
	require.NoError(t, os.Chmod(program, 0o644))
	kill9(t, old)
	require.NoError(t, os.WriteFile(dir+"/go0", nil, 0o600))
	ended := func(i int) bool { return i < 10 && i%2 == 0 }
	for i, task := range before.Tasks {
		if ended(i) {
			eventually(t, task.Name+" ends", func() string { return started(task.PID) })
		}
	}
	require.Equal(t, "unhealthy", string(b.plugin("remote").Health))
	require.NoError(t, os.Chmod(program, 0o755))
	b.runs("remote", old)
	same(ended)

	// Both die, and others end before anybody is back.
	old = b.plugin("remote").PID
	kill9(t, old)
	a.kill(syscall.SIGKILL)
	require.NoError(t, os.WriteFile(dir+"/go1", nil, 0o600))
	half := func(i int) bool { return i < 10 }
	for i, task := range before.Tasks {
		if half(i) {
			eventually(t, task.Name+" ends", func() string { return started(task.PID) })
		}
	}
	b.serve(args...)
	require.NotEqual(t, old, b.plugin("remote").PID)
	same(half)
	require.Less(t, works(), soon(t))
	b.ok("stop", "crowd", "--no-shutdown-delay")
	for _, task := range before.Tasks {
		require.Empty(t, started(task.PID))
	}
}
