// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// contained is a task of the fake creator's in a scope, with the cgroups of this
// host if root is not "".
func contained(t *testing.T, s *Scope, id, script, root string) (Spec, fakeSpec) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := fakeSpec{dir: s.StateRoot() + "/" + creator.Name(id), script: script}
	sp := Spec{ID: id, Container: &Container{Creator: exe}}
	if root != "" {
		sp.Cgroup = root + "/" + id + ".scope"
		f.groups = strings.Join(cgroup.Everywhere(sp.Cgroup), " ")
	}
	sp.Container.Spec = f.encode()
	return sp, f
}

// groupRoot is a tree to make cgroups in; "" where there is none.
func groupRoot(t *testing.T) string {
	for _, dir := range roots(t) {
		return dir
	}
	return ""
}

// nothingLeft looks for all that bears a task's name.
func nothingLeft(t *testing.T, s *Scope, sp Spec, mark string) {
	t.Helper()
	for _, g := range cgroup.Everywhere(sp.Cgroup) {
		if exists(g) {
			t.Errorf("%s is left with %v", g, cgroup.Procs(g))
		}
	}
	if dir := s.StateRoot() + "/" + creator.Name(sp.ID); exists(dir) {
		t.Errorf("%s is left", dir)
	}
	eventually(t, "no process of "+mark, func() bool {
		for _, args := range processes() {
			if strings.Contains(strings.Join(args, " "), mark) {
				return false
			}
		}
		return true
	})
}

func unique(t *testing.T, i int) string { return fmt.Sprintf("%d%04d%d", 7, i, os.Getpid()) }

// A task of a creator's is a child like any other: its output, its exit code, its
// stop; and it leaves nothing.
func TestContained(t *testing.T) {
	r := newRig(t)
	sp, _ := contained(t, r.Scope, "a", "echo up; read x; exit 7 # "+unique(t, 0), groupRoot(t))
	sp.Stdout, sp.Stderr = r.fifos("a")
	st := r.start(sp)
	if again := r.start(sp); again.PID != st.PID || again.Start != st.Start || st.PID == 0 || st.Start == 0 {
		t.Errorf("%+v, again %+v", st, again)
	}
	if end := r.wait("a"); end.Code != 7 || end.Err != "" { // its stdin is /dev/null
		t.Errorf("%+v", end)
	}
	if got := r.log("a.stdout"); got != "up\n" {
		t.Errorf("%q", got)
	}
	r.destroy("a")
	nothingLeft(t, r.Scope, sp, unique(t, 0))

	sp, _ = contained(t, r.Scope, "b", "setsid sleep "+unique(t, 1)+" & exec sleep "+unique(t, 1), sp.Cgroup[:max(0, strings.LastIndexByte(sp.Cgroup, '/'))])
	r.start(sp)
	if err := r.Stop(t.Context(), "b", syscall.SIGTERM, time.Minute); err != nil {
		t.Fatal(err)
	}
	if end := r.wait("b"); end.Signal != int(syscall.SIGTERM) {
		t.Errorf("%+v", end)
	}
	r.destroy("b")
	nothingLeft(t, r.Scope, sp, unique(t, 1))
}

