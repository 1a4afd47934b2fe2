// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// TestRuntimeDirRemoved: sockets, journals and FIFOs are gone under running
// tasks. They are found again or ended and started anew, never there twice.
func TestRuntimeDirRemoved(t *testing.T) {
	for name, away := range map[string]bool{"while the agent runs": false, "while the agent is away": true} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			a := b.serve()
			var jobs []string
			for i := range 5 {
				jobs = append(jobs, fmt.Sprintf("j%d", i))
				b.ok("apply", b.jobFile(jobs[i], "service", "exec sleep 1000", ""), "--wait", "running")
			}
			before := b.ps()
			if away {
				a.kill(syscall.SIGKILL)
			}
			require.NoError(t, os.RemoveAll(b.run))
			if away {
				b.serve()
			} else {
				a.kill(syscall.SIGKILL)
				b.serve()
			}
			for _, job := range jobs {
				al := b.until(job, "runs", func(al api.Alloc) bool { return al.Status == "running" && al.Tasks[0].PID != 0 })
				pid := al.Tasks[0].PID
				require.NotEmpty(t, started(pid))
				if pid != before[job].Tasks[0].PID {
					b.gone("of "+job+" from before", func() []int {
						if started(before[job].Tasks[0].PID) == "" {
							return nil
						}
						return []int{before[job].Tasks[0].PID}
					})
				}
			}
			require.Len(t, b.marked(), 5)
			b.ok("stop", "--all")
		})
	}
}

// TestFullDisk: a disk that is full starts nothing new and loses nothing that
// runs; a stop is carried out all the same, and all is well once there is room.
func TestFullDisk(t *testing.T) {
	b := newBox(t)
	require.NoError(t, os.MkdirAll(b.data, 0o700))
	require.NoError(t, syscall.Mount("tmpfs", b.data, "tmpfs", 0, "size=64m,mode=700"))
	t.Cleanup(func() { _ = syscall.Unmount(b.data, syscall.MNT_DETACH) })
	a := b.serve()
	b.ok("apply", b.jobFile("one", "service", "exec sleep 1000", ""), "--wait", "running")
	b.ok("apply", b.jobFile("two", "service", counter, ""), "--wait", "running")
	one, two := b.ps()["one"].Tasks[0].PID, b.ps()["two"].Tasks[0].PID
	fill := filepath.Join(b.data, "fill")
	_ = exec.Command("dd", "if=/dev/zero", "of="+fill, "bs=64k").Run()

	r := b.nk("apply", b.jobFile("three", "service", "exec sleep 1000", ""))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "no space left")
	require.NotContains(t, b.ps(), "three")
	require.NotEmpty(t, started(one))

	began := time.Now()
	b.refused(1, "is held up: its state cannot be written: make room on the disk", "restart", "two")
	require.Less(t, time.Since(began), 10*time.Second)
	r = b.nk("ps")
	require.Contains(t, r.out, "running (degraded)")
	require.Contains(t, r.err, "make room on the disk")

	b.refused(1, "is being stopped, but that could not be written", "stop", "one")
	eventually(t, "the end of the task", func() string { return started(one) })
	a.kill(syscall.SIGKILL)

	// It serves all the same, and what was asked for happens once there is room.
	b.serve()
	require.Contains(t, b.ok("ps"), "two")
	require.NoError(t, os.Remove(fill))
	b.until("two", "is there again", func(al api.Alloc) bool {
		return !al.Degraded && al.Tasks[0].PID != 0 && al.Tasks[0].PID != two
	})
	require.Empty(t, started(two))
	b.ok("stop", "one")
	require.Empty(t, started(one))
	b.ok("apply", b.jobFile("three", "service", "exec sleep 1000", ""), "--wait", "running")
	b.ok("stop", "--all")
	b.ok("gc")
}

// TestAppliedAfterUnwrittenStop: a stop that a full disk, or a job store that was
// removed, kept from being written was carried out; the job runs again when it is
// applied, under a new id.
func TestAppliedAfterUnwrittenStop(t *testing.T) {
	b := newBox(t)
	require.NoError(t, os.MkdirAll(b.data, 0o700))
	require.NoError(t, syscall.Mount("tmpfs", b.data, "tmpfs", 0, "size=64m,mode=700"))
	t.Cleanup(func() { _ = syscall.Unmount(b.data, syscall.MNT_DETACH) })
	a := b.serve()
	file := b.jobFile("svc", "service", "exec sleep 1000", "")
	runs := func(not string) (id string) {
		t.Helper()
		f := strings.Fields(b.ok("apply", file, "--wait", "running"))
		require.Len(t, f, 4)
		require.Equal(t, []string{"svc.g[0]", "running"}, []string{f[1], f[3]})
		id = f[2]
		require.NotEqual(t, not, id)
		in := b.ok("inspect", id)
		require.Contains(t, in, "running")
		return id
	}
	first := runs("")
	fill := filepath.Join(b.data, "fill")
	_ = exec.Command("dd", "if=/dev/zero", "of="+fill, "bs=64k").Run()
	b.refused(1, "is being stopped, but that could not be written", "stop", "svc")
	b.gone("of the first", b.marked)
	require.NoError(t, os.Remove(fill))
	second := runs(first)
	a.kill(syscall.SIGKILL)
	a = b.serve()
	require.Equal(t, second, runs(first))

	require.NoError(t, os.RemoveAll(filepath.Join(b.data, "jobs")))
	require.Equal(t, 1, b.nk("stop", "svc").code)
	b.gone("of the second", b.marked)
	a.kill(syscall.SIGTERM)
	b.serve()
	b.ok("gc")
	third := runs(second)
	b.ok("stop", third)
}

