// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

// patience bounds every wait for a real process.
const patience = 30 * time.Second

// bin is where the binaries of the tests are built.
var bin string

func TestMain(m *testing.M) {
	if playPlugin() {
		return
	}
	var err error
	if bin, err = os.MkdirTemp("", "nodekeep-bin-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(bin)
	os.Exit(code)
}

// plain is the program as users have it, which is its own supervisor.
var plain = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "plain", "nodekeep")
	return path, goBuild("-o", path, ".")
})

// raced is the agent under the race detector, with the small supervisor beside it.
var raced = sync.OnceValues(func() (string, error) {
	path := filepath.Join(bin, "raced", "nodekeep")
	err := goBuild("-o", filepath.Join(bin, "raced", "nodekeep-supervisor"), "github.com/nodekeep/nodekeep/cmd/nodekeep-supervisor")
	if err == nil {
		err = goBuild("-race", "-o", path, ".")
	}
	return path, err
})

func goBuild(args ...string) error {
	if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build %v: %w: %s", args, err, out)
	}
	return nil
}

// box is a machine of its own: a data directory, a runtime directory, the binary
// of its agent and that of the commands, and a mark that every task in it carries.
type box struct {
	t         *testing.T
	bin, cli  string
	data, run string
	mark      string
	agents    []*agentProc
}

func newBox(t *testing.T) *box { return newBoxOf(t, plain) }

func newBoxOf(t *testing.T, binary func() (string, error)) *box {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	cli, err := plain()
	require.NoError(t, err)
	run, err := os.MkdirTemp("/dev/shm", "nk-run-")
	require.NoError(t, err)
	b := &box{t: t, bin: path, cli: cli, data: filepath.Join(t.TempDir(), "data"), run: run, mark: filepath.Base(run)}
	t.Cleanup(b.leavesNothing)
	return b
}

// leavesNothing ends the node in order and fails a test that left something.
func (b *box) leavesNothing() {
	if b.t.Failed() {
		for _, a := range b.agents {
			b.t.Logf("log of agent %d:\n%s", a.cmd.Process.Pid, a.log())
		}
		b.clear()
		return
	}
	defer b.clear()
	state, err := os.ReadFile(filepath.Join(b.data, "state.db"))
	if err == nil { // a node, not what run has cleared away itself
		if b.nk("ps").code != 0 {
			b.serve()
		}
		b.ok("stop", "--all", "--no-shutdown-delay")
		b.ok("gc")
		require.Equal(b.t, "no allocs\n", b.ok("ps"))
	}
	for _, a := range b.agents {
		a.kill(syscall.SIGTERM)
	}
	b.gone("when the test ended", func() []int { return append(b.marked(), b.supervisors()...) })
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(b.t, err)
	require.False(b.t, bytes.Contains(mounts, []byte(b.data)), "a mount is left")
	left, err := filepath.Glob(filepath.Join(b.run, "*"))
	require.NoError(b.t, err)
	require.Empty(b.t, left, "left in the runtime directory")
	left, err = filepath.Glob(filepath.Join(b.data, "alloc", "*"))
	require.NoError(b.t, err)
	require.Empty(b.t, left, "left in the data directory")
	if m := agentID.FindSubmatch(state); m != nil {
		left, err = filepath.Glob("/sys/fs/cgroup/*/nodekeep.slice/" + string(m[1]))
		require.NoError(b.t, err)
		require.Empty(b.t, left, "a cgroup is left")
	}
}

// agentID finds the name of an agent's cgroups in its state.
var agentID = regexp.MustCompile(`"id":"([0-9a-f-]{36})","node_id"`)

// clear removes what a failed test left.
func (b *box) clear() {
	for _, a := range b.agents {
		a.kill(syscall.SIGKILL)
	}
	for _, pid := range append(b.supervisors(), b.marked()...) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	unmountBelow(b.data)
	_ = os.RemoveAll(b.run)
}

func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	var list []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir) {
			list = append(list, f[1])
		}
	}
	slices.Reverse(list)
	for _, m := range list {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
}

// pids returns every process for which match holds.
func pids(match func(pid string) bool) (list []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && match(e.Name()) {
			list = append(list, pid)
		}
	}
	return list
}

// marked are the tasks and all their children, however far they went.
func (b *box) marked() []int { return proctest.Marked("MARK=" + b.mark) }

// supervisors are the processes of our binary, or of the one beside it, that are
// no agent of ours.
func (b *box) supervisors() []int {
	return pids(func(pid string) bool {
		exe, err := os.Readlink("/proc/" + pid + "/exe")
		if err != nil || filepath.Dir(strings.TrimSuffix(exe, " (deleted)")) != filepath.Dir(b.bin) {
			return false
		}
		// Tests run one after the other, so that all of them are this box's.
		cmd, err := os.ReadFile("/proc/" + pid + "/cmdline")
		return err == nil && len(cmd) > 0 && !bytes.Contains(cmd, []byte("--data"))
	})
}

// eventually waits until cond returns "", which else says what is missing.
func eventually(t *testing.T, what string, cond func() string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		missing := cond()
		if missing == "" {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			require.FailNow(t, what, "not within %s: %s", patience, missing)
		}
	}
}

// gone waits until there is no such process.
func (b *box) gone(what string, list func() []int) {
	b.t.Helper()
	eventually(b.t, "processes left "+what, func() string {
		var text []string
		for _, pid := range list() {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			text = append(text, fmt.Sprintf("%d %q", pid, cmd))
		}
		return strings.Join(text, ", ")
	})
}

// started is the start time of a process in clock ticks; "" if it is not there.
func started(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if f[0] == "Z" {
		return ""
	}
	return f[19]
}

