// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

// TestAgentDies: however the agent ends, its task goes on: the same process, no
// line of its log lost or twice, no event but those of its one life.
func TestAgentDies(t *testing.T) {
	for name, end := range map[string]struct {
		die  func(a *agentProc) int
		code int
	}{
		"SIGKILL": {func(a *agentProc) int { return a.kill(syscall.SIGKILL) }, -1},
		"SIGKILL to the process group": {func(a *agentProc) int {
			_ = syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL)
			<-a.ended
			return a.code
		}, -1},
		"SIGTERM": {func(a *agentProc) int { return a.kill(syscall.SIGTERM) }, 0},
		"SIGINT":  {func(a *agentProc) int { return a.kill(syscall.SIGINT) }, 0},
		"SIGHUP":  {func(a *agentProc) int { return a.kill(syscall.SIGHUP) }, 0},
		"SIGQUIT": {func(a *agentProc) int { return a.kill(syscall.SIGQUIT) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			a := b.serve()
			b.ok("apply", b.jobFile("svc", "service", counter, ""), "--wait", "running")
			before := b.ps()["svc"]
			pid := before.Tasks[0].PID
			start := started(pid)
			require.NotEmpty(t, start)

			require.Equal(t, end.code, end.die(a), a.log())
			away := b.written(before.ID)
			eventually(t, "log while the agent is away", func() string {
				if b.written(before.ID) > away+5 {
					return ""
				}
				return fmt.Sprint(b.written(before.ID))
			})
			require.Equal(t, start, started(pid))
			b.serve()
			now := b.ps()["svc"]
			require.Equal(t, before.ID, now.ID)
			require.Equal(t, "running", string(now.Status))
			require.Equal(t, pid, now.Tasks[0].PID)
			require.Equal(t, start, started(pid))
			require.Zero(t, now.Tasks[0].Restarts)
			b.follow("svc", b.written(before.ID)+10)

			b.ok("stop", "svc")
			require.Empty(t, started(pid))
			now = b.ps()["svc"]
			require.Equal(t, "complete", string(now.Status))
			require.Equal(t, []string{"Started", "Killing", "Terminated", "Killed"}, b.kinds("svc"))
		})
	}
}

// follow reads logs -f of a job up to a line and requires that none is missing
// or there twice.
func (b *box) follow(job string, last int) {
	b.t.Helper()
	cmd := exec.Command(b.cli, "logs", "-f", job, "--data", b.data)
	out, err := cmd.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, cmd.Start())
	bound := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer bound.Stop()
	lines(b.t, out, last)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestClosedTerminal: an agent whose output nobody reads any more lets go of its
// tasks instead of dying with them or taking them along.
func TestClosedTerminal(t *testing.T) {
	b := newBox(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(b.bin, b.serveArgs("--log-level", "debug")...)
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	waitLine(t, r, "ready")
	drained := make(chan struct{})
	stop := make(chan struct{})
	go func() { // somebody reads, until the terminal is closed
		defer close(drained)
		buf := make([]byte, 4096)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = r.Read(buf)
		}
	}()
	b.ok("apply", b.jobFile("svc", "service", counter, ""), "--wait", "running")
	before := b.ps()["svc"]
	start := started(before.Tasks[0].PID)
	close(stop)
	<-drained
	require.NoError(t, r.Close())
	b.nk("signal", "-s", "SIGCONT", "svc") // something to log
	require.NoError(t, cmd.Wait(), "it detaches in order")
	require.Equal(t, start, started(before.Tasks[0].PID))
	b.serve()
	require.Equal(t, before.Tasks[0].PID, b.ps()["svc"].Tasks[0].PID)
	require.Equal(t, start, started(before.Tasks[0].PID))
	b.follow("svc", b.written(before.ID)+5)
	b.ok("stop", "--all")
}

func waitLine(t *testing.T, r io.Reader, line string) {
	t.Helper()
	var text []byte
	one := make([]byte, 1)
	for {
		_, err := r.Read(one)
		require.NoError(t, err, "%q did not come: %s", line, text)
		if one[0] != '\n' {
			text = append(text, one[0])
			continue
		}
		if string(text) == line {
			return
		}
		text = text[:0]
	}
}

