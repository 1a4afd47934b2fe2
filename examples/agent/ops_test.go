// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// TestCommands walks through what a person does with a node.
func TestCommands(t *testing.T) {
	b := newBox(t)
	b.serve()
	require.Equal(t, "no allocs\n", b.ok("ps"))
	require.Equal(t, "[]\n", b.ok("ps", "--json"))
	svc := b.jobFile("svc", "service", `trap 'echo got hup' HUP; echo one; echo two; echo oops >&2; while :; do sleep 0.01; done`, "")
	b.ok("apply", svc, "--wait", "running")
	b.ok("apply", "--wait", "complete", b.jobFile("done", "batch", "echo hi", ""))
	al := b.ps()["svc"]
	pid := al.Tasks[0].PID

	text := b.ok("ps")
	require.Contains(t, text, "svc")
	require.Contains(t, text, "running")
	require.Contains(t, b.ok("ps", "svc"), al.ID[:8])
	require.NotContains(t, b.ok("ps", "svc"), "done")
	require.Contains(t, b.ok("inspect", "svc.g[0]"), "driver raw_exec")
	var in api.Inspection
	require.NoError(t, json.Unmarshal([]byte(b.ok("inspect", "--json", al.ID[:4])), &in))
	require.Equal(t, al.ID, in.ID)
	require.Equal(t, b.mark, in.Spec.Tasks[0].Env["MARK"])
	require.NotEmpty(t, in.Events["main"])

	eventually(t, "the output", func() string {
		if out := b.ok("logs", "svc"); out != "one\ntwo\n" {
			return out
		}
		return ""
	})
	require.Equal(t, "two\n", b.ok("logs", "-n", "1", "svc", "main"))
	require.Equal(t, "oops\n", b.ok("logs", "svc", "--stderr"))
	require.JSONEq(t, `{"alloc":"`+b.ps()["svc"].ID+`","task":"main","stream":"stdout","line":"two"}`, b.ok("logs", "--json", "-n", "1", "svc"))
	require.Equal(t, "hi\n", b.ok("logs", "-f", "done"), "it ends with its alloc")
	b.refused(1, `has no task "nix": it has main`, "logs", "svc", "nix")
	b.refused(1, "nodekeep ps lists them", "logs", "nobody")

	b.ok("signal", "-s", "SIGHUP", "svc")
	eventually(t, "the signal's effect", func() string {
		if out := b.ok("logs", "svc"); !strings.HasSuffix(out, "got hup\n") {
			return out
		}
		return ""
	})
	b.refused(1, "KILL", "signal", "-s", "SIGNIX", "svc")
	b.refused(1, "ended", "signal", "-s", "SIGHUP", "done")
	b.refused(1, "ended", "restart", "done")

	b.ok("restart", "svc", "main")
	again := b.ps()["svc"]
	require.NotEqual(t, pid, again.Tasks[0].PID)
	require.Equal(t, 1, again.Tasks[0].Restarts)
	require.Equal(t, "running", again.Tasks[0].Phase)
	require.Empty(t, started(pid))
	require.Contains(t, b.kinds("svc"), "Restart Signaled")

	require.Equal(t, "unchanged  svc.g[0]  "+again.ID+"\n", b.ok("apply", svc))
	require.Equal(t, again.ID, b.ps()["svc"].ID, "the same job again changes nothing")
	script, err := os.ReadFile(svc)
	require.NoError(t, err)
	script = []byte(strings.Replace(string(script), `env {`, "kill_timeout = \"9s\"\n      env {", 1))
	patient := b.file("svc.hcl", string(script))
	require.Equal(t, "updated  svc.g[0]  "+again.ID+"  running\n", b.ok("apply", patient, "--wait", "running"))
	require.Equal(t, again.Tasks[0].PID, b.ps()["svc"].Tasks[0].PID, "what runs goes on")
	require.Contains(t, b.ok("inspect", "--json", "svc"), `"kill_timeout": 9000000000`)
	var rows []appliedRow
	require.NoError(t, json.Unmarshal([]byte(b.ok("apply", "--json", patient, "--wait", "running")), &rows))
	require.Equal(t, []appliedRow{{api.Applied{ID: again.ID, Namespace: "default", Job: "svc", Group: "g", Change: api.ChangeUnchanged}, "running", "running", ""}}, rows)
	b.ok("stop", "svc")
	require.Empty(t, started(again.Tasks[0].PID))
	b.ok("stop", "svc")
	require.Contains(t, b.ok("stop", "--all"), "nothing to do")
	b.ok("apply", svc, "--wait", "running")
	require.NotEqual(t, again.ID, b.ps()["svc"].ID, "a stopped job starts anew")
	require.Contains(t, b.ok("stop", "--all", "--detach"), "stopping")
	b.until("svc", "stopped", func(al api.Alloc) bool { return al.Done })
}