// FF-041: however and how often a start fails, nothing is left, and the same ID starts.
func TestContainedStartFails(t *testing.T) {
	r := newRig(t)
	root := groupRoot(t)
	for how, want := range map[string]error{"fail": syscall.ENOTDIR, "die": nil, "die late": nil, "no program": syscall.ENOENT, "no creator": fs.ErrNotExist, "no output": fs.ErrNotExist} {
		t.Run(how, func(t *testing.T) {
			id := strings.ReplaceAll(how, " ", "-")
			sp, f := contained(t, r.Scope, id, "sleep "+unique(t, 2), root)
			good := sp
			switch how {
			case "no creator":
				sp.Container = &Container{Creator: "/none", Spec: sp.Container.Spec}
			case "no output":
				sp.Stdout = "/none/stdout"
			case "no program":
				f.path = "/none"
				sp.Container = &Container{Creator: sp.Container.Creator, Spec: f.encode()}
			default:
				f.how = how
				sp.Container = &Container{Creator: sp.Container.Creator, Spec: f.encode()}
			}
			rounds := 3
			if os.Getenv("NODEKEEP_LONG") != "" {
				rounds = 10
			}
			for range rounds {
				_, err := r.Start(t.Context(), sp)
				if err == nil || want != nil && !errors.Is(err, want) || (how == "no program") != errors.Is(err, ErrProgram) {
					t.Fatalf("%v, want %v", err, want)
				}
			}
			nothingLeft(t, r.Scope, sp, unique(t, 2))
			r.start(good)
			r.destroy(id)
			nothingLeft(t, r.Scope, sp, unique(t, 2))
		})
	}
	eventually(t, "no child is left", func() bool { return len(childrenOf(r.pid())) == 0 })
}

func childrenOf(pid int) (l []string) {
	m, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range m {
		b, _ := os.ReadFile(name)
		l = append(l, strings.Fields(string(b))...)
	}
	return l
}

