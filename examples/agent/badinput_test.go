// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refused runs a command that must fail with one error that says what to do.
func (b *box) refused(code int, text string, args ...string) {
	b.t.Helper()
	r := b.nk(args...)
	require.Equal(b.t, code, r.code, "%v: %s%s", args, r.out, r.err)
	require.Equal(b.t, 1, strings.Count("\n"+r.err, "\nnodekeep: "), "one clear error: %s", r.err)
	require.Contains(b.t, r.err, text)
	require.NotContains(b.t, r.err, "panic")
	require.NotContains(b.t, r.err, "goroutine")
	require.Empty(b.t, r.out)
}

func (b *box) file(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), name)
	require.NoError(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// TestBadJobs: a job file that cannot be run makes nothing, neither where it is
// run in the foreground nor on a node.
func TestBadJobs(t *testing.T) {
	b := newBox(t)
	syntax := b.file("syntax.hcl", "job \"x\" {\n  group \"g\" {\n    count = = 2\n  }\n}\n")
	unknown := b.file("driver.hcl", `job "x" {
  group "g" {
    task "t" {
      driver = "doker"
    }
  }
}`)
	config := b.file("config.hcl", `job "x" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        comand = "/bin/true"
      }
    }
  }
}`)
	empty := b.file("empty.hcl", "")
	good := b.jobFile("good", "batch", "echo hi", "")
	missing := filepath.Join(t.TempDir(), "missing.hcl")
	check := func() {
		t.Helper()
		b.refused(1, "missing.hcl does not exist: check the path", "run", missing)
		b.refused(1, "syntax.hcl is not a valid job file", "run", syntax)
		b.refused(1, "empty.hcl is not a valid job file", "run", empty)
		b.refused(1, "driver.hcl cannot run on this node: see the lines shown above", "run", unknown)
		b.refused(1, "6 |         comand = \"/bin/true\"\n", "run", config)
		b.refused(1, "config.hcl is not a valid job file", "job", "validate", config)
		b.refused(1, "is a directory", "run", t.TempDir())
		b.refused(1, "/dev/zero cannot be read: is a device or a pipe", "run", "/dev/zero")
		b.refused(1, "both hold job \"good\"", "run", good, good)
		b.refused(1, "missing.hcl does not exist", "job", "validate", good, missing)
		require.Contains(t, b.nk("run", syntax).err, "3 |     count = = 2\n", "the line is shown")
	}
	check()
	require.NoDirExists(t, b.data, "nothing half-made")

	b.serve()
	before := tree(t, filepath.Join(b.data, "jobs"))
	b.refused(1, "missing.hcl does not exist", "apply", good, missing)
	b.refused(1, "syntax.hcl is not a valid job file", "apply", good, syntax)
	b.refused(1, "driver.hcl cannot run on this node: see the lines shown above", "apply", good, unknown)
	check()
	require.Empty(t, b.ps())
	require.Equal(t, before, tree(t, filepath.Join(b.data, "jobs")))
	require.NoDirExists(t, filepath.Join(b.data, "run"))
}

// tree lists what is below a directory.
func tree(t *testing.T, dir string) (list []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		list = append(list, path)
		return err
	}))
	return list
}

