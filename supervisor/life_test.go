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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestExitCodeAndLogs(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		id := fmt.Sprint("t", i)
		st := r.start(r.sh(id, "seq 1 5000; echo oops >&2; exit 7"))
		if st.PID == 0 || st.Start == 0 || st.BootID == "" || st.Adopted {
			t.Fatalf("status %+v", st)
		}
		if st := r.wait(id); st.Code != 7 || !st.Exited || st.Signal != 0 || st.Err != "" {
			t.Fatalf("status %+v", st)
		}
		if out := r.log(id + ".stdout"); !strings.HasSuffix(out, "\n5000\n") {
			t.Fatalf("log not complete at exit: %d bytes", len(out))
		}
		if out := r.log(id + ".stderr"); out != "oops\n" {
			t.Fatalf("stderr %q", out)
		}
	}
}

func TestDeathBySignal(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "kill -SEGV $$"))
	if st := r.wait("a"); st.Code != 128+11 || st.Signal != 11 {
		t.Fatalf("%+v", st)
	}
}

// FF-079: exact bytes, also without a last newline and with more than a pipe
// holds, and whatever the two streams are doing at the end.
func TestTailIsNeverLost(t *testing.T) {
	runs := 100 // a thousand in ten repeats
	if testing.Short() {
		runs = 30
	}
	r := newRig(t)
	big := strings.Repeat("0123456789abcde\n", 300<<10/16)
	if err := os.WriteFile(r.base+"/big", []byte(big), 0o644); err != nil {
		t.Fatal(err)
	}
	scripts := []struct{ script, out, err string }{
		{"printf x", "x", ""},
		{"cat " + r.base + "/big", big, ""},
		{"printf a; printf b >&2; cat " + r.base + "/big >&2; printf c; printf d >&2", "ac", "b" + big + "d"},
	}
	o, e := r.fifos("web")
	var out, errs int
	for i := range runs {
		s := scripts[i%len(scripts)]
		id := fmt.Sprint("web/", i)
		r.start(Spec{ID: id, Path: "/bin/sh", Args: []string{"sh", "-c", s.script}, Env: []string{"PATH=/bin:/usr/bin"}, Stdout: o, Stderr: e})
		r.wait(id)
		gotOut, gotErr := tailOf(t, r.logs+"/web.stdout.0", out), tailOf(t, r.logs+"/web.stderr.0", errs)
		if gotOut != s.out || gotErr != s.err {
			t.Fatalf("run %d: %d and %d bytes, want %d and %d", i, len(gotOut), len(gotErr), len(s.out), len(s.err))
		}
		out, errs = out+len(gotOut), errs+len(gotErr)
		if out > 4<<20 || errs > 4<<20 { // before it rotates
			if err := r.EndLogs(t.Context(), "web"); err != nil {
				t.Fatal(err)
			}
			_ = os.Remove(r.logs + "/web.stdout.0")
			_ = os.Remove(r.logs + "/web.stderr.0")
			out, errs = 0, 0
			r.fifos("web")
		}
		r.destroy(id)
	}
}