// TestStopWaits: stop is back when nothing runs any more, and can be told not to
// wait for the shutdown delay or at all.
func TestStopWaits(t *testing.T) {
	b := newBox(t)
	b.serve()
	slow := b.jobFile("slow", "service", `trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.01; done`, `shutdown_delay = "200ms"`)
	b.ok("apply", slow, "--wait", "running")
	pid := b.ps()["slow"].Tasks[0].PID
	began := time.Now()
	b.ok("stop", "slow")
	require.Empty(t, started(pid))
	require.Greater(t, time.Since(began), 400*time.Millisecond)

	b.ok("apply", b.jobFile("delayed", "service", `exec sleep 1000`, `shutdown_delay = "10m"`), "--wait", "running")
	pid = b.ps()["delayed"].Tasks[0].PID
	b.refused(1, "not done after 100ms: the stop goes on", "stop", "delayed", "--timeout", "100ms")
	require.NotEmpty(t, started(pid))
	b.ok("stop", "delayed", "--no-shutdown-delay")
	require.Empty(t, started(pid))
	require.Contains(t, b.kinds("delayed"), "Skipping Shutdown Delay")
}

// TestFailures: what does not come to be is told, with the reason.
func TestFailures(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.refused(1, "failed: task \"main\" failed: Terminated: Exit code 4: see nodekeep inspect", "apply", "--wait", "complete", b.jobFile("bad", "batch", "exit 4", once))
	require.Equal(t, 4, *b.ps()["bad"].Tasks[0].ExitCode)
	r := b.nk("apply", "--wait", "running", b.file("none.hcl", "job \"none\" {\n  group \"g\" {\n    task \"main\" {\n      driver = \"raw_exec\"\n      config { command = \"/no/such\" }\n"+once+"\n    }\n  }\n}"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, `of job none failed: task "main" failed: Driver Failure: config.command "/no/such"`)
	require.Equal(t, 1, strings.Count(r.err, "Driver Failure"))
	require.Contains(t, b.ok("inspect", "none"), "task main: dead (dead), never started\n")
	b.refused(1, "not done after 200ms", "apply", "--wait", "complete", "--timeout", "200ms", b.jobFile("long", "batch", "exec sleep 1000", ""))
	b.ok("stop", "long")
	first := b.ps()["bad"].ID
	b.nk("apply", "--wait", "complete", b.jobFile("bad", "batch", "exit 4", once))
	require.NotEqual(t, first, b.ps()["bad"].ID, "a job that failed is tried again")
}

// TestEventsFollow: every event once, those that are there and those that come.
func TestEventsFollow(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.ok("apply", "--wait", "complete", b.jobFile("one", "batch", "true", ""))
	cmd := exec.Command(b.cli, "events", "-f", "--json", "--data", b.data)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	bound := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer bound.Stop()
	dec := json.NewDecoder(out)
	ends, last := 0, uint64(0)
	for ends < 2 {
		var e api.Event
		require.NoError(t, dec.Decode(&e))
		require.Greater(t, e.Token, last)
		require.NotEmpty(t, e.Message)
		if last = e.Token; e.Kind == "Terminated" {
			if ends++; ends == 1 {
				b.ok("apply", b.jobFile("two", "batch", "true", ""))
			}
		}
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	since := b.ok("events", "--json", "--since", "1")
	newest := last
	for line := range strings.Lines(since) {
		var e api.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		newest = max(newest, e.Token)
	}
	require.NotContains(t, since, `"token":1,`)
	text := b.ok("events", "two")
	require.Contains(t, text, "Terminated: Exit code 0")
	form := regexp.MustCompile(`^ *(\d+)  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)  [0-9a-f]{8}  main +[A-Z][A-Za-z ]+: .+\n$`)
	tokens := []int{0}
	for line := range strings.Lines(text) {
		m := form.FindStringSubmatch(line)
		require.NotNil(t, m, line)
		token, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.Greater(t, token, tokens[len(tokens)-1])
		tokens = append(tokens, token)
	}
	require.Greater(t, len(tokens), 3)
	require.Empty(t, b.ok("events", "two", "--since", strconv.FormatUint(newest, 10)))
	var first api.Event
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(since, "\n", 2)[0]), &first))
	require.Equal(t, strings.SplitN(since, "\n", 2)[1], b.ok("events", "--json", "--since", first.Cursor))
	b.refused(1, "its state was put back from a copy", "events", "--since", "2@0123456789abcdef")
	b.refused(1, fmt.Sprintf("no event has the token %d yet: the newest is %d", newest+1, newest), "events", "--since", strconv.FormatUint(newest+1, 10))
	b.refused(1, "no event has the token 99999 yet", "events", "-f", "--since", "99999")
}