// TestExitWhileAway: how a task ended is known although nobody looked.
func TestExitWhileAway(t *testing.T) {
	for name, tt := range map[string]struct {
		script       string
		code, signal int
		status       string
	}{
		"well":     {"exit 0", 0, 0, "complete"},
		"failed":   {"exit 7", 7, 0, "failed"},
		"a signal": {"kill -9 $$", 137, 9, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			a := b.serve()
			b.ok("apply", b.jobFile("job", "batch", `while [ ! -e "$DIR/go" ]; do sleep 0.01; done; echo last; `+tt.script, once), "--wait", "running")
			al := b.ps()["job"]
			pid := al.Tasks[0].PID
			dir := environ(t, pid, "DIR")
			a.kill(syscall.SIGKILL)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
			eventually(t, "the end of the task", func() string { return started(pid) })
			b.serve()
			al = b.until("job", "done", func(al api.Alloc) bool { return al.Done })
			require.Equal(t, tt.status, string(al.Status))
			require.Equal(t, tt.code, *al.Tasks[0].ExitCode)
			require.Equal(t, tt.signal, al.Tasks[0].Signal)
			require.Equal(t, "last\n", b.ok("logs", "job"))
			require.Equal(t, "Started", b.kinds("job")[0])
			require.Equal(t, "Terminated", b.kinds("job")[1])
		})
	}
}

// environ reads a variable of a process.
func environ(t *testing.T, pid int, name string) string {
	t.Helper()
	for kv := range strings.SplitSeq(string(proctest.Environ(pid)), "\x00") {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	require.Fail(t, "no variable "+name)
	return ""
}

// TestSupervisorDies: the next supervisor adopts the task: the same process, no
// line lost, and it can still be stopped.
func TestSupervisorDies(t *testing.T) {
	for name, withAgent := range map[string]bool{"alone": false, "with the agent": true} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			a := b.serve()
			b.ok("apply", b.jobFile("svc", "service", `trap "exit 5" TERM; `+counter, ""), "--wait", "running")
			before := b.ps()["svc"]
			pid := before.Tasks[0].PID
			start := started(pid)
			sup := parentOf(t, pid)
			require.Contains(t, b.supervisors(), sup)
			if withAgent {
				require.NoError(t, a.cmd.Process.Kill())
			}
			require.NoError(t, syscall.Kill(sup, syscall.SIGKILL))
			if withAgent {
				<-a.ended
				b.serve()
			}
			seen := b.written(before.ID)
			eventually(t, "the next supervisor", func() string {
				if b.written(before.ID) > seen+20 {
					return ""
				}
				return fmt.Sprint(b.supervisors(), b.written(before.ID))
			})
			now := b.ps()["svc"]
			require.Equal(t, pid, now.Tasks[0].PID)
			require.Equal(t, start, started(pid))
			require.Equal(t, "running", string(now.Status))
			b.follow("svc", b.written(before.ID)+10)
			b.ok("stop", "svc")
			require.Empty(t, started(pid))
			code := *b.ps()["svc"].Tasks[0].ExitCode
			require.Contains(t, []int{5, -1}, code, "the true code where the kernel tells, else -1")
			require.Equal(t, []string{"Started", "Killing", "Terminated", "Killed"}, b.kinds("svc"))
		})
	}
}

// TestNobodySawIt: a task that ends while neither its supervisor nor the agent
// lives has its true exit code where the kernel still tells (nobody reaped it
// yet), else none: never a made up one.
func TestNobodySawIt(t *testing.T) {
	b := newBox(t)
	a := b.serve()
	b.ok("apply", b.jobFile("job", "batch", `while [ ! -e "$DIR/go" ]; do sleep 0.01; done; echo last; exit 7`, once), "--wait", "running")
	pid := b.ps()["job"].Tasks[0].PID
	dir, sup := environ(t, pid, "DIR"), parentOf(t, pid)
	a.kill(syscall.SIGKILL)
	require.NoError(t, syscall.Kill(sup, syscall.SIGKILL))
	eventually(t, "the end of the supervisor", func() string { return started(sup) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	eventually(t, "the end of the task", func() string { return started(pid) })
	b.serve()
	al := b.until("job", "done", func(al api.Alloc) bool { return al.Done })
	require.Equal(t, "failed", string(al.Status))
	require.Contains(t, []int{7, -1}, *al.Tasks[0].ExitCode)
	require.Equal(t, []string{"Started", "Terminated", "Not Restarting"}, b.kinds("job"))
}

// TestFollowersAreTold: who follows a log or waits when the agent dies is told
// so, and does not take it for the end.
func TestFollowersAreTold(t *testing.T) {
	b := newBox(t)
	a := b.serve()
	b.ok("apply", b.jobFile("svc", "service", counter, ""), "--wait", "running")
	follow := exec.Command(b.cli, "logs", "-f", "svc", "--data", b.data)
	out, err := follow.StdoutPipe()
	require.NoError(t, err)
	var errs strings.Builder
	follow.Stderr = &errs
	require.NoError(t, follow.Start())
	waitLine(t, out, "line 3")
	a.kill(syscall.SIGKILL)
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.Error(t, follow.Wait())
	require.Equal(t, 1, follow.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "went away: its tasks go on")
	b.serve()
	b.ok("stop", "svc")
}
