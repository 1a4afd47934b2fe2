// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// killRounds is how often the tests of random kills try; more with KILL_ROUNDS.
var killRounds = func() int {
	if n, err := strconv.Atoi(os.Getenv("KILL_ROUNDS")); err == nil {
		return n
	}
	return 15
}()

// D7, FF-064: the supervisor dies; the next one, started by itself, finds the
// task, goes on with its log and reports its exit. The writer neither dies of
// SIGPIPE nor loses a line.
func TestSupervisorDies(t *testing.T) {
	r := newRig(t)
	st := r.start(r.sh("a", "for i in $(seq 1 200); do echo line $i; sleep 0.01; done; exit 5"))
	ended := make(chan Status, 1)
	go func() {
		st, err := r.Wait(context.Background(), "a")
		if err != nil {
			t.Error(err)
		}
		ended <- st
	}()
	for i := range 3 {
		r.waitLog("a.stdout", fmt.Sprintf("line %d\n", 30*(i+1)))
		r.killSupervisor()
	}
	l, err := r.Lookup(t.Context(), "a")
	if err != nil || l.PID != st.PID || l.Start != st.Start || !l.Adopted || l.Exited {
		t.Fatalf("%+v %v", l, err)
	}
	end := <-ended
	if !(end.Code == 5 && end.Err == "") && !(end.Code == -1 && end.Err != "") {
		t.Fatalf("%+v", end)
	}
	t.Logf("exit of an adopted task: %+v", end)
	want := ""
	for i := 1; i <= 200; i++ {
		want += fmt.Sprintf("line %d\n", i)
	}
	if got := r.log("a.stdout"); got != want {
		t.Fatalf("log has %d bytes, want %d", len(got), len(want))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.warns) != 3 {
		t.Errorf("warnings: %q", r.warns)
	}
}

// An exit while no supervisor lives is the true one if the kernel tells, and
// never 0 if it does not.
func TestExitBetweenSupervisors(t *testing.T) {
	r := newRig(t)
	st := r.start(r.sh("a", "echo up; exec sleep 60"))
	r.waitLog("a.stdout", "up")
	pid := r.pid()
	_ = r.p.Close()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	gone(t, pid)
	_ = syscall.Kill(st.PID, syscall.SIGTERM)
	gone(t, st.PID)
	r.agent()
	if end := r.wait("a"); end.Code != 143 && !(end.Code == -1 && end.Err != "") {
		t.Fatalf("%+v", end)
	} else {
		t.Logf("%+v", end)
	}
}

// FF-038: a record that points at somebody else's pid neither adopts nor kills
// it, and a socket that speaks garbage is no supervisor.
func TestBystander(t *testing.T) {
	r := newRig(t)
	by := exec.Command("/bin/sleep", "60")
	by.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := by.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = by.Process.Kill(), by.Wait() }()
	pid, began := by.Process.Pid, startTime(by.Process.Pid)
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rec := record{spec: Spec{ID: "a"}, mark: markOf(r.dir, "a"), st: Status{ID: "a", BootID: bootID(), PID: pid, Start: began + 1}}
	old := record{spec: Spec{ID: "b"}, mark: markOf(r.dir, "b"), st: Status{ID: "b", BootID: "another boot", PID: pid, Start: began}}
	if err := os.WriteFile(r.dir+"/journal", append(append(rec.lines(), old.lines()...), "S\tcut off"...), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", r.dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	})
	for _, id := range []string{"a", "b"} {
		if st := r.wait(id); st.Code != -1 || st.Err == "" {
			t.Fatalf("%+v", st)
		}
		if err := r.Stop(t.Context(), id, syscall.SIGTERM, 0); err != nil {
			t.Fatal(err)
		}
		r.destroy(id)
	}
	wrong := Identity{ID: "c", PID: pid, Start: began + 1, BootID: bootID()}
	if _, err := r.Adopt(t.Context(), wrong); !errors.Is(err, ErrNotProved) {
		t.Fatal(err)
	}
	_ = l.Close()
	wg.Wait()
	if startTime(pid) != began {
		t.Fatal("the bystander is gone")
	}
}