// TestDescendants: what a task starts in any way dies with it.
func TestDescendants(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.ok("apply", b.jobFile("tree", "service", `
sleep 1001 &
setsid sleep 1002 &
(setsid sh -c 'sleep 1003 & exec sleep 1004' &) 
exec sleep 1005`, ""), "--wait", "running")
	eventually(t, "all five", func() string {
		if n := len(b.marked()); n < 5 {
			return "only some"
		}
		return ""
	})
	b.ok("stop", "tree")
	require.Empty(t, b.marked())
}

// TestSecretsEnd: what tasks were trusted with does not outlive them, also where
// the agent was dead when they ended.
func TestSecretsEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("secrets are in memory only where root runs")
	}
	b := newBox(t)
	mounted := func(id string) bool {
		mounts, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		return strings.Contains(string(mounts), filepath.Join(b.data, "alloc", id, "main", "secrets"))
	}
	a := b.serve()
	b.ok("apply", b.jobFile("done", "batch", `echo hush > $NOMAD_SECRETS_DIR/token`, ""), "--wait", "complete")
	require.False(t, mounted(b.ps()["done"].ID))
	b.ok("apply", b.jobFile("svc", "service", `exec sleep 1000`, ""), "--wait", "running")
	svc := b.ps()["svc"]
	require.True(t, mounted(svc.ID))
	b.ok("restart", "svc")
	require.True(t, mounted(svc.ID), "it runs")
	b.ok("apply", b.jobFile("end", "batch", `while [ ! -e "$DIR/end" ]; do sleep 0.01; done`, ""), "--wait", "running")
	end := b.ps()["end"]
	a.kill(syscall.SIGKILL)
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", end.Tasks[0].PID))
	require.NoError(t, err)
	dir := regexp.MustCompile(`\x00DIR=([^\x00]+)`).FindSubmatch(append([]byte{0}, in...))
	require.NotNil(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(string(dir[1]), "end"), nil, 0o600))
	b.gone("of the batch", func() []int {
		if started(end.Tasks[0].PID) == "" {
			return nil
		}
		return []int{end.Tasks[0].PID}
	})
	require.True(t, mounted(end.ID), "nobody was there to see the end")
	b.serve()
	b.until("end", "is over", func(al api.Alloc) bool { return al.Done })
	require.False(t, mounted(end.ID))
	b.ok("stop", "svc")
	require.False(t, mounted(svc.ID))
}