// TestRotationAcrossCrash: a log that rotates while the agent is away is read
// as one, each line once.
func TestRotationAcrossCrash(t *testing.T) {
	b := newBox(t)
	a := b.serve()
	script := `n=0; while :; do echo "line $n"; n=$((n+1)); [ $((n % 1000)) = 0 ] && sleep 0.01; done`
	b.ok("apply", b.jobFile("svc", "service", script, "logs {\n        max_files     = 50\n        max_file_size = 1\n      }"), "--wait", "running")
	id := b.ps()["svc"].ID
	files := func() int {
		list, err := filepath.Glob(filepath.Join(b.data, "alloc", id, "alloc", "logs", "main.stdout.*"))
		require.NoError(t, err)
		return len(list)
	}
	atLeast := func(n int) {
		t.Helper()
		eventually(t, "rotation", func() string {
			if files() < n {
				return fmt.Sprint(files(), " files")
			}
			return ""
		})
	}
	atLeast(2)
	a.kill(syscall.SIGKILL)
	atLeast(files() + 2)
	b.serve()
	b.follow("svc", b.written(id)+1000)
	b.ok("stop", "svc")
}

// TestLongPath: a data directory whose socket has no place in a socket address.
func TestLongPath(t *testing.T) {
	b := newBox(t)
	b.data = filepath.Join(b.data, strings.Repeat("long-", 10), strings.Repeat("path-", 20))
	b.serve()
	b.ok("apply", b.jobFile("svc", "service", "echo hi; exec sleep 1000", ""), "--wait", "running")
	eventually(t, "the output", func() string { return strings.TrimPrefix(b.ok("logs", "svc"), "hi\n") })
	b.ok("stop", "svc")
}

// TestOtherUser: it works without root, in that user's own directories.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests run without root already")
	}
	b := newBox(t)
	home, err := os.MkdirTemp("/dev/shm", "nk-home-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	require.NoError(t, os.Chown(home, 65534, 65534))
	cli := filepath.Join(home, "nodekeep")
	data, err := os.ReadFile(b.cli)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cli, data, 0o755))
	job, err := os.ReadFile(b.jobFile("svc", "batch", "id -u; echo $NOMAD_SECRETS_DIR; exit 0", ""))
	require.NoError(t, err)
	file := filepath.Join(home, "job.hcl")
	require.NoError(t, os.WriteFile(file, job, 0o644))
	cmd := exec.Command(cli, "run", file)
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "main │ 65534\n")
	require.Contains(t, string(out), "job svc completed\n")
	require.Equal(t, 1, strings.Count(string(out), "Task Setup"), string(out))
	require.Contains(t, string(out), "main · Less Isolation: private is on disk")
	require.NoDirExists(t, filepath.Join(home, ".local", "state", "nodekeep"))
}

// TestReadOnlyData: what is wrong with a data directory that cannot be written is
// told with what to do.
func TestReadOnlyData(t *testing.T) {
	b := newBox(t)
	require.NoError(t, os.MkdirAll(b.data, 0o700))
	require.NoError(t, syscall.Mount("tmpfs", b.data, "tmpfs", 0, "size=1m,mode=700"))
	t.Cleanup(func() { _ = syscall.Unmount(b.data, syscall.MNT_DETACH) })
	sock := filepath.Join(b.data, "agent.sock")
	ln, err := net.Listen("unix", sock) // of an agent that has gone
	require.NoError(t, err)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.NoError(t, syscall.Mount("", b.data, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	b.refused(1, "is on a read-only file system: make it writable, or name another one with --data", "serve", "--runtime-dir", b.run)
}

// TestSocketRemoved: an agent whose socket was removed is there again.
func TestSocketRemoved(t *testing.T) {
	b := newBox(t)
	b.serve()
	require.NoError(t, os.Remove(filepath.Join(b.data, "agent.sock")))
	eventually(t, "the socket", func() string { return b.nk("ps").err })
}
