// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

func (b *box) runArgs(more ...string) []string {
	return append([]string{"run", "--data", b.data, "--runtime-dir", b.run}, more...)
}

// TestRunEnds: what run prints, how it exits, and that it leaves nothing.
func TestRunEnds(t *testing.T) {
	b := newBox(t)
	ok := b.jobFile("fine", "batch", "echo out; echo err >&2; printf rest", "")
	bad := b.jobFile("bad", "batch", "echo oh; exit 3", once)
	r := b.nk("run", ok, "--runtime-dir", b.run)
	require.Zero(t, r.code, r.err)
	require.Empty(t, r.err)
	for _, line := range []string{"main │ out\n", "main │ err\n", "main │ rest\n", "main · Started: Task started by its driver\n", "main · Terminated: Exit code 0\n", "job fine completed\n"} {
		require.Equal(t, 1, strings.Count(r.out, line), "%q in %s", line, r.out)
	}
	require.NotContains(t, r.out, "\x1b", "no colours but on a terminal")
	require.NoDirExists(t, b.data)

	r = b.nk("run", bad, "--runtime-dir", b.run)
	require.Equal(t, 1, r.code, r.err)
	require.Contains(t, r.out, "main │ oh\n")
	require.Contains(t, r.out, "job bad failed: bad.g[0]: task \"main\" failed\n")
	require.NoDirExists(t, b.data)

	r = b.nk("run", ok, bad, "--runtime-dir", b.run)
	require.Equal(t, 1, r.code, r.err)
	require.Contains(t, r.out, "fine.g[0].main │ out\n")
	require.Contains(t, r.out, "bad.g[0].main  │ oh\n", "names are aligned")
	require.NoDirExists(t, b.data)

	r = b.nk("run", ok, "--json", "--runtime-dir", b.run)
	require.Zero(t, r.code, r.err)
	seen := map[string]int{}
	for line := range strings.Lines(r.out) {
		var v struct{ Kind, Stream, Line string }
		require.NoError(t, json.Unmarshal([]byte(line), &v), line)
		seen[v.Kind+v.Stream+v.Line]++
	}
	require.Equal(t, 1, seen["stdoutout"])
	require.Equal(t, 1, seen["stderrerr"])
	require.Equal(t, 1, seen["Terminated"])
}

// TestRunKeep: --keep leaves the job's directory, and says where.
func TestRunKeep(t *testing.T) {
	b := newBox(t)
	job := b.jobFile("kept", "batch", "echo out", "")
	dir := filepath.Join(b.data, "run", "default.kept")
	r := b.nk("run", "--keep", job, "--runtime-dir", b.run)
	require.Zero(t, r.code, r.err)
	require.Empty(t, r.err, "what to try next is for terminals")
	require.Contains(t, r.out, "job kept completed\njob kept is kept in "+dir+": logs in alloc/*/alloc/logs;")
	logs, err := filepath.Glob(filepath.Join(dir, "alloc", "*", "alloc", "logs", "main.stdout.0"))
	require.NoError(t, err)
	require.Len(t, logs, 1)
	text, err := os.ReadFile(logs[0])
	require.NoError(t, err)
	require.Equal(t, "out\n", string(text))

	// It runs anew, not a second time under the same id, and without the flag all goes.
	r = b.nk("run", job, "--runtime-dir", b.run)
	require.Zero(t, r.code, r.err)
	require.Equal(t, 1, strings.Count(r.out, "│ out\n"))
	require.NoDirExists(t, filepath.Join(b.data, "run"))
}

func TestRunVars(t *testing.T) {
	b := newBox(t)
	path := b.file("vars.hcl", `
variable "word" {
  type    = string
  default = "none"
}
job "vars" {
  type = "batch"
  group "g" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/echo"
        args    = ["said ${var.word}"]
      }
    }
  }
}`)
	require.Contains(t, b.ok("run", "--runtime-dir", b.run, path, "--var", "word=a=b"), "main │ said a=b\n")
	require.Contains(t, b.ok("run", "--runtime-dir", b.run, path), "main │ said none\n")
}

// output reads run's stdout and lets a test wait for a line.
type output struct {
	t   *testing.T
	in  *bufio.Reader
	all strings.Builder
}

func (o *output) wait(text string) {
	o.t.Helper()
	for {
		line, err := o.in.ReadString('\n')
		o.all.WriteString(line)
		require.NoError(o.t, err, "%q did not come: %s", text, o.all.String())
		if strings.Contains(line, text) {
			return
		}
	}
}

func (o *output) rest() string {
	data, _ := io.ReadAll(o.in)
	o.all.Write(data)
	return o.all.String()
}

