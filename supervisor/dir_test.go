// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// counter is a task that writes a line every 10 ms until it is told to stop.
const counter = `trap 'exit 7' TERM; i=0; while :; do i=$((i+1)); echo "line $i"; sleep 0.01; done`

// checkLines wants line 1, line 2, … without a gap, and returns the last one.
func checkLines(t *testing.T, what, log string) int {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	for i, l := range lines {
		if l != fmt.Sprint("line ", i+1) {
			t.Fatalf("%s: line %d is %q", what, i+1, l)
		}
	}
	return len(lines)
}

// D8: the runtime directory is removed under five tasks and the agent restarted:
// the same processes, or ended, and never two; no line is lost. With the
// supervisor alive, stopped, and dead.
func TestRuntimeDirRemoved(t *testing.T) {
	for _, how := range []string{"alive", "stopped", "dead", "dead, agent alive"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			var ids []Identity
			for i := range 5 {
				sp := r.sh(fmt.Sprint("t", i), counter)
				sp.Args = append(sp.Args, "x", fmt.Sprintf("dir%d.%d", os.Getpid(), i))
				st := r.start(sp)
				ids = append(ids, Identity{ID: sp.ID, PID: st.PID, Start: st.Start, BootID: st.BootID, Stdout: sp.Stdout, Stderr: sp.Stderr})
				r.waitLog(sp.ID+".stdout", "line 3")
			}
			old := r.pid()
			switch how {
			case "stopped":
				_ = r.p.Close()
				_ = syscall.Kill(old, syscall.SIGSTOP)
			case "dead":
				_ = r.p.Close()
				_ = syscall.Kill(old, syscall.SIGKILL)
				gone(t, old)
			}
			if err := os.RemoveAll(r.p.cfg.Dir); err != nil && how != "alive" { // may lose against the supervisor
				t.Fatal(err)
			}
			if how == "dead, agent alive" {
				r.killSupervisor()
			} else {
				if how == "alive" {
					eventually(t, "the socket bound again", func() bool { f, err := dial(r.dir); _ = f.Close(); return err == nil })
				}
				r.agent()
			}
			for i, id := range ids {
				if i%2 == 0 { // both orders: logs before the task is known and after
					r.fifos(id.ID)
				}
				st, err := r.Adopt(t.Context(), id)
				if err != nil || st.PID != id.PID || st.Start != id.Start || st.Exited || startTime(id.PID) != id.Start {
					t.Fatalf("%+v %v", st, err)
				}
				o, e := r.fifos(id.ID)
				if o != id.Stdout || e != id.Stderr {
					t.Fatalf("other FIFOs: %s", o)
				}
			}
			if pid := r.pid(); (how == "alive") != (pid == old) {
				t.Errorf("supervisor %d, was %d", pid, old)
			}
			if l := supervisors(r.p.cfg.Dir); len(l) != 1 {
				t.Errorf("supervisors: %v", l)
			}
			for i, id := range ids {
				n := checkLines(t, id.ID, r.log(id.ID+".stdout"))
				r.waitLog(id.ID+".stdout", fmt.Sprintf("line %d\n", n+5))
				if l := leaders(fmt.Sprintf("dir%d.%d", os.Getpid(), i)); len(l) != 1 {
					t.Errorf("processes %v", l)
				}
				if err := r.Stop(t.Context(), id.ID, syscall.SIGTERM, time.Minute); err != nil {
					t.Fatal(err)
				}
				if end := r.wait(id.ID); end.Code != 7 && !(end.Code == -1 && end.Err != "") {
					t.Fatalf("%+v", end)
				}
				checkLines(t, id.ID, r.log(id.ID+".stdout"))
				r.destroy(id.ID)
				// The pair is there for the next attempt.
				sp := r.sh(id.ID, "echo next")
				sp.ID += "/1"
				r.start(sp)
				r.wait(sp.ID)
				if !strings.HasSuffix(r.log(id.ID+".stdout"), "\nnext\n") {
					t.Error("the next attempt's output is lost")
				}
			}
		})
	}
}

