// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

// pipes are the streams of a command and what the test holds of them.
type pipes struct {
	theirs [3]int
	in     *os.File
	out    *os.File
}

func newPipes(t *testing.T) *pipes {
	t.Helper()
	p := &pipes{}
	var in, out [2]int
	if err := errors.Join(syscall.Pipe2(in[:], syscall.O_CLOEXEC), syscall.Pipe2(out[:], syscall.O_CLOEXEC)); err != nil {
		t.Fatal(err)
	}
	p.theirs = [3]int{in[0], out[1], out[1]}
	p.in, p.out = os.NewFile(uintptr(in[1]), "in"), os.NewFile(uintptr(out[0]), "out")
	t.Cleanup(func() { _, _ = p.in.Close(), p.out.Close() })
	return p
}

// exec runs a script beside a task and gives its pipes away.
func (r *rig) exec(id, script string) (*Session, *pipes, error) {
	r.t.Helper()
	p := newPipes(r.t)
	x, err := r.Exec(r.t.Context(), ExecSpec{Task: id, Path: "sh", Args: []string{"sh", "-c", script}, Env: []string{"MORE=1"}, Files: p.theirs})
	_, _ = syscall.Close(p.theirs[0]), syscall.Close(p.theirs[1])
	if err == nil {
		r.t.Cleanup(x.Close)
	}
	return x, p, err
}

func (r *rig) mustExec(id, script string) (*Session, *pipes) {
	r.t.Helper()
	x, p, err := r.exec(id, script)
	if err != nil {
		r.t.Fatal(err)
	}
	return x, p
}

// sleeper starts a task that sleeps, as another user where that is possible.
func (r *rig) sleeper(id, cgroup string) Status {
	r.t.Helper()
	sp := Spec{ID: id, Path: "/bin/sleep", Args: []string{"sleep", "3600"}, Dir: r.base, OOMScoreAdj: 77, Cgroup: cgroup,
		Env: []string{"PATH=/usr/bin:/bin", "WHO=task\n1"}}
	if os.Geteuid() == 0 {
		sp.SetUser, sp.UID, sp.GID, sp.Groups = true, 65534, 65533, []int{65533, 12}
		if err := os.Chmod(r.base, 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.start(sp)
}

// places are no cgroup and one of each hierarchy that can track.
func places(t *testing.T) map[string]string {
	m := map[string]string{"none": ""}
	for mode, dir := range roots(t) {
		m[mode] = dir + "/exec"
	}
	return m
}

const tell = `echo "$WHO,$MORE,$(pwd),$(id -u),$(id -g),$(id -G),$(cat /proc/self/oom_score_adj)"; grep -c . /proc/self/cgroup >/dev/null; cat /proc/self/cgroup; exit 5`

// A command is forked like the task, also by a supervisor that did not start the
// task, and also where only the process itself tells how that was.
func TestExecLikeTask(t *testing.T) {
	for mode, group := range places(t) {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			st := r.sleeper("a", group)
			own, err := os.ReadFile("/proc/" + itoa(st.PID) + "/cgroup")
			if err != nil {
				t.Fatal(err)
			}
			user := "0,0,0"
			if os.Geteuid() == 0 {
				user = "65534,65533,65533 12"
			}
			want := "task\n1,1," + r.base + "," + user + ",77\n" + string(own)
			check := func(when string) {
				t.Helper()
				x, p := r.mustExec("a", tell)
				got, _ := io.ReadAll(p.out)
				if os.Geteuid() != 0 {
					want = string(got) // whoever that is
				}
				if string(got) != want {
					t.Errorf("%s: a command tells\n%s, want\n%s", when, got, want)
				}
				end, err := x.Wait(t.Context())
				if err != nil || end.Code != 5 || end.Signal != 0 || x.PID() == st.PID {
					t.Errorf("%s: %+v %v", when, end, err)
				}
			}
			check("at first")
			r.agent()
			check("after the agent")
			r.killSupervisor()
			check("after the supervisor")
			// Without a journal the process is the proof, and tells the rest.
			id := Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID, Cgroup: group}
			r.loseJournal()
			if _, err := r.Adopt(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			check("after the runtime directory")
		})
	}
}

