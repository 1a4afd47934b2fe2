// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// feed runs a command of the binary with an input.
func (b *box) feed(in string, args ...string) result {
	b.t.Helper()
	cmd := exec.Command(b.cli, append([]string{"--data", b.data}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	_ = cmd.Run()
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// sleepers applies a service that sleeps and returns its pid.
func (b *box) sleepers() int {
	b.t.Helper()
	b.ok("apply", b.jobFile("svc", "service", "exec sleep 3600", ""), "--wait", "running")
	return b.ps()["svc"].Tasks[0].PID
}

// TestExecCommand is what a person does with exec.
func TestExecCommand(t *testing.T) {
	b := newBox(t)
	a := b.serve()
	pid := b.sleepers()
	r := b.feed("", "exec", "svc", "main", "--", "sh", "-c", `echo "$NOMAD_TASK_NAME $MARK"; echo err >&2; exit 7`)
	require.Equal(t, result{"main " + b.mark + "\n", "err\n", 7}, r)
	require.Equal(t, result{"", "", 137}, b.feed("", "exec", "svc.g[0]", "main", "--", "sh", "-c", "kill -9 $$"))
	require.Equal(t, result{"hello", "", 0}, b.feed("hello", "exec", "-i", "svc", "main", "--", "cat"))
	require.Equal(t, result{"", "", 0}, b.feed("hello", "exec", "svc", "main", "--", "cat"), "without -i there is no input")
	require.Equal(t, result{"24 80\r\n", "", 0}, b.feed("", "exec", "-t", "svc", "main", "--", "stty", "size"))
	r = b.feed("echo ty''ped\nexit 5\n", "exec", "-it", "svc", "main", "--", "sh")
	require.Equal(t, 5, r.code, r)
	require.Contains(t, r.out, "typed\r\n")
	var all strings.Builder
	for i := range 200_000 {
		fmt.Fprintln(&all, i)
	}
	r = b.feed(all.String(), "exec", "-i", "svc", "main", "--", "cat")
	require.Zero(t, r.code)
	require.True(t, r.out == all.String(), "%d bytes of %d came back", len(r.out), all.Len())

	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{127, "no-such-command", []string{"exec", "svc", "main", "--", "no-such-command"}},
		{1, `has no task "nix": it has main`, []string{"exec", "svc", "nix", "--", "true"}},
		{1, "nodekeep ps lists them", []string{"exec", "nobody", "main", "--", "true"}},
		{2, "after --", []string{"exec", "svc", "main"}},
		{2, "unknown flag --x", []string{"exec", "svc", "main", "ls", "-x"}},
	} {
		r := b.feed("", c.args...)
		require.Equal(t, c.code, r.code, "%v: %+v", c.args, r)
		require.Contains(t, r.err, c.want)
		require.True(t, strings.HasPrefix(r.err, "nodekeep: "), r.err)
	}
	require.Equal(t, pid, b.ps()["svc"].Tasks[0].PID, "the task was not touched")
	require.Equal(t, []int{pid}, b.marked())

	require.Contains(t, a.log(), "exec is over")
	require.Contains(t, a.log(), fmt.Sprintf("by=\"uid %d pid ", os.Getuid()))
	b.ok("stop", "svc")
	r = b.feed("", "exec", "svc", "main", "--", "touch", "/tmp/never")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "ended")
}

// TestExecTerminal sits at a real terminal.
func TestExecTerminal(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.sleepers()
	ours, theirs := terminal(t)
	setSize(t, ours, 33, 101)
	before, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	require.NoError(t, err)
	cmd := exec.Command(b.cli, "--data", b.data, "exec", "-it", "svc", "main", "--", "sh")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.Env = append(os.Environ(), "TERM=vt100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	var mu sync.Mutex
	var seen strings.Builder
	var reader sync.WaitGroup
	reader.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := ours.Read(buf)
			mu.Lock()
			seen.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	shows := func(text string) {
		t.Helper()
		eventually(t, text, func() string {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(seen.String(), text) {
				return ""
			}
			return "shown is " + seen.String()
		})
	}
	types := func(text string) { _, _ = io.WriteString(ours, text) }
	types("stty size; echo $TERM\r")
	shows("33 101\r\nvt100\r\n")
	setSize(t, ours, 44, 120) // what is typed may overtake it
	types("until stty size | grep '44 120'; do sleep 0.01; done\r")
	shows("44 120\r\n")
	// Said by the command itself: a shell that is about to start one may miss ^C.
	types("sh -c \"echo wai''ting; exec sleep 3600\"\r")
	shows("waiting\r\n")
	types("\x03") // to the command, not to us
	types("echo st''ill; exit 6\r")
	shows("still\r\n")
	_ = cmd.Wait()
	require.Equal(t, 6, cmd.ProcessState.ExitCode())
	after, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	require.NoError(t, err)
	require.Equal(t, before, after, "the terminal is as it was")
	_ = theirs.Close()
	reader.Wait()
}

func terminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	ours = os.NewFile(uintptr(fd), "terminal")
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

func setSize(t *testing.T, f *os.File, rows, cols uint16) {
	t.Helper()
	require.NoError(t, unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
}

// TestExecCrashes kills each part while a command runs: the command ends, the
// task goes on, and the next command runs.
func TestExecCrashes(t *testing.T) {
	b := newBox(t)
	agent := b.serve()
	pid := b.sleepers()
	for _, c := range []struct {
		who  string
		kill func(client *exec.Cmd)
		code int
	}{
		{"client", func(client *exec.Cmd) { _ = client.Process.Kill() }, -1},
		{"client by SIGTERM", func(client *exec.Cmd) { _ = client.Process.Signal(syscall.SIGTERM) }, 128 + 15},
		{"supervisor", func(*exec.Cmd) { _ = syscall.Kill(parentOf(t, pid), syscall.SIGKILL) }, 1},
		{"agent", func(*exec.Cmd) { agent.kill(syscall.SIGKILL); agent = b.serve() }, 1},
		{"agent in order", func(*exec.Cmd) { agent.kill(syscall.SIGTERM); agent = b.serve() }, 1},
	} {
		for _, tty := range []string{"-i", "-it"} {
			if c.who == "supervisor" && tty == "-it" {
				continue // the task has another parent by now
			}
			client := exec.Command(b.cli, "--data", b.data, "exec", tty, "svc", "main", "--", "sh", "-c", "echo up; exec sleep 3601")
			in, err := client.StdinPipe()
			require.NoError(t, err)
			out, err := client.StdoutPipe()
			require.NoError(t, err)
			var errs bytes.Buffer
			client.Stderr = &errs
			require.NoError(t, client.Start())
			up := make([]byte, 2)
			_, err = io.ReadFull(out, up)
			require.NoError(t, err)
			c.kill(client)
			_, _ = io.Copy(io.Discard, out)
			_ = client.Wait()
			_ = in.Close()
			require.Equal(t, c.code, client.ProcessState.ExitCode(), "%s %s: %s", c.who, tty, errs.String())
			b.gone("of the command, "+c.who+" "+tty, func() []int {
				return slices.DeleteFunc(b.marked(), func(p int) bool { return p == pid })
			})
			require.Equal(t, []int{pid}, b.marked())
			r := b.feed("", "exec", "svc", "main", "--", "echo", "again")
			require.Equal(t, result{"again\n", "", 0}, r, c.who)
		}
	}
	require.Equal(t, 0, b.ps()["svc"].Tasks[0].Restarts)
}

// TestExecDisabled refuses on a node that runs no commands.
func TestExecDisabled(t *testing.T) {
	b := newBox(t)
	a := b.serve("--disable-exec")
	pid := b.sleepers()
	r := b.feed("", "exec", "svc", "main", "--", "true")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "exec is refused on this node")
	require.Equal(t, []int{pid}, b.marked())
	require.Contains(t, a.log(), "exec refused")
}

// TestStatsCommand is what a person sees of a task's usage.
func TestStatsCommand(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.ok("apply", b.jobFile("svc", "service", "while :; do :; done", ""), "--wait", "running")
	id := b.ps()["svc"].ID
	type sample struct {
		Time, Alloc, Task string
		Memory            struct{ Usage, RSS, Max, Allocated *uint64 }
		CPU               struct {
			Percent     *float64
			UserNS      *int64 `json:"user_ns"`
			SystemNS    *int64 `json:"system_ns"`
			ThrottledNS *int64 `json:"throttled_ns"`
		}
		Pids *int
	}
	decode := func(line string) (s sample) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(line), &s), line)
		require.NotNil(t, s.Memory.Usage)
		require.NotNil(t, s.Memory.RSS)
		require.NotNil(t, s.Memory.Max)
		require.NotNil(t, s.CPU.SystemNS)
		require.NotNil(t, s.CPU.ThrottledNS)
		require.Equal(t, []any{id, "main", 1}, []any{s.Alloc, s.Task, *s.Pids})
		require.True(t, strings.HasSuffix(s.Time, "Z"), s.Time)
		return s
	}
	s := decode(b.ok("stats", "svc", "--json"))
	require.Greater(t, *s.CPU.Percent, 1.0)
	require.Greater(t, *s.CPU.UserNS, int64(0))
	require.Positive(t, *s.Memory.Allocated)

	text := b.ok("stats", "svc", "main")
	require.Contains(t, text, "ALLOCATED")
	require.Contains(t, text, "MiB")

	follow := exec.Command(b.cli, "--data", b.data, "stats", "-f", "--json", "--interval", "100ms", "svc")
	out, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	dec := json.NewDecoder(out)
	for range 3 {
		var raw json.RawMessage
		require.NoError(t, dec.Decode(&raw))
		decode(string(raw))
	}
	b.ok("stop", "svc")
	_, _ = io.Copy(io.Discard, out)
	require.NoError(t, follow.Wait(), "it ends with the alloc")
	r := b.feed("", "stats", "svc")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "ended")
	require.Equal(t, 2, b.feed("", "stats").code)
}