// Whenever creator or supervisor is killed in a start, a task that was not said to
// run never ran, and one that is asked for again runs once.
func TestKilledDuringContainedStart(t *testing.T) {
	root := groupRoot(t)
	for _, victim := range []string{"creator", "supervisor"} {
		t.Run(victim, func(t *testing.T) {
			r := newRig(t)
			for i := range max(5, killRounds/3) {
				s := r.p.Scope(fmt.Sprint("round", i))
				mark := unique(t, 100+i)
				ran := r.base + "/ran"
				sp, _ := contained(t, s, "k", "echo >>"+ran+"; exec sleep "+mark, root)
				_, pid, err := s.Hello(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				var serr error
				wg.Go(func() { _, serr = s.Start(t.Context(), sp) })
				if victim == "creator" {
					eventually(t, "the creator or the task", func() bool { return len(childrenOf(pid)) > 0 })
					time.Sleep(time.Duration(i*7%50) * time.Millisecond) // the moment of death
					for p, args := range processes() {
						if st := procStat(p); args[0] == creator.Argv0 && args[1] == creator.Create && st != nil && st[statParent] == itoa(pid) {
							_ = syscall.Kill(p, syscall.SIGKILL)
						}
					}
				} else {
					time.Sleep(time.Duration(i*7%50) * 2 * time.Millisecond)
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
				wg.Wait()
				if serr != nil {
					if exists(ran) {
						t.Errorf("round %d: a start that failed ran: %v", i, serr)
					}
					nothingLeft(t, s, sp, mark)
				}
				st, err := s.Start(t.Context(), sp)
				if err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
				eventually(t, "one process", func() bool { l := leaders(mark); return len(l) == 1 && l[0] == st.PID })
				if b, _ := os.ReadFile(ran); string(b) != "\n" {
					t.Errorf("round %d: ran %d times", i, len(b))
				}
				if err := s.Destroy(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				nothingLeft(t, s, sp, mark)
				_ = os.Remove(ran)
			}
		})
	}
}

// A supervisor died with a creator at work: the next one begins once that has
// ended, and what it made is gone. It is not taken for a task.
func TestCreatorOutlivesSupervisor(t *testing.T) {
	r := newRig(t)
	root := groupRoot(t)
	mark := unique(t, 3)
	sp, f := contained(t, r.Scope, "a", "exec sleep "+mark, root)
	good := sp
	f.how = "hang"
	sp.Container = &Container{Creator: sp.Container.Creator, Spec: f.encode()}
	pid := r.pid()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = r.Start(ctx, sp) })
	made := f.dir + "/" + creator.FIFO
	eventually(t, "the state", func() bool { return exists(made) })
	cancel()
	wg.Wait()
	made0 := 0
	eventually(t, "the creator", func() bool {
		for p, args := range processes() {
			if st := procStat(p); args[0] == creator.Argv0 && args[1] == creator.Create && st != nil && st[statParent] == itoa(pid) {
				made0 = p
			}
		}
		return made0 != 0
	})
	_ = syscall.Kill(pid, syscall.SIGKILL)
	gone(t, pid)
	next := make(chan Status, 1)
	go func() {
		st, err := r.Start(t.Context(), good)
		if err != nil {
			t.Error(err)
		}
		next <- st
	}()
	select {
	case st := <-next:
		t.Fatalf("started beside a creator: %+v", st)
	case <-time.After(200 * time.Millisecond):
	}
	_ = syscall.Kill(made0, syscall.SIGKILL)
	st := <-next
	eventually(t, "one process", func() bool { l := leaders(mark); return len(l) == 1 && l[0] == st.PID })
	r.destroy("a")
	nothingLeft(t, r.Scope, sp, mark)
}

// What the journal says decides: before G nothing has run and it is purged; from G
// on it is let go, however far the dead supervisor had come with it.
func TestContainedJournal(t *testing.T) {
	root := groupRoot(t)
	for _, let := range []string{"B", "S", "G", "begun"} {
		t.Run(let, func(t *testing.T) {
			r := newRig(t)
			mark := unique(t, 4)
			ran := r.base + "/ran"
			sp, f := contained(t, r.Scope, "a", "echo >>"+ran+"; exec sleep "+mark, root)
			// As the creator of a supervisor that is dead would have left it.
			if err := os.MkdirAll(f.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			fifo := f.dir + "/" + creator.FIFO
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			pid, err := syscall.ForkExec("/proc/self/exe", []string{creator.Argv0, creator.Init, fifo, "/bin/sh", f.script},
				&syscall.ProcAttr{Env: []string{"PATH=/bin:/usr/bin"}, Sys: &syscall.SysProcAttr{Setsid: true}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGKILL); _, _ = syscall.Wait4(pid, nil, 0, nil) }()
			for _, g := range strings.Fields(f.groups) {
				_ = os.MkdirAll(g, 0o755)
				_ = os.WriteFile(g+"/cgroup.procs", []byte(itoa(pid)), 0)
			}
			rec := record{spec: sp, mark: markOf(r.dir, "a"), st: Status{ID: "a", BootID: bootID()}}
			if let != "B" {
				rec.st.PID, rec.st.Start = pid, startOf(pid)
			}
			rec.loose = let == "G" || let == "begun"
			if let == "begun" { // the FIFO was opened and the supervisor died of it
				eventually(t, "it waits", func() bool { return waits(pid) })
				if err := letGo(fifo, pid, rec.st.Start); err != nil {
					t.Fatal(err)
				}
				if err := syscall.Mkfifo(fifo, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(r.dir+"/journal", rec.lines(), 0o600); err != nil {
				t.Fatal(err)
			}
			st, err := r.Lookup(t.Context(), "a")
			if !rec.loose {
				if !errors.Is(err, ErrNotFound) || exists(ran) {
					t.Errorf("%+v %v", st, err)
				}
				eventually(t, "its end", func() bool { return startTime(pid) == 0 || root == "" })
				return
			}
			if err != nil || st.PID != pid || !st.Adopted {
				t.Fatalf("%+v %v", st, err)
			}
			eventually(t, "it runs", func() bool { return len(leaders(mark)) == 1 })
			if b, _ := os.ReadFile(ran); string(b) != "\n" {
				t.Errorf("ran %d times", len(b))
			}
			r.destroy("a")
			nothingLeft(t, r.Scope, sp, mark)
		})
	}
}

// A supervisor dies, and a runtime directory with it: the task is the same one,
// its commands run, and Destroy leaves nothing.
func TestContainedAdopted(t *testing.T) {
	r := newRig(t)
	mark := unique(t, 5)
	sp, f := contained(t, r.Scope, "a", "sleep "+mark+"; exit 5", groupRoot(t))
	st := r.start(sp)
	r.killSupervisor()
	if now, err := r.Lookup(t.Context(), "a"); err != nil || now.PID != st.PID || !now.Adopted {
		t.Fatalf("%+v %v", now, err)
	}
	f.script = "echo in; exit 3"
	out, code := execIn(t, r, "a", sp.Container.Creator, f)
	if out != "in\n" || code != 3 {
		t.Errorf("%q %d", out, code)
	}
	i := Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID, Cgroup: sp.Cgroup, Isolated: true}
	_ = r.p.Close()
	for _, pid := range supervisors(r.p.cfg.Dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		gone(t, pid)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	r.agent()
	if now, err := r.Adopt(t.Context(), i); err != nil || now.PID != st.PID {
		t.Fatalf("%+v %v", now, err)
	}
	r.killSupervisor()
	r.destroy("a")
	nothingLeft(t, r.Scope, sp, mark)
}

// execIn runs a command and returns what it wrote.
func execIn(t *testing.T, r *rig, id, exe string, f fakeSpec) (string, int) {
	t.Helper()
	rd, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	x, err := r.Exec(t.Context(), ExecSpec{Task: id, Container: &Container{Creator: exe, Spec: f.encode()}, Files: [3]int{0, int(wr.Fd()), 2}})
	_ = wr.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	st, err := x.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1000)
	n, _ := rd.Read(b)
	return string(b[:n]), st.Code
}

// A command in a container: its code, its end with its caller, and with its task.
func TestExecIn(t *testing.T) {
	r := newRig(t)
	mark := unique(t, 6)
	sp, f := contained(t, r.Scope, "a", "sleep "+mark, groupRoot(t))
	exe := sp.Container.Creator
	r.start(sp)
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	files := [3]int{int(null.Fd()), int(null.Fd()), int(null.Fd())}
	with := func(script, how string) ExecSpec {
		f.script, f.how = script, how
		return ExecSpec{Task: "a", Container: &Container{Creator: exe, Spec: f.encode()}, Files: files}
	}
	for _, code := range []int{0, 1, 77} {
		if out, got := execIn(t, r, "a", exe, fakeSpec{groups: f.groups, script: fmt.Sprint("echo out; exit ", code)}); got != code || out != "out\n" {
			t.Errorf("%q %d", out, got)
		}
	}
	if _, err := r.Exec(t.Context(), with("", "fail")); !errors.Is(err, syscall.ENOTDIR) {
		t.Error(err)
	}
	if _, err := r.Exec(t.Context(), ExecSpec{Task: "a", Path: "/bin/true", Files: files}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a command beside a container: %v", err)
	}
	mark2 := unique(t, 7)
	x, err := r.Exec(t.Context(), with("exec sleep "+mark2, ""))
	if err != nil {
		t.Fatal(err)
	}
	x.Close()
	eventually(t, "the end of what nobody waits for", func() bool { return len(marked(mark2)) == 0 })
	x, err = r.Exec(t.Context(), with("trap '' HUP; sleep "+mark2, ""))
	if err != nil {
		t.Fatal(err)
	}
	r.destroy("a")
	if _, err := x.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	x.Close()
	if _, err := r.Exec(t.Context(), with("true", "")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	nothingLeft(t, r.Scope, sp, mark)
	nothingLeft(t, r.Scope, sp, mark2)
}

// A creator that hangs is ended, and so is what it made.
func TestCreatorHangs(t *testing.T) {
	if os.Getenv("NODEKEEP_LONG") == "" {
		t.Skip("takes half a minute; set NODEKEEP_LONG")
	}
	r := newRig(t)
	sp, f := contained(t, r.Scope, "a", "sleep "+unique(t, 8), groupRoot(t))
	f.how = "hang"
	sp.Container.Spec = f.encode()
	if _, err := r.Start(t.Context(), sp); err == nil || !strings.Contains(err.Error(), "signal 9") {
		t.Error(err)
	}
	nothingLeft(t, r.Scope, sp, unique(t, 8))
}