// TestRunInterrupted: the first Ctrl-C stops the job in order, the second kills it.
func TestRunInterrupted(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		b := newBox(t)
		a := b.start(b.runArgs(b.jobFile("svc", "service", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`, ""))...)
		out := &output{t: t, in: bufio.NewReader(a.stdout)}
		out.wait("│ up")
		require.Equal(t, 130, a.kill(syscall.SIGINT), a.log())
		text := out.rest()
		require.Contains(t, text, "main │ bye\n")
		require.Contains(t, text, "job svc stopped\n")
		require.NoDirExists(t, b.data)
	})
	t.Run("twice", func(t *testing.T) {
		b := newBox(t)
		a := b.start(b.runArgs(b.jobFile("svc", "service", `trap 'echo never' TERM; echo up; while :; do sleep 0.01; done`, `kill_timeout = "10m"`))...)
		out := &output{t: t, in: bufio.NewReader(a.stdout)}
		out.wait("│ up")
		require.NoError(t, a.cmd.Process.Signal(syscall.SIGINT))
		out.wait("│ never")
		require.Equal(t, 130, a.kill(syscall.SIGINT), a.log())
		require.Contains(t, out.rest(), "signal 9")
		require.NoDirExists(t, b.data)
	})
	t.Run("SIGTERM", func(t *testing.T) {
		b := newBox(t)
		a := b.start(b.runArgs(b.jobFile("svc", "service", `echo up; exec sleep 1000`, ""))...)
		(&output{t: t, in: bufio.NewReader(a.stdout)}).wait("│ up")
		require.Equal(t, 143, a.kill(syscall.SIGTERM), a.log())
		require.NoDirExists(t, b.data)
	})
}

// TestRunLeaves: when nobody looks any more run lets go of the tasks, and the
// next run of the file finds them, whatever ended the first.
func TestRunLeaves(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(b *box, a *agentProc)
		code int
	}{
		"terminal closed": {func(_ *box, a *agentProc) { a.kill(syscall.SIGHUP) }, 129},
		"reader gone": {func(_ *box, a *agentProc) {
			_ = a.stdout.Close()
			<-a.ended
		}, 141},
		"killed": {func(_ *box, a *agentProc) { a.kill(syscall.SIGKILL) }, -1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			file := b.jobFile("svc", "service", `echo $$ >> "$DIR/pids"; `+counter, "")
			a := b.start(b.runArgs(file)...)
			(&output{t: t, in: bufio.NewReader(a.stdout)}).wait("│ line 0")
			end.do(b, a)
			require.Equal(t, end.code, a.code, a.log())
			require.Len(t, b.tasks(), 1, "the task goes on")
			pid := b.tasks()[0]
			start := started(pid)

			a = b.start(b.runArgs(file)...)
			out := &output{t: t, in: bufio.NewReader(a.stdout)}
			out.wait("│ line 0")
			out.wait("│ line 20")
			require.Equal(t, start, started(pid), "the same process")
			require.Equal(t, 130, a.kill(syscall.SIGINT), a.log())
			require.Equal(t, 1, strings.Count(out.rest(), "│ line 10\n"))
			require.Empty(t, started(pid))
			require.NoDirExists(t, filepath.Join(b.data, "run"))
		})
	}
	t.Run("--detach", func(t *testing.T) {
		b := newBox(t)
		file := b.jobFile("svc", "service", `echo up; exec sleep 1000`, "")
		require.Contains(t, b.ok("run", "--detach", file, "--runtime-dir", b.run), "run its file again to attach")
		require.Len(t, b.tasks(), 1)
		start := started(b.tasks()[0])
		// Another version of the job takes its place.
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "echo up", "echo again", 1)), 0o600))
		a := b.start(b.runArgs(file)...)
		out := &output{t: t, in: bufio.NewReader(a.stdout)}
		out.wait("│ again")
		eventually(t, "the end of the first version", func() string {
			for _, pid := range b.tasks() {
				if started(pid) == start {
					return start
				}
			}
			return ""
		})
		require.Equal(t, 130, a.kill(syscall.SIGINT), a.log())
		require.NoDirExists(t, filepath.Join(b.data, "run"))
	})
}

// tasks are the main processes of the tasks: what is marked and whose parent is not.
func (b *box) tasks() (list []int) {
	sups := b.supervisors()
	for _, pid := range b.marked() {
		for _, sup := range sups {
			if started(pid) != "" && parentOf(b.t, pid) == sup {
				list = append(list, pid)
			}
		}
	}
	return list
}

// TestRunHasAPI: the node of a running job can be looked at like any other.
func TestRunHasAPI(t *testing.T) {
	b := newBox(t)
	a := b.start(b.runArgs(b.jobFile("svc", "service", `echo up; exec sleep 1000`, ""))...)
	out := &output{t: t, in: bufio.NewReader(a.stdout)}
	out.wait("│ up")
	// Output may be quicker than the commit that says the task runs.
	eventually(t, "running", func() string {
		data, err := exec.Command(b.cli, "ps", "--json", "--data", filepath.Join(b.data, "run", "default.svc")).Output()
		require.NoError(t, err)
		var list []api.Alloc
		require.NoError(t, json.Unmarshal(data, &list))
		if list[0].Status == "running" {
			return ""
		}
		return string(list[0].Status)
	})
	b.refused(1, "job svc is being run by another process", "run", b.jobFile("svc", "service", "true", ""))
	require.Equal(t, 130, a.kill(syscall.SIGINT))
}
