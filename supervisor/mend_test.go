// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// withoutS takes a task's S lines out of the journal, as if the supervisor had
// died before it wrote them.
func (r *rig) withoutS(id string) {
	r.t.Helper()
	b, err := os.ReadFile(r.dir + "/journal")
	if err != nil {
		r.t.Fatal(err)
	}
	l := slices.DeleteFunc(strings.SplitAfter(string(b), "\n"), func(l string) bool { return strings.HasPrefix(l, "S\t"+id+"\t") })
	if err := os.WriteFile(r.dir+"/journal", []byte(strings.Join(l, "")), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// The supervisor is killed between the fork and S: the process that runs is the
// task's, and the Start that is asked again answers with it. It never runs twice,
// whatever it has started in sessions of their own.
func TestUnfinishedStartIsAdopted(t *testing.T) {
	groups := roots(t)
	groups["mark"] = ""
	for mode, root := range groups {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			sp := r.sh("a", "echo $$ >>"+r.base+"/pids; setsid sleep 60 & trap 'exit 7' TERM; echo up; while :; do sleep 0.02; done")
			if root != "" {
				sp.Cgroup = root + "/unfinished.scope"
			}
			st := r.start(sp)
			r.waitLog("a.stdout", "up")
			pid := r.pid()
			_ = r.p.Close()
			_ = syscall.Kill(pid, syscall.SIGKILL)
			gone(t, pid)
			r.withoutS("a")
			r.agent()
			now, err := r.Start(t.Context(), sp)
			if err != nil || now.PID != st.PID || now.Start != st.Start || now.Exited || !now.Adopted {
				t.Fatalf("%+v, was %+v: %v", now, st, err)
			}
			r.killSupervisor() // S is in the journal now
			if now, err := r.Lookup(t.Context(), "a"); err != nil || now.PID != st.PID {
				t.Fatalf("%+v %v", now, err)
			}
			if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Minute); err != nil {
				t.Fatal(err)
			}
			r.wait("a")
			r.destroy("a")
			if b, _ := os.ReadFile(r.base + "/pids"); string(b) != fmt.Sprintln(st.PID) {
				t.Errorf("ran as %q, want %d once", b, st.PID)
			}
		})
	}
}

// The file of the supervisor's program is removed while the agent runs.
func TestProgramRemoved(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := base(t)
	named := filepath.Join(dir, "named")
	b, err := os.ReadFile(own)
	if err == nil {
		err = os.WriteFile(named, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, dir, PoolConfig{Exe: named})
	st := r.start(r.sh("a", "sleep 60"))
	if err := os.Remove(named); err != nil {
		t.Fatal(err)
	}
	r.killSupervisor()
	now, err := r.Lookup(t.Context(), "a")
	if err != nil || now.PID != st.PID || now.Exited {
		t.Fatalf("%+v %v", now, err)
	}
	r.destroy("a")
	r.p.cfg.Exe = "" // for the clean-up
}

// The FIFOs are removed by hand: under a task that runs, and before the next one
// starts. Nothing that is written is lost.
func TestFIFOsRemoved(t *testing.T) {
	r := newRig(t)
	sp := r.sh("a", "echo one; trap 'echo two; exit 0' TERM; while :; do sleep 0.02; done")
	r.start(sp)
	r.waitLog("a.stdout", "one")
	if err := os.RemoveAll(r.dir + "/io"); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Minute); err != nil {
		t.Fatal(err)
	}
	r.wait("a")
	r.destroy("a")
	next := sp
	next.ID, next.Args = "a/1", []string{"sh", "-c", "echo three"}
	r.start(next)
	r.wait("a/1")
	if got := r.log("a.stdout"); got != "one\ntwo\nthree\n" {
		t.Errorf("%q", got)
	}
	if err := os.Remove(sp.Stdout); err != nil {
		t.Fatal(err)
	}
	if o, _ := r.fifos("a"); o != sp.Stdout || !exists(o) {
		t.Error("Logs does not make it again")
	}
	r.destroy("a/1")
}

// Agent and supervisor die, then the task ends: whether that cost output is told,
// and is not when somebody held the FIFOs.
func TestOutputLostIsTold(t *testing.T) {
	for _, held := range []bool{false, true} {
		r := newRig(t)
		sp := r.sh("a", "echo up; exec sleep 60")
		st := r.start(sp)
		r.waitLog("a.stdout", "up")
		pid := r.pid()
		if held {
			f, err := os.OpenFile(sp.Stdout, os.O_RDWR|syscall.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			e, err := os.OpenFile(sp.Stderr, os.O_RDWR|syscall.O_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = e.Close() }()
		}
		_ = r.p.Close()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		gone(t, pid)
		_ = syscall.Kill(st.PID, syscall.SIGKILL)
		eventually(t, "the end and its reaping", func() bool { return startOf(st.PID) != st.Start })
		r.agent()
		id := Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID}
		for range 2 {
			if now, err := r.Adopt(t.Context(), id); err != nil || now.OutputLost == held {
				t.Fatalf("held %v: %+v %v", held, now, err)
			}
			r.wait("a")
			r.killSupervisor() // it is in the journal
		}
		if r.warned("output may be lost") == held {
			t.Errorf("held %v: %q", held, r.warns)
		}
	}
}