// loseJournal ends the supervisor and removes all it knew.
func (r *rig) loseJournal() {
	r.t.Helper()
	pid := r.pid()
	if err := r.p.Close(); err != nil {
		r.t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	gone(r.t, pid)
	if err := os.RemoveAll(r.dir); err != nil {
		r.t.Fatal(err)
	}
	r.agent()
}

func TestExecErrors(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.sleeper("a", "")
	if _, _, err := r.exec("nobody", "true"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := r.Exec(ctx, ExecSpec{Task: "a"}); err == nil {
		t.Error("without a program")
	}
	for path, want := range map[string]error{"no-such-command": fs.ErrNotExist, "/no/such": fs.ErrNotExist, "/etc/passwd": fs.ErrPermission} {
		p := newPipes(t)
		_, err := r.Exec(ctx, ExecSpec{Task: "a", Path: path, Files: p.theirs})
		closeAll(p.theirs[:2])
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := r.Stop(ctx, "a", syscall.SIGKILL, 0); err != nil {
		t.Error(err)
	}
	if _, err := r.Wait(ctx, "a"); err != nil {
		t.Error(err)
	}
	if _, _, err := r.exec("a", "true"); !errors.Is(err, ErrExited) {
		t.Error(err)
	}
	b, err := os.ReadFile(r.dir + "/journal")
	if j := parseJournal(string(b)); err != nil || len(j.tasks["a"].execs) != 0 {
		t.Errorf("%v %v", j.tasks["a"].execs, err)
	}
}

// An old supervisor does not know the request, and the descriptors reach nobody.
func TestExecOldSupervisor(t *testing.T) {
	s := oldServer(t, func(r request) *enc {
		if r.kind == kHello {
			return newReply(r.id, nil).num(tVersion, 1).num(tPID, 4711)
		}
		return newReply(r.id, failed("what?", ErrUnsupported))
	})
	p := newPipes(t)
	_, err := s.Exec(t.Context(), ExecSpec{Task: "a", Path: "/bin/true", Files: p.theirs})
	closeAll(p.theirs[:2])
	if !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
	if b, err := io.ReadAll(p.out); len(b) > 0 || err != nil {
		t.Error("a descriptor was kept:", b, err)
	}
}

// having are the living processes with a variable.
func having(mark string) []int { return proctest.Marked(mark) }

// stubborn starts children that get away from their parent in every way, ignores
// SIGHUP and says so.
const stubborn = `trap '' HUP; sleep 3601 & setsid sleep 3602 & (setsid sh -c 'trap "" HUP; sleep 3603' &) ; echo up; while :; do sleep 0.05; done`

// What a command started ends with its client: also when it ignores SIGHUP, when
// the agent dies or when the supervisor does. The task lives on. All cases wait for
// their five seconds together.
func TestExecEndsWithClient(t *testing.T) {
	type leaving struct {
		*rig
		name, mark string
		task       Status
		began      time.Time
	}
	var all []leaving
	for name, leave := range map[string]func(*rig, *Session){
		"hang up": func(_ *rig, x *Session) { x.Hangup() },
		"close":   func(_ *rig, x *Session) { x.Close() },
		"agent":   func(r *rig, _ *Session) { r.agent() },
		"supervisor": func(r *rig, x *Session) {
			r.killSupervisor()
			if _, err := x.Wait(r.t.Context()); !errors.Is(err, ErrClosed) {
				r.t.Error(err)
			}
		},
	} {
		r := newRig(t)
		l := leaving{rig: r, name: name, mark: "EXEC=" + r.base, task: r.sleeper("a", "")}
		x, p := r.mustExec("a", "export "+l.mark+"; exec sh -c '"+strings.ReplaceAll(stubborn, "'", `'\''`)+"'")
		var up [3]byte
		if _, err := io.ReadFull(p.out, up[:]); err != nil {
			t.Fatal(err)
		}
		l.began = time.Now()
		leave(r, x)
		all = append(all, l)
	}
	for len(all) > 0 {
		var i int
		eventually(t, "the end of all that a command started", func() bool {
			i = slices.IndexFunc(all, func(l leaving) bool { return len(having(l.mark)) == 0 })
			return i >= 0
		})
		l := all[i]
		all = slices.Delete(all, i, i+1)
		if took := time.Since(l.began); took < hangupGrace-time.Second {
			t.Error(l.name, "killed before its time, after", took)
		}
		if startTime(l.task.PID) != l.task.Start {
			t.Error(l.name, "the task is gone")
		}
		eventually(t, "its record", func() bool {
			b, _ := os.ReadFile(l.dir + "/journal")
			j := parseJournal(string(b))
			return j.tasks["a"] != nil && len(j.tasks["a"].execs) == 0
		})
		// A look at many processes is none at one time: only now it is final.
		eventually(t, "nothing left", func() bool { return len(having(l.mark)) == 0 })
	}
}

// A command that obeys SIGHUP is gone at once and its end known, and what a
// command left behind that ended by itself is the task's: it goes with it.
func TestExecLeftovers(t *testing.T) {
	for mode, group := range places(t) {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.sleeper("a", group)
			x, _ := r.mustExec("a", "exec sleep 3600")
			x.Hangup()
			if st, err := x.Wait(t.Context()); err != nil || st.Signal != int(syscall.SIGHUP) {
				t.Errorf("%+v %v", st, err)
			}
			mark := "LEFT=" + r.base
			x, p := r.mustExec("a", "export "+mark+"; setsid sleep 3604 >/dev/null 2>&1 & exit 0")
			if st, err := x.Wait(t.Context()); err != nil || st.Code != 0 {
				t.Errorf("%+v %v", st, err)
			}
			_, _ = io.ReadAll(p.out)
			x.Close()
			r.killSupervisor()
			if len(having(mark)) != 1 {
				t.Error("what a command left in the background is gone:", having(mark))
			}
			if err := r.Destroy(t.Context(), "a"); err != nil {
				t.Error(err)
			}
			if l := having(mark); len(l) > 0 {
				t.Error("left:", l)
			}
		})
	}
}

// A record of a command whose pid is somebody else's by now harms nobody (FF-039).
func TestExecStaleRecord(t *testing.T) {
	r := newRig(t)
	st := r.sleeper("a", "")
	bystander := startProcess(t, "/bin/sleep", "3605")
	pid := r.pid()
	if err := r.p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	f, err := os.OpenFile(r.dir+"/journal", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	mark := strconv.FormatUint(markOf(r.dir, "a")|5, 10)
	_, _ = f.Write(line("R", "a", mark, itoa(bystander), "12345"))
	_ = f.Close()
	r.agent()
	if l, err := r.List(t.Context()); err != nil || len(l) != 1 || l[0].PID != st.PID {
		t.Fatal(l, err)
	}
	if err := r.Destroy(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if startTime(bystander) == 0 {
		t.Error("the bystander was killed")
	}
}

// startProcess starts a process that is none of a supervisor's.
func startProcess(t *testing.T, argv ...string) int {
	t.Helper()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	})
	return pid
}

// A hundred at once, twice: each with its own code, and nothing is left of them
// in agent, supervisor and journal.
func TestExecMany(t *testing.T) {
	r := newRig(t)
	group := places(t)["hybrid"]
	st := r.sleeper("a", group)
	fds := func(pid string) int { l, _ := os.ReadDir("/proc/" + pid + "/fd"); return len(l) }
	sup := itoa(r.pid())
	var own, theirs int
	for round := range 3 {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				x, p, err := r.exec("a", fmt.Sprintf("read -r n; echo got $n; exit %d", i))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = p.in.WriteString(itoa(i) + "\n")
				out, _ := io.ReadAll(p.out)
				end, err := x.Wait(t.Context())
				if err != nil || end.Code != i || string(out) != "got "+itoa(i)+"\n" {
					t.Errorf("%d: %+v %v %q", i, end, err, out)
				}
				x.Close()
				_, _ = p.in.Close(), p.out.Close()
			})
		}
		wg.Wait()
		if round == 0 {
			eventually(t, "rest", func() bool { r.Scope.mu.Lock(); defer r.Scope.mu.Unlock(); return len(r.execs) == 0 })
			own, theirs = fds("self"), fds(sup)
		}
	}
	eventually(t, "that no descriptor is left", func() bool { return fds("self") <= own && fds(sup) <= theirs })
	if p := cgroup.Procs(group); group != "" && !slices.Equal(p, []int{st.PID}) {
		t.Error("in the task's cgroup are", p)
	}
	b, _ := os.ReadFile(r.dir + "/journal")
	if j := parseJournal(string(b)); len(j.tasks["a"].execs) > 0 {
		t.Error(j.tasks["a"].execs)
	}
}

// The processes of a task that no cgroup holds, those of commands included.
func TestProcs(t *testing.T) {
	r := newRig(t)
	st := r.sleeper("a", "")
	r.sleeper("b", "")
	x, _ := r.mustExec("a", "setsid sleep 3606 & exec sleep 3607")
	eventually(t, "three processes", func() bool {
		l := r.Procs("a")
		return len(l) == 3 && slices.Contains(l, st.PID) && slices.Contains(l, x.PID())
	})
	if l := r.Procs("nobody"); len(l) > 0 {
		t.Error(l)
	}
}

// The connection of a command is for that one, and wants its descriptors.
func TestExecFrames(t *testing.T) {
	r := newRig(t)
	r.sleeper("a", "")
	f, err := dial(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	// Three descriptors must follow: a byte without any ends the connection.
	e := ExecSpec{Task: "a", Path: "/bin/true"}
	frame := newFrame(kExec, 1)
	e.encode(frame)
	if _, err := f.Write(append(frame.done(), 0)); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(f); len(b) > 0 {
		t.Errorf("%q", b)
	}
	_ = f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, _, err := r.do(ctx, kExecWait, false, naming("a")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, _, err := r.do(ctx, kHangup, false, naming("a")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