// FF-040: an agent that is killed takes the reading end of its pipes along. The
// supervisor must not notice.
func TestAgentKilled(t *testing.T) {
	r := newRig(t)
	agent := exec.Command("/proc/self/exe")
	agent.Env = append(os.Environ(), "NK_TEST_AGENT="+r.p.cfg.Dir)
	agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	errs, err := agent.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	if l, err := bufio.NewReader(out).ReadString('\n'); l != "started\n" {
		t.Fatal(l, err)
	}
	_ = syscall.Kill(-agent.Process.Pid, syscall.SIGKILL) // its whole group
	_ = errs.Close()
	_ = agent.Wait()
	st, err := r.Lookup(t.Context(), "a")
	if err != nil || st.Exited || st.Adopted {
		t.Fatalf("%+v %v", st, err)
	}
	r.logs = r.base
	r.waitLog("a.stdout", "up") // its trap is set
	pid := r.pid()
	for range 10 {
		if err := r.Signal(t.Context(), "a", syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Start(t.Context(), Spec{ID: "bad", Path: "/none"}); err == nil {
			t.Fatal("started")
		}
		now, err := r.Lookup(t.Context(), "a")
		if err != nil || now != st || r.pid() != pid {
			t.Fatalf("%+v, was %+v", now, st)
		}
	}
	r.waitLog("a.stdout", "got usr1")
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, 0); err != nil {
		t.Fatal(err)
	}
	if end := r.wait("a"); end.Signal == 0 {
		t.Fatalf("%+v", end)
	}
}

