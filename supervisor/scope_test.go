// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A task inherits its three descriptors and nothing else: neither ours, nor our
// environment, nor ignored signals, nor what our agent was started with (FF-091).
func TestTaskInheritsNothing(t *testing.T) {
	r := newRig(t)
	pipe := [2]int{}
	if err := syscall.Pipe(pipe[:]); err != nil { // not close-on-exec: as a shell would pass it
		t.Fatal(err)
	}
	defer func() { _, _ = syscall.Close(pipe[0]), syscall.Close(pipe[1]) }()
	r.start(r.sh("a", "ls /proc/self/fd | wc -l; grep SigIgn /proc/self/status; pwd"))
	r.wait("a")
	// Signals 32 and 33 are the C library's own; one that is linked in may ignore them.
	got := strings.Replace(r.log("a.stdout"), "00080000000\n", "00000000000\n", 1)
	if got != "4\nSigIgn:\t0000000000000000\n/\n" {
		t.Errorf("%q", got)
	}
	sp := r.sh("env", "")
	sp.Path, sp.Args, sp.Env = "/usr/bin/env", []string{"env"}, []string{"A=b=c", "EMPTY=", "my-key.x=1"}
	r.start(sp)
	r.wait("env")
	if got := r.log("env.stdout"); got != "A=b=c\nEMPTY=\nmy-key.x=1\n" {
		t.Errorf("%q", got)
	}
	// The supervisor itself holds nothing of the agent's starter either.
	for _, fd := range pipe {
		link, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.pid()))
		for _, f := range fds {
			if l, _ := os.Readlink(f); l == link {
				t.Errorf("the supervisor holds %s", l)
			}
		}
	}
}

// FF-050: a task's oom_score_adj is its own, whatever the agent's is.
func TestOOMScoreAdj(t *testing.T) {
	before := readAdj()
	defer func() { _ = writeAdj(before) }()
	own, tasks := -500, []int{0, 300, -500, -900}
	if writeAdj(own) != nil { // lowering needs CAP_SYS_RESOURCE; raising shows the same
		own, tasks = before+200, []int{before, before + 300, before + 200}
		if err := writeAdj(own); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t)
	for _, want := range tasks {
		id := fmt.Sprint("adj", want)
		sp := r.sh(id, "cat /proc/self/oom_score_adj")
		sp.OOMScoreAdj = want
		r.start(sp)
		r.wait(id)
		if got := r.log(id + ".stdout"); got != fmt.Sprintln(want) {
			t.Errorf("task has %q, want %d", got, want)
		}
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", r.pid()))
	if string(b) != fmt.Sprintln(own) || readAdj() != own {
		t.Errorf("supervisor %q, agent %d, both want %d", b, readAdj(), own)
	}
}

func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t)
	o, e, err := r.Logs(t.Context(), LogSpec{Task: "a", Dir: r.logs, UID: 65534, GID: 65533})
	if err != nil {
		t.Fatal(err)
	}
	r.start(Spec{
		ID: "a", Path: "/bin/sh", Args: []string{"sh", "-c", "id -u; id -g; id -G; echo direct > /dev/stderr"}, Env: []string{"PATH=/bin:/usr/bin"},
		Stdout: o, Stderr: e, SetUser: true, UID: 65534, GID: 65533, Groups: []int{7, 8},
	})
	if st := r.wait("a"); st.Code != 0 {
		t.Fatalf("%+v: %s", st, r.log("a.stderr"))
	}
	if got := r.log("a.stdout"); got != "65534\n65533\n65533 7 8\n" {
		t.Errorf("%q", got)
	}
	if got := r.log("a.stderr"); got != "direct\n" {
		t.Errorf("%q", got)
	}
}

// A directory that the task's user may not enter is named, not the program.
func TestClosedDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t)
	closed := r.base + "/closed"
	if err := os.MkdirAll(closed+"/work", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir := r.base; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o001 == 0 {
			_ = os.Chmod(dir, st.Mode().Perm()|0o011)
		}
	}
	sp := Spec{ID: "a", Path: "/bin/true", Dir: closed + "/work", SetUser: true, UID: 65534, GID: 65534}
	_, err := r.Start(t.Context(), sp)
	if err == nil || !strings.Contains(err.Error(), "may not enter "+closed+":") {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o711); err != nil {
		t.Fatal(err)
	}
	r.start(sp)
	r.wait("a")
}