// parentOf is 0 for a process that has ended.
func parentOf(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0
	}
	require.NoError(t, err)
	ppid, err := strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
	require.NoError(t, err)
	return ppid
}

// agentProc is a running agent.
type agentProc struct {
	cmd    *exec.Cmd
	stdout *os.File // read end; closed by the test that wants SIGPIPE
	stderr string   // file
	ended  chan struct{}
	code   int
}

func (a *agentProc) log() string {
	data, _ := os.ReadFile(a.stderr)
	return string(data)
}

// kill sends a signal and waits for the end.
func (a *agentProc) kill(sig syscall.Signal) int {
	_ = a.cmd.Process.Signal(sig)
	<-a.ended
	return a.code
}

// start starts the binary in a session of its own with its log in a file.
func (b *box) start(args ...string) *agentProc {
	b.t.Helper()
	log, err := os.CreateTemp(b.t.TempDir(), "log-")
	require.NoError(b.t, err)
	defer log.Close()
	r, w, err := os.Pipe()
	require.NoError(b.t, err)
	defer w.Close()
	a := &agentProc{cmd: exec.Command(b.bin, args...), stdout: r, stderr: log.Name(), ended: make(chan struct{})}
	a.cmd.Stdout, a.cmd.Stderr = w, log
	a.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0 exitcode=66")
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(b.t, a.cmd.Start())
	go func() {
		defer close(a.ended)
		_ = a.cmd.Wait()
		a.code = a.cmd.ProcessState.ExitCode()
	}()
	b.agents = append(b.agents, a)
	b.t.Cleanup(func() { _ = r.Close() })
	return a
}

func (b *box) serveArgs(more ...string) []string {
	return append([]string{"serve", "--data", b.data, "--runtime-dir", b.run, "--enable-raw-exec"}, more...)
}

// serve starts a node and waits until it is ready.
func (b *box) serve(more ...string) *agentProc {
	b.t.Helper()
	a := b.start(b.serveArgs(more...)...)
	line, err := bufio.NewReader(a.stdout).ReadString('\n')
	require.NoError(b.t, err, a.log())
	require.Equal(b.t, "ready\n", line)
	return a
}

// result is what a command did.
type result struct {
	out, err string
	code     int
}

// nk runs a command of the binary on the box's node.
func (b *box) nk(args ...string) result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.cli, append(args, "--data", b.data)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(b.t, err)
	}
	require.NoError(b.t, ctx.Err(), "nodekeep %v did not end; %s", args, errs.String())
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// ok runs a command that must work.
func (b *box) ok(args ...string) string {
	b.t.Helper()
	r := b.nk(args...)
	require.Zero(b.t, r.code, "nodekeep %v: %s%s", args, r.out, r.err)
	return r.out
}

// ps is the node's allocs by job.
func (b *box) ps() map[string]api.Alloc {
	b.t.Helper()
	var list []api.Alloc
	require.NoError(b.t, json.Unmarshal([]byte(b.ok("ps", "--json")), &list))
	m := map[string]api.Alloc{}
	for _, al := range list {
		m[al.Job] = al
	}
	return m
}

// until waits until the alloc of a job is as cond wants it.
func (b *box) until(job, what string, cond func(api.Alloc) bool) api.Alloc {
	b.t.Helper()
	var al api.Alloc
	eventually(b.t, job+" "+what, func() string {
		if al = b.ps()[job]; cond(al) {
			return ""
		}
		return fmt.Sprintf("%+v", al)
	})
	return al
}

// kinds are the kinds of a job's events, in order, but for those of its setup.
func (b *box) kinds(job string) (list []string) {
	b.t.Helper()
	for line := range strings.Lines(b.ok("events", "--json", job)) {
		var e api.Event
		require.NoError(b.t, json.Unmarshal([]byte(line), &e), line)
		if e.Kind != "Received" && e.Kind != "Task Setup" {
			list = append(list, e.Kind)
		}
	}
	return list
}

// jobFile writes a job of one task and returns the path. more goes into the task.
func (b *box) jobFile(name, typ, script, more string) string {
	b.t.Helper()
	text := fmt.Sprintf(`
job %q {
  type = %q
  group "g" {
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
%s
EOT
        ]
      }
      env {
        MARK = %q
        DIR  = %q
      }
      %s
    }
  }
}
`, name, typ, script, b.mark, b.t.TempDir(), more)
	path := filepath.Join(b.t.TempDir(), name+".hcl")
	require.NoError(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// once makes a task end for good at its first exit.
const once = `
      restart {
        attempts = 0
        mode     = "fail"
      }`

// lines reads "line N" from r until N is at least last, and requires that they
// come from 0 on, each once.
func lines(t *testing.T, r io.Reader, last int) {
	t.Helper()
	in := bufio.NewScanner(r)
	for n := 0; n <= last; n++ {
		require.True(t, in.Scan(), "the log ends at line %d: %v", n, in.Err())
		require.Equal(t, fmt.Sprintf("line %d", n), in.Text())
	}
}

// counter is a script that writes "line 0", "line 1", … until it is told to end.
const counter = `n=0; while :; do echo "line $n"; n=$((n+1)); sleep 0.005; done`

// written is how many lines of output the job's log files hold.
func (b *box) written(id string) int {
	b.t.Helper()
	files, err := filepath.Glob(filepath.Join(b.data, "alloc", id, "alloc", "logs", "main.stdout.*"))
	require.NoError(b.t, err)
	n := 0
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(b.t, err)
		n += bytes.Count(data, []byte("\n"))
	}
	return n
}