// Whenever the supervisor dies during starts, exactly one process per ID is
// there in the end, with a cgroup and without.
func TestSupervisorKilledDuringStart(t *testing.T) {
	groups := roots(t)
	groups["mark"] = ""
	for mode, root := range groups {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			adopted := 0
			for i := range killRounds {
				mark := fmt.Sprintf("%d.%d", 100000+i, os.Getpid())
				s := r.p.Scope(fmt.Sprint("round", i))
				_, victim, err := s.Hello(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				spec := func(k int) Spec {
					sp := Spec{ID: fmt.Sprint(k), Path: "/bin/sleep", Args: []string{"sleep", mark + strconv.Itoa(k)}}
					if root != "" {
						sp.Cgroup = fmt.Sprintf("%s/%s.scope", root, sp.ID)
					}
					return sp
				}
				var wg sync.WaitGroup
				for k := range 5 {
					wg.Go(func() {
						if _, err := s.Start(t.Context(), spec(k)); err != nil {
							t.Errorf("round %d: %v", i, err)
						}
					})
				}
				time.Sleep(time.Duration(i*7%50) * 300 * time.Microsecond) // the moment of death
				_ = syscall.Kill(victim, syscall.SIGKILL)
				wg.Wait()
				for k := range 5 {
					st, err := s.Start(t.Context(), spec(k))
					if err != nil {
						t.Fatal(err)
					}
					if st.Adopted {
						adopted++
					}
					if l := leaders(mark + strconv.Itoa(k)); len(l) != 1 || l[0] != st.PID {
						t.Fatalf("round %d: processes %v, want %d alone", i, l, st.PID)
					}
				}
				for k := range 5 {
					if err := s.Destroy(t.Context(), fmt.Sprint(k)); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d of %d tasks adopted", adopted, 5*killRounds)
		})
	}
}

// B without S without a cgroup: what had been forked is found by its mark and is
// the task, with all it has started in whatever session, and nobody else is.
func TestUnfinishedStartIsFoundByItsMark(t *testing.T) {
	r := newRig(t)
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fork := func(mark uint64, arg string) *exec.Cmd {
		c := exec.Command("/bin/sh", "-c", "setsid sleep "+arg+" & sleep "+arg+"1; true")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		defer setMark(mark)()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	arg := fmt.Sprintf("61.%d", os.Getpid())
	ours := fork(markOf(r.dir, "a"), arg)
	other := fork(markOf(r.dir, "b"), arg+"2")
	defer func() {
		_ = syscall.Kill(-other.Process.Pid, syscall.SIGKILL)
		for _, p := range marked(arg + "2") {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
		_ = other.Wait()
	}()
	eventually(t, "children", func() bool { return len(marked(arg)) == 1 && len(marked(arg+"2")) == 1 })
	rec := record{spec: Spec{ID: "a"}, mark: markOf(r.dir, "a"), st: Status{ID: "a", BootID: bootID()}}
	if err := os.WriteFile(r.dir+"/journal", rec.lines(), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := r.List(t.Context()); err != nil || len(l) != 1 || l[0].PID != ours.Process.Pid || !l[0].Adopted {
		t.Fatal(l, err)
	}
	r.destroy("a")
	_ = ours.Wait()
	if l := append(marked(arg), marked(arg+"1")...); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
	if len(marked(arg+"2")) != 1 || startTime(other.Process.Pid) == 0 {
		t.Error("another task's processes are gone")
	}
}

// The agent dies at any moment of a Start: the task runs once or not at all, is
// known to the next agent, and an empty supervisor leaves.
func TestAgentDiesDuringStart(t *testing.T) {
	r := newRig(t)
	for i := range killRounds * 4 {
		mark := fmt.Sprintf("%d.%d", 300000+i, os.Getpid())
		sp := Spec{ID: "a", Path: "/bin/sleep", Args: []string{"sleep", mark}}
		name := fmt.Sprint("round", i)
		s := r.p.Scope(name)
		if _, _, err := s.Hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { _, _ = s.Start(context.Background(), sp); close(done) }()
		time.Sleep(time.Duration(i%20) * 150 * time.Microsecond) // the moment of death
		r.agent()
		<-done
		s = r.p.Scope(name)
		st, err := s.Start(t.Context(), sp)
		if err != nil {
			t.Fatal(err)
		}
		if l := leaders(mark); len(l) != 1 || l[0] != st.PID {
			t.Fatalf("round %d: %v, want %d", i, l, st.PID)
		}
		if err := s.Destroy(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := s.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// FF-044, FF-057: whatever a task starts dies with it, by cgroup or by mark, and
// without a cgroup none is made.
func TestNothingSurvivesDestroy(t *testing.T) {
	groups := roots(t)
	groups["mark"] = ""
	for mode, root := range groups {
		for _, how := range []string{"stop", "exit", "supervisor killed", "destroy"} {
			t.Run(mode+"/"+how, func(t *testing.T) {
				r := newRig(t)
				arg := fmt.Sprintf("62.%d", os.Getpid())
				// A plain child, one in a session of its own, a daemon that forked
				// twice with nothing left of its parent, and one that ignores TERM.
				_ = syscall.Mkfifo(r.base+"/go", 0o600)
				sp := r.sh("a", strings.ReplaceAll(`sleep ARG &
					setsid sleep ARG &
					(setsid sh -c 'env -i /bin/sleep ARG </dev/null >/dev/null 2>&1 & exit' &)
					(trap '' TERM; exec sleep ARG) &
					echo up; read x < `, "ARG", arg)+r.base+"/go")
				if root != "" {
					sp.Cgroup = root + "/a.scope"
				}
				st := r.start(sp)
				r.waitLog("a.stdout", "up")
				if sp.Cgroup == "" {
					ours, _ := os.ReadFile("/proc/self/cgroup")
					if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", st.PID)); string(b) != string(ours) {
						t.Errorf("the task is in %s", b)
					}
				}
				eventually(t, "four children", func() bool { return len(marked(arg)) == 4 })
				switch how {
				case "stop":
					if err := r.Stop(t.Context(), "a", syscall.SIGTERM, 50*time.Millisecond); err != nil {
						t.Fatal(err)
					}
					r.wait("a")
				case "exit":
					if err := os.WriteFile(r.base+"/go", []byte("x\n"), 0); err != nil {
						t.Fatal(err)
					}
					if st := r.wait("a"); st.Code != 0 {
						t.Fatalf("%+v", st)
					}
				case "supervisor killed":
					r.killSupervisor()
				}
				r.destroy("a")
				if l := marked(arg); len(l) != 0 {
					t.Errorf("left: %v", l)
				}
				if startTime(st.PID) != 0 || sp.Cgroup != "" && exists(sp.Cgroup) {
					t.Error("main process or cgroup left")
				}
			})
		}
	}
}

// A graceful signal is for the main process alone.
func TestStopSignalReachesMainOnly(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", `(trap 'echo child' TERM; while :; do sleep 0.02; done) & trap 'sleep 0.1; echo main; exit 0' TERM; echo up; while :; do sleep 0.02; done`))
	r.waitLog("a.stdout", "up")
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Minute); err != nil {
		t.Fatal(err)
	}
	if st := r.wait("a"); st.Code != 0 {
		t.Fatalf("%+v", st)
	}
	if got := r.log("a.stdout"); got != "up\nmain\n" {
		t.Errorf("%q", got)
	}
}

// The supervisor is asked to go: it stays while a task runs, then leaves and
// keeps what nobody has asked for yet.
func TestSupervisorIsAskedToGo(t *testing.T) {
	r := newRig(t)
	_ = syscall.Mkfifo(r.base+"/go", 0o600)
	r.start(r.sh("a", "echo up; read x < "+r.base+"/go; echo end; exit 9"))
	r.waitLog("a.stdout", "up")
	pid := r.pid()
	_ = r.p.Close()
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT} {
		_ = syscall.Kill(pid, sig)
	}
	if startTime(pid) == 0 {
		t.Fatal("it left its task alone")
	}
	if err := os.WriteFile(r.base+"/go", []byte("x\n"), 0); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
	r.agent()
	if st := r.wait("a"); st.Code != 9 || st.Err != "" || r.log("a.stdout") != "up\nend\n" {
		t.Fatalf("%+v %q", st, r.log("a.stdout"))
	}
}

// FF-076: a collector that is killed and a task that is restarted quickly lose no
// line and never stall the writer for long.
func TestLogsOverRestarts(t *testing.T) {
	r := newRig(t)
	o, e := r.fifos("web")
	n := 0
	attempt := func(lines int) Status {
		sp := Spec{
			ID: fmt.Sprint("web/", n), Path: "/bin/sh", Stdout: o, Stderr: e, Env: []string{"PATH=/bin:/usr/bin"},
			Args: []string{"sh", "-c", fmt.Sprintf("i=%d; while [ $i -lt %d ]; do i=$((i+1)); echo \"line $i $(printf %%100s)\"; done", n, n+lines)},
		}
		n += lines
		return r.start(sp)
	}
	for range 5 {
		st := attempt(50)
		if end := r.wait(st.ID); end.Code != 0 {
			t.Fatalf("%+v", end)
		}
		r.destroy(st.ID)
	}
	for range 5 {
		from := n
		st := attempt(300)
		r.waitLog("web.stdout", fmt.Sprintf("line %d ", from+20))
		r.killSupervisor()
		if end := r.wait(st.ID); end.Code != 0 && end.Code != -1 {
			t.Fatalf("%+v", end)
		}
		r.destroy(st.ID)
	}
	var want strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&want, "line %d \n", i)
	}
	if got := strings.ReplaceAll(r.log("web.stdout"), strings.Repeat(" ", 101), " "); got != want.String() {
		t.Fatalf("%d bytes, want %d", len(got), want.Len())
	}
}

// (b) of the open gaps: an exit that happened with the agent away is known after
// a reboot, which leaves nothing of the runtime directory.
func TestExitIsKnownAfterReboot(t *testing.T) {
	for _, when := range []string{"agent away", "agent leaves unheard"} {
		t.Run(when, func(t *testing.T) {
			r := newRig(t)
			_ = syscall.Mkfifo(r.base+"/go", 0o600)
			disk := t.TempDir()
			sp := r.sh("a", "read x < "+r.base+"/go; exit 11")
			sp.ID, sp.ExitDir = "alloc/a/0", disk
			st := r.start(sp)
			if when == "agent away" {
				_ = r.p.Close()
			}
			if err := os.WriteFile(r.base+"/go", []byte("x\n"), 0); err != nil {
				t.Fatal(err)
			}
			gone(t, st.PID)
			if when != "agent away" {
				r.wait(st.ID)
				if l, _ := os.ReadDir(disk); len(l) != 0 {
					t.Fatalf("written although an agent was there: %v", l)
				}
				_ = r.p.Close()
			}
			eventually(t, "the record", func() bool { return exists(exitFile(disk, st.ID)) })
			for _, pid := range supervisors(r.p.cfg.Dir) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				gone(t, pid)
			}
			if err := os.RemoveAll(r.p.cfg.Dir); err != nil {
				t.Fatal(err)
			}
			// Another boot has another id, and the record tells of the old one.
			b, err := os.ReadFile(exitFile(disk, st.ID))
			if err != nil {
				t.Fatal(err)
			}
			b = []byte(strings.ReplaceAll(string(b), st.BootID, "the boot before"))
			if err := os.WriteFile(exitFile(disk, st.ID), b, 0o600); err != nil {
				t.Fatal(err)
			}
			r.agent()
			id := Identity{ID: st.ID, PID: st.PID, Start: st.Start, BootID: "the boot before", ExitDir: disk, Cgroup: sp.Cgroup}
			other := id
			other.Start++
			if _, err := r.Adopt(t.Context(), other); !errors.Is(err, ErrNotProved) {
				t.Fatalf("another process's record: %v", err)
			}
			for range 2 {
				got, err := r.Adopt(t.Context(), id)
				if err != nil || !got.Exited || got.Code != 11 || got.BootID != id.BootID {
					t.Fatalf("%+v %v", got, err)
				}
			}
			if end := r.wait(st.ID); end.Code != 11 {
				t.Fatalf("%+v", end)
			}
			r.destroy(st.ID)
			if l, _ := os.ReadDir(disk); len(l) != 0 {
				t.Fatalf("left: %v", l)
			}
			id.ExitDir = ""
			if _, err := r.Adopt(t.Context(), id); !errors.Is(err, ErrNotProved) {
				t.Fatal(err)
			}
		})
	}
}

// What lies in ExitDir is believed only if it can be ours.
func TestForgedExitRecord(t *testing.T) {
	dir := t.TempDir()
	st := Status{ID: "a", PID: 4711, Start: 5, BootID: "b", Exited: true, Code: 3, OOMKilled: true, Err: "x\ty"}
	if err := writeExit(dir, st); err != nil {
		t.Fatal(err)
	}
	want := Status{ID: "a", PID: 4711, Start: 5, BootID: "b"}
	if got, ok := readExit(dir, want); !ok || got != st {
		t.Fatalf("%+v", got)
	}
	if err := os.Rename(exitFile(dir, "a"), dir+"/real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", exitFile(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if _, ok := readExit(dir, want); ok {
		t.Error("a link is followed")
	}
	_ = os.Remove(exitFile(dir, "a"))
	_ = syscall.Mkfifo(exitFile(dir, "a"), 0o600)
	if _, ok := readExit(dir, want); ok {
		t.Error("a FIFO is read")
	}
	_ = os.Remove(exitFile(dir, "a"))
	_ = os.Rename(dir+"/real", exitFile(dir, "a"))
	if os.Geteuid() == 0 {
		_ = os.Chown(exitFile(dir, "a"), 65534, 0)
		if _, ok := readExit(dir, want); ok {
			t.Error("another user's file is believed")
		}
	}
	if _, err := os.Stat(exitFile(dir, strings.Repeat("/", 100))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name of a long ID: %v", err)
	}
}