// tailOf returns a file from an offset on; one that is not there is empty.
func tailOf(t *testing.T, name string, from int) string {
	t.Helper()
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(int64(from), io.SeekStart); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestStartIsIdempotentAndFailsClean(t *testing.T) {
	r := newRig(t)
	sp := r.sh("one", "sleep 60")
	var wg sync.WaitGroup
	pids := make([]int, 16)
	for i := range pids {
		wg.Go(func() {
			st, err := r.Start(t.Context(), sp)
			if err != nil {
				t.Error(err)
			}
			pids[i] = st.PID
		})
	}
	wg.Wait()
	for _, p := range pids {
		if p != pids[0] || p == 0 {
			t.Fatalf("pids %v", pids)
		}
	}
	notAProgram := r.base + "/text"
	script := r.base + "/script"
	_ = os.WriteFile(notAProgram, []byte("x"), 0o644)
	_ = os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755)
	group := map[string]string{"": ""}
	for m, dir := range roots(t) {
		group[m] = dir + "/bad.scope"
	}
	for _, cg := range group {
		for _, c := range []struct {
			sp   Spec
			is   error
			says string
		}{
			{Spec{Path: "/none"}, fs.ErrNotExist, "/none"},
			{Spec{Path: notAProgram}, fs.ErrPermission, notAProgram},
			{Spec{Path: script}, fs.ErrNotExist, "interpreter"},
			{Spec{Path: "/bin/true", Dir: "/no/dir"}, fs.ErrNotExist, "/no/dir"},
			{Spec{Path: "/bin/true", Stdout: "/no/dir/file"}, fs.ErrNotExist, "/no/dir/file"},
			{Spec{Path: "/bin/true", OOMScoreAdj: 5000}, syscall.EINVAL, "5000"},
			{Spec{Path: "/bin/true", Cgroup: "/proc/nothing"}, fs.ErrNotExist, "/proc/nothing"},
		} {
			c.sp.ID = "bad"
			if c.sp.Cgroup == "" {
				c.sp.Cgroup = cg
			}
			_, err := r.Start(t.Context(), c.sp)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v", c.sp, err)
			}
			if l, _ := r.List(t.Context()); len(l) != 1 {
				t.Fatalf("list %v", l)
			}
			if cg != "" && exists(cg) {
				t.Fatalf("%s is left", cg)
			}
		}
		r.start(Spec{ID: "bad", Path: "/bin/true", Cgroup: cg}) // the ID is free again
		r.destroy("bad")
	}
}

