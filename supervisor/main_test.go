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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// quick keeps a race-detecting supervisor from sleeping a second at its exit.
var quick = []string{"GORACE=atexit_sleep_ms=0"}

// TestMain is also an agent of its own, for the tests that kill one, and a creator.
func TestMain(m *testing.M) {
	if creator.Asked(os.Args) {
		os.Exit(fakeCreator())
	}
	if dir := os.Getenv("NK_TEST_AGENT"); dir != "" {
		os.Exit(testAgent(dir))
	}
	code := m.Run()
	reapSupervisors(0, false)
	os.Exit(code)
}

// testAgent starts the task "a", says so and waits to be killed.
func testAgent(dir string) int {
	p, err := NewPool(PoolConfig{Dir: dir, Env: quick})
	if err != nil {
		println(err.Error())
		return 1
	}
	ctx := context.Background()
	s := p.Scope("s")
	o, e, err := s.Logs(ctx, LogSpec{Task: "a", Dir: filepath.Dir(dir)})
	if err == nil {
		_, err = s.Start(ctx, Spec{
			ID: "a", Path: "/bin/sh", Stdout: o, Stderr: e,
			Args: []string{"sh", "-c", "trap 'echo got usr1' USR1; echo up; while :; do sleep 0.05; done"},
			Env:  []string{"PATH=/bin:/usr/bin"},
		})
	}
	if err != nil {
		println(err.Error())
		return 1
	}
	fmt.Println("started")
	select {}
}

// rig is one scope in a directory of its own.
type rig struct {
	*Scope
	t     *testing.T
	p     *Pool
	base  string // holds all else
	logs  string
	mu    sync.Mutex
	warns []string
}