// Only the socket, only the lock, only the journal: whatever is removed, agents
// find the one supervisor there is.
func TestRuntimeFileRemoved(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "sleep 60"))
	pid := r.pid()
	fds := count(pid, "fd")
	for _, name := range []string{"/sock", "/lock", "/journal", "/sock", "/io/a.stdout"} {
		if err := os.Remove(r.dir + name); err != nil {
			t.Fatal(err)
		}
		if name == "/io/a.stdout" { // is not watched: comes back with the next removal
			_ = os.Remove(r.dir + "/sock")
		}
		eventually(t, name+" again", func() bool { return exists(r.dir+name) && holdsLock(pid, r.dir) })
		eventually(t, "the socket", func() bool {
			f, err := dial(r.dir)
			_ = f.Close()
			return err == nil
		})
		r.agent()
		if now := r.pid(); now != pid {
			t.Fatalf("%s: supervisor %d, was %d", name, now, pid)
		}
	}
	if n := count(pid, "fd"); n > fds+2 {
		t.Errorf("%d descriptors, were %d", n, fds)
	}
	r.killSupervisor() // the journal made anew is complete
	if st, err := r.Lookup(t.Context(), "a"); err != nil || !st.Adopted || st.Exited {
		t.Fatalf("%+v %v", st, err)
	}
	// Nothing held and nobody connected: it leaves and does not come back.
	r.destroy("a")
	if err := r.EndLogs(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	pid = r.pid()
	_ = r.p.Close()
	gone(t, pid)
	if exists(r.dir) {
		t.Error("the scope is left")
	}
}

// A process is adopted once, by whoever proves it.
func TestAdopt(t *testing.T) {
	r := newRig(t)
	st := r.start(r.sh("a", "sleep 60"))
	id := Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID}
	if got, err := r.Adopt(t.Context(), id); err != nil || got != st {
		t.Fatalf("%+v %v", got, err)
	}
	for _, bad := range []Identity{
		{}, {ID: "a"}, {ID: "a", PID: st.PID, Start: st.Start + 1, BootID: st.BootID},
		{ID: "a", PID: st.PID, Start: st.Start, BootID: "x"}, {ID: "b", PID: 1 << 30, Start: 1, BootID: st.BootID},
	} {
		if _, err := r.Adopt(t.Context(), bad); err == nil {
			t.Errorf("%+v is adopted", bad)
		} else if bad.BootID != "" && !errors.Is(err, ErrNotProved) {
			t.Error(err)
		}
	}
	r.destroy("a")
	if _, err := r.Adopt(t.Context(), id); !errors.Is(err, ErrNotProved) {
		t.Errorf("adopted a dead one: %v", err)
	}
}

// FF-043: a task that is restarted again and again leaks neither descriptors nor
// threads nor memory in its supervisor.
func TestRestartsLeakNothing(t *testing.T) {
	r := newRig(t)
	o, e := r.fifos("web")
	groups := roots(t)
	groups["mark"] = ""
	once := func(n int) {
		for mode, root := range groups {
			id := fmt.Sprint(mode, n)
			sp := Spec{ID: id, Path: "/bin/sh", Args: []string{"sh", "-c", "echo x"}, Stdout: o, Stderr: e}
			if root != "" {
				sp.Cgroup = root + "/web.scope"
			}
			r.start(sp)
			r.wait(id)
			r.destroy(id)
		}
	}
	for n := range 10 {
		once(n)
	}
	pid := r.pid()
	fds, threads := count(pid, "fd"), count(pid, "task")
	for n := range 100 {
		once(10 + n)
	}
	if now := count(pid, "fd"); now > fds+2 {
		t.Errorf("descriptors: %d, were %d", now, fds)
	}
	if now := count(pid, "task"); now > threads+10 { // the runtime makes some when it is busy
		t.Errorf("threads: %d, were %d", now, threads)
	}
	if b, _ := os.ReadFile(r.dir + "/journal"); len(b) > journalLimit+1024 {
		t.Errorf("journal of %d bytes", len(b))
	}
}

func count(pid int, what string) int {
	l, _ := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/" + what)
	return len(l)
}