func TestInvalid(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	if _, err := r.Start(ctx, Spec{Path: "/bin/true"}); err == nil {
		t.Error("a spec without ID")
	}
	if _, err := r.Start(ctx, Spec{ID: "a", Path: "/bin/true", Env: []string{strings.Repeat("x", 5<<20)}}); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("too long a request: %v", err)
	}
	if _, err := r.Start(ctx, Spec{ID: "a", Path: "/bin/true", Env: []string{"A=\x00"}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("NUL: %v", err)
	}
	for _, l := range []LogSpec{{}, {Task: "a", Dir: "rel"}, {Task: "a/b", Dir: r.logs}, {Task: strings.Repeat("x", 250), Dir: r.logs}, {ID: "x", Dir: r.logs}} {
		if _, _, err := r.Logs(ctx, l); err == nil {
			t.Errorf("%+v", l)
		}
	}
	for _, name := range []string{"", strings.Repeat("/", 100)} {
		s := r.p.Scope(name)
		if err := s.Signal(ctx, "a", syscall.SIGHUP); err == nil || s.Release(ctx) == nil {
			t.Errorf("scope name %q", name)
		}
	}
	for what, err := range map[string]error{
		"signal": r.Signal(ctx, "a", syscall.SIGHUP), "stop": r.Stop(ctx, "a", syscall.SIGHUP, 0), "destroy": r.Destroy(ctx, "a"),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := r.Wait(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if _, err := r.Lookup(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := r.EndLogs(ctx, "nobody"); err != nil {
		t.Error(err)
	}
	for _, cfg := range []PoolConfig{{}, {Dir: "rel"}, {Dir: r.base + "/x", Exe: "/none"}, {Dir: r.base + "/x", Exe: r.logs}} {
		if _, err := NewPool(cfg); err == nil {
			t.Errorf("%+v", cfg)
		}
	}
}

func TestOneSupervisorPerScope(t *testing.T) {
	dir := base(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	var pools []*Pool
	for range 16 {
		wg.Go(func() {
			p, err := NewPool(PoolConfig{Dir: dir + "/run", Env: quick})
			if err != nil {
				t.Error(err)
				return
			}
			_, pid, err := p.Scope("s").Hello(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[pid] = true
			pools = append(pools, p)
		})
	}
	wg.Wait()
	if len(seen) != 1 {
		t.Fatalf("supervisors: %v", seen)
	}
	for _, p := range pools {
		_ = p.Close()
	}
	for pid := range seen { // nobody connected and nothing held: it leaves by itself
		gone(t, pid)
	}
	eventually(t, "the scope's directory gone", func() bool { return !exists(dir + "/run/s") })
}

func TestReattachFindsMissedExit(t *testing.T) {
	r := newRig(t)
	_ = syscall.Mkfifo(r.base+"/go", 0o600)
	st := r.start(r.sh("a", "read x < "+r.base+"/go; exit 3"))
	_ = r.p.Close()
	if err := os.WriteFile(r.base+"/go", []byte("x\n"), 0); err != nil { // waits for the task's open
		t.Fatal(err)
	}
	gone(t, st.PID)
	r.agent()
	if end := r.wait("a"); end.Code != 3 || end.PID != st.PID || end.Start != st.Start {
		t.Fatalf("%+v", end)
	}
	l, err := r.List(t.Context())
	if err != nil || len(l) != 1 || !l[0].Exited || l[0].Code != 3 || l[0].BootID != st.BootID {
		t.Fatalf("list %+v %v", l, err)
	}
}

func TestGrandchildDoesNotDelayExit(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "echo hello; (sleep 0.3; echo later) & exit 4"))
	if st := r.wait("a"); st.Code != 4 {
		t.Fatalf("%+v", st)
	}
	if out := r.log("a.stdout"); out != "hello\n" {
		t.Fatalf("log %q", out)
	}
	r.waitLog("a.stdout", "later") // collected until Destroy
}

func TestStopEscalates(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "trap '' TERM; echo up; while :; do sleep 1; done"))
	r.waitLog("a.stdout", "up")
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, 50*time.Millisecond); err != nil { // only shortens
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Hour); err != nil {
		t.Fatal(err)
	}
	if st := r.wait("a"); st.Signal != 9 || st.Code != 137 {
		t.Fatalf("%+v", st)
	}
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.Signal(t.Context(), "a", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// The kill after the grace comes also when the agent is gone, and when the
// supervisor that promised it is.
func TestStopOutlivesAgentAndSupervisor(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "trap '' TERM; echo up; while :; do sleep 1; done"))
	r.waitLog("a.stdout", "up")
	if err := r.Stop(t.Context(), "a", syscall.SIGTERM, 400*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r.killSupervisor()
	// Kernels before 6.15 do not tell how one ended that is nobody's child.
	if st := r.wait("a"); !st.Adopted || st.Signal != 9 && !strings.HasPrefix(st.Err, notSeen) {
		t.Fatalf("%+v", st)
	}
}

func TestSignal(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "trap 'echo got; exit 5' USR1; echo up; while :; do sleep 0.01; done"))
	r.waitLog("a.stdout", "up")
	if err := r.Signal(t.Context(), "a", syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if st := r.wait("a"); st.Code != 5 || r.log("a.stdout") != "up\ngot\n" {
		t.Fatalf("%+v", st)
	}
}

// Many may wait, before and after the exit, and one that gives up takes nothing
// from the others.
func TestWaitIsShared(t *testing.T) {
	r := newRig(t)
	r.start(r.sh("a", "trap 'exit 6' TERM; echo up; while :; do sleep 0.01; done"))
	r.waitLog("a.stdout", "up")
	short, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, err := r.Wait(short, "a")
		gaveUp <- err
	}()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if st, err := r.Wait(t.Context(), "a"); err != nil || st.Code != 6 {
				t.Errorf("%+v %v", st, err)
			}
		})
	}
	cancel()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := r.Signal(t.Context(), "a", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for range 3 {
		if st := r.wait("a"); st.Code != 6 {
			t.Fatalf("%+v", st)
		}
	}
}