// base returns a directory on tmpfs, where the real ones are.
func base(t *testing.T) string {
	t.Helper()
	shm := "/dev/shm"
	if _, err := os.Stat(shm); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(shm, "nk-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newRig(t *testing.T) *rig { return newRigAt(t, base(t), PoolConfig{}) }

func newRigAt(t *testing.T, dir string, cfg PoolConfig) *rig {
	t.Helper()
	r := &rig{t: t, base: dir, logs: dir + "/logs"}
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg.Dir, cfg.Env = dir+"/run", append(cfg.Env, quick...)
	cfg.Warn = func(m string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.warns = append(r.warns, m)
	}
	p, err := NewPool(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.p, r.Scope = p, p.Scope("s")
	t.Cleanup(r.clean)
	return r
}

// agent is what a restarted agent would have: another pool on the same directory.
func (r *rig) agent() {
	r.t.Helper()
	if err := r.p.Close(); err != nil {
		r.t.Error(err)
	}
	p, err := NewPool(r.p.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.p, r.Scope = p, p.Scope("s")
}

// clean leaves nothing, whatever happened, and fails if something is left.
func (r *rig) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = r.p.Close()
	p, err := NewPool(r.p.cfg)
	if err != nil {
		r.t.Error(err)
		return
	}
	names, err := p.Names()
	if err != nil {
		r.t.Error(err)
	}
	for _, n := range names {
		s := p.Scope(n)
		l, err := s.List(ctx)
		if err != nil {
			r.t.Errorf("list %s: %v", n, err)
		}
		for _, st := range l {
			if err := s.Destroy(ctx, st.ID); err != nil {
				r.t.Errorf("destroy %s: %v", st.ID, err)
			}
		}
		if err := s.Release(ctx); err != nil {
			r.t.Errorf("release %s: %v", n, err)
		}
	}
	if err := p.Close(); err != nil {
		r.t.Error(err)
	}
	for _, pid := range supervisors(r.p.cfg.Dir) { // one that leaves by itself may be at it
		gone(r.t, pid)
	}
	if l, _ := os.ReadDir(r.p.cfg.Dir); len(l) > 0 {
		r.t.Errorf("left in the runtime directory: %v", l)
	}
	if r.t.Failed() {
		r.t.Logf("warnings: %q", r.warns)
	}
}

// supervisors returns the pids of those below dir that are no zombies.
func supervisors(dir string) (l []int) {
	for pid, args := range processes() {
		if args[0] == argv0 && len(args) > 1 && strings.HasPrefix(args[1], dir+"/") {
			l = append(l, pid)
		}
	}
	return l
}

// processes returns the command lines of all processes that are no zombies. A
// process in exec has closed its files, so that its start is known, a moment
// before it has a command line.
func processes() map[int][]string {
	m := map[int][]string{}
	des, _ := os.ReadDir("/proc")
	for _, e := range des {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		for err == nil && len(b) == 0 {
			if _, gone := os.Readlink("/proc/" + e.Name() + "/exe"); gone != nil {
				break // a zombie or a thread of the kernel
			}
			b, err = os.ReadFile("/proc/" + e.Name() + "/cmdline")
		}
		if len(b) > 0 {
			m[pid] = strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		}
	}
	return m
}

// marked returns the processes that have mark among their arguments.
func marked(mark string) (l []int) {
	for pid, args := range processes() {
		if slices.Contains(args, mark) {
			l = append(l, pid)
		}
	}
	return l
}

// leaders returns those of marked that lead a session, as a task's main process
// does and a child it has just forked does not.
func leaders(mark string) (l []int) {
	for _, pid := range marked(mark) {
		if st := procStat(pid); st != nil && st[statSession] == itoa(pid) {
			l = append(l, pid)
		}
	}
	return l
}

// eventually waits for what no event tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}

func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "end of process "+itoa(pid), func() bool { return startTime(pid) == 0 })
}

func (r *rig) fifos(task string) (stdout, stderr string) {
	r.t.Helper()
	o, e, err := r.Logs(r.t.Context(), LogSpec{Task: task, Dir: r.logs})
	if err != nil {
		r.t.Fatal(err)
	}
	return o, e
}

// sh is a shell task whose logs go to the task of its ID.
func (r *rig) sh(id, script string) Spec {
	r.t.Helper()
	o, e := r.fifos(id)
	return Spec{ID: id, Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin"}, Stdout: o, Stderr: e}
}

func (r *rig) start(sp Spec) Status {
	r.t.Helper()
	st, err := r.Start(r.t.Context(), sp)
	if err != nil {
		r.t.Fatalf("start %s: %v", sp.ID, err)
	}
	return st
}

func (r *rig) wait(id string) Status {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	st, err := r.Wait(ctx, id)
	if err != nil {
		r.t.Fatalf("wait %s: %v", id, err)
	}
	return st
}

func (r *rig) destroy(id string) {
	r.t.Helper()
	if err := r.Destroy(r.t.Context(), id); err != nil {
		r.t.Fatalf("destroy %s: %v", id, err)
	}
}

func (r *rig) pid() int {
	r.t.Helper()
	_, pid, err := r.Hello(r.t.Context())
	if err != nil || pid == 0 {
		r.t.Fatalf("hello: %d %v", pid, err)
	}
	return pid
}

// killSupervisor ends it like a crash and waits until it is gone.
func (r *rig) killSupervisor() int {
	r.t.Helper()
	pid := r.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	gone(r.t, pid)
	return pid
}

// log returns all of a task's log in order of the files.
func (r *rig) log(name string) string {
	r.t.Helper()
	var b []byte
	for n := 0; ; n++ {
		f, err := os.ReadFile(fmt.Sprintf("%s/%s.%d", r.logs, name, n))
		if err != nil {
			return string(b)
		}
		b = append(b, f...)
	}
}

func (r *rig) waitLog(name, text string) {
	r.t.Helper()
	eventually(r.t, text+" in "+name, func() bool { return strings.Contains(r.log(name), text) })
}

// roots are the hierarchies of this host that can track.
func roots(t *testing.T) map[string]string {
	m := map[string]string{}
	dirs := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"}
	if os.Geteuid() != 0 {
		dirs = []string{""} // what is delegated to this user
	}
	for _, dir := range dirs {
		tree, err := cgroup.Open(cgroup.Config{Root: dir, Slice: "nk-test", AgentID: fmt.Sprint(os.Getpid())})
		if err != nil {
			t.Fatal(err)
		}
		if tree.Mode() == cgroup.None {
			continue
		}
		m[string(tree.Mode())] = tree.Dir()
		t.Cleanup(func() {
			if err := tree.RemoveAll(); err != nil {
				t.Error(err)
			}
		})
	}
	return m
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