// TestBadNode: a node that cannot start says why and changes nothing.
func TestBadNode(t *testing.T) {
	t.Run("unknown command", func(t *testing.T) {
		b := newBox(t)
		b.refused(2, `did you mean "serve"?`, "sevre")
	})
	t.Run("unwritable", func(t *testing.T) {
		b := newBox(t)
		b.data = "/proc/nodekeep"
		b.refused(1, "name another one with --data", "serve", "--runtime-dir", b.run)
		b.refused(1, "--data", "run", b.jobFile("x", "batch", "true", ""))
		file := b.file("file", "")
		b.data = file
		b.refused(1, "name another one with --data", "serve", "--runtime-dir", b.run)
		b.data = filepath.Join(file, "below")
		b.refused(1, "name another one with --data", "serve", "--runtime-dir", b.run)
	})
	t.Run("full disk", func(t *testing.T) {
		b := newBox(t)
		disk := b.data
		require.NoError(t, os.MkdirAll(disk, 0o700))
		require.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=16k,mode=700"))
		t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
		for _, b.data = range []string{disk, filepath.Join(disk, "new", "data")} {
			b.refused(1, "is full: make room on it, or name another directory with --data", "serve", "--runtime-dir", b.run)
			b.refused(1, "is full: make room on it, or name another directory with --data", "run", b.jobFile("x", "batch", "true", ""), "--runtime-dir", b.run)
			require.Equal(t, []string{disk}, tree(t, disk), "nothing half-made")
		}
		require.Empty(t, tree(t, b.run)[1:])
	})
	t.Run("taken runtime directory", func(t *testing.T) {
		b := newBox(t)
		b.serve()
		mine := b.data
		b.data = filepath.Join(t.TempDir(), "other")
		b.refused(1, "is in use by the agent of", "serve", "--runtime-dir", b.run)
		require.NoDirExists(t, b.data, "nothing half-made")
		b.data = mine
		require.Equal(t, "no allocs\n", b.ok("ps"))
	})
	t.Run("second agent", func(t *testing.T) {
		b := newBox(t)
		first := b.serve()
		began := time.Now()
		b.refused(1, "another agent", "serve", "--runtime-dir", b.run)
		require.Less(t, time.Since(began), 12*time.Second, "6 s, and what a busy machine adds")
		b.ok("apply", b.jobFile("svc", "service", "sleep 1000", ""), "--wait", "running")
		pid := b.ps()["svc"].Tasks[0].PID
		// Also while the first does not answer: its socket is gone, or it is stopped.
		require.NoError(t, os.Remove(filepath.Join(b.data, "agent.sock")))
		began = time.Now()
		b.refused(1, "agent", "serve", "--runtime-dir", b.run)
		require.Less(t, time.Since(began), 16*time.Second)
		require.NotEmpty(t, started(pid), "the first one's task is untouched")
		require.Zero(t, first.kill(syscall.SIGTERM))
		b.serve()
		require.Equal(t, pid, b.ps()["svc"].Tasks[0].PID)
		b.ok("stop", "--all")
	})
	t.Run("corrupt state", func(t *testing.T) {
		b := newBox(t)
		a := b.serve()
		b.ok("apply", b.jobFile("svc", "service", "sleep 1000", ""), "--wait", "running")
		pid := b.ps()["svc"].Tasks[0].PID
		a.kill(syscall.SIGKILL)
		path := filepath.Join(b.data, "state.db")
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		bad := append([]byte(nil), good...)
		for i := range bad {
			bad[i] ^= 0x5a
		}
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		b.refused(1, "state.db", "serve", "--runtime-dir", b.run)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, bad, now, "it is left as it is")
		require.NoFileExists(t, filepath.Join(b.data, "agent.sock"))
		require.NotEmpty(t, started(pid), "tasks are untouched")
		require.NoError(t, os.WriteFile(path, good, 0o600))
		b.serve()
		require.Equal(t, pid, b.ps()["svc"].Tasks[0].PID)
		b.ok("stop", "--all")
	})
	t.Run("corrupt job file", func(t *testing.T) {
		b := newBox(t)
		a := b.serve()
		b.ok("apply", b.jobFile("svc", "service", "sleep 1000", ""), "--wait", "running")
		pid := b.ps()["svc"].Tasks[0].PID
		a.kill(syscall.SIGKILL)
		path := filepath.Join(b.data, "jobs", fileName("default", "svc"))
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		a = b.serve()
		require.Contains(t, a.log(), "damaged and was moved away")
		al := b.ps()["svc"]
		require.Equal(t, pid, al.Tasks[0].PID)
		require.Equal(t, "running", string(al.Status))
		b.ok("stop", "svc")
	})
	t.Run("raw_exec is off", func(t *testing.T) {
		b := newBox(t)
		a := b.start("serve", "--data", b.data, "--runtime-dir", b.run)
		waitLine(t, a.stdout, "ready")
		b.refused(1, "serve --enable-raw-exec", "apply", b.jobFile("svc", "service", "true", ""))
		require.Empty(t, b.ps())
	})
}