// A scope that belongs to another user is refused at once, not tried for ever.
func TestForeignScope(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t)
	if err := os.Mkdir(r.p.cfg.Dir+"/theirs", 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Chown(r.p.cfg.Dir+"/theirs", 1234, 1234)
	defer func() { _ = os.RemoveAll(r.p.cfg.Dir + "/theirs") }()
	s := r.p.Scope("theirs")
	if _, err := s.Lookup(t.Context(), "a"); !errors.Is(err, ErrForeignScope) {
		t.Error(err)
	}
	if _, err := s.Wait(t.Context(), "a"); !errors.Is(err, ErrForeignScope) {
		t.Error(err)
	}
	if err := s.Release(t.Context()); !errors.Is(err, ErrForeignScope) {
		t.Error(err)
	}
	if l, _ := os.ReadDir(r.p.cfg.Dir + "/theirs"); len(l) != 0 {
		t.Errorf("left there: %v", l)
	}
	if err := os.Mkdir(r.base+"/pool", 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Chown(r.base+"/pool", 1234, 1234)
	if _, err := NewPool(PoolConfig{Dir: r.base + "/pool"}); !errors.Is(err, ErrForeignScope) {
		t.Error(err)
	}
}

func TestReleaseAndClose(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if err := r.p.Scope("never used").Release(ctx); err != nil {
		t.Fatal(err)
	}
	r.start(r.sh("a", "sleep 60"))
	if err := r.Release(ctx); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	if r.p.Scope("s") != r.Scope {
		t.Error("another Scope for the same name")
	}
	if n, err := r.p.Names(); err != nil || len(n) != 1 || n[0] != "s" {
		t.Fatal(n, err)
	}
	// No supervisor lives, but its journal names a task: that one is not dropped.
	_ = r.p.Close()
	for _, pid := range supervisors(r.p.cfg.Dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		gone(t, pid)
	}
	if _, err := r.Lookup(ctx, "a"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	r.agent()
	if err := r.Release(ctx); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	r.destroy("a")
	old := r.Scope
	for range 2 {
		if err := r.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if exists(old.dir) {
		t.Error("the directory is left")
	}
	if _, err := old.Lookup(ctx, "a"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if r.Scope = r.p.Scope("s"); r.Scope == old {
		t.Error("a released Scope is handed out again")
	}
	r.start(r.sh("b", "exit 0"))
	r.wait("b")
}

// A directory left by a supervisor that died without tasks is removed without
// starting another one.
func TestReleaseWithoutSupervisor(t *testing.T) {
	r := newRig(t)
	r.fifos("a")
	pid := r.pid()
	_ = r.p.Close()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	gone(t, pid)
	r.agent()
	if err := r.Release(t.Context()); err != nil || exists(r.dir) {
		t.Fatal(err)
	}
}

// The supervisor's program: the one named, the one beside the host's, the host's.
func TestProgram(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	of := func(exe string) string {
		p, err := NewPool(PoolConfig{Dir: base(t) + "/run", Exe: exe, Env: quick})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		s := p.Scope("s")
		_, pid, err := s.Hello(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		is, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err := s.Release(t.Context()); err != nil {
			t.Error(err)
		}
		return is
	}
	if got := of(""); got != own {
		t.Errorf("%s, want %s", got, own)
	}
	beside, named := filepath.Dir(own)+"/"+argv0, base(t)+"/named"
	defer func() { _ = os.Remove(beside) }()
	b, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{beside, named} {
		if err := os.WriteFile(name, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := of(""); got != beside {
		t.Errorf("%s, want %s", got, beside)
	}
	if got := of(named); got != named {
		t.Errorf("%s, want %s", got, named)
	}
}

// A program that is no supervisor is an error, after a few tries and no more.
func TestBrokenProgram(t *testing.T) {
	for exe, says := range map[string]string{"/bin/false": "closed", "/bin/cat": "directory"} {
		p, err := NewPool(PoolConfig{Dir: base(t) + "/run", Exe: exe})
		if err != nil {
			t.Fatal(err)
		}
		s := p.Scope("s")
		if _, err := s.Start(t.Context(), Spec{ID: "a", Path: "/bin/true"}); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", exe, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := s.Wait(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", exe, err)
		}
		cancel()
		if err := s.Release(t.Context()); err != nil || exists(s.dir) {
			t.Errorf("%s: %v", exe, err)
		}
		_ = p.Close()
	}
}
