// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// trees opens one tree in every hierarchy of this host that can track.
func trees(t *testing.T) map[string]*Tree {
	t.Helper()
	m := map[string]*Tree{}
	dirs := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer"}
	if os.Geteuid() != 0 {
		dirs = []string{""} // what is delegated to this user
	}
	for _, dir := range dirs {
		tree, err := Open(Config{Root: dir, Slice: "nk-test.slice", AgentID: fmt.Sprint(t.Name(), os.Getpid())})
		if err != nil {
			t.Fatal(err)
		}
		if tree.Mode() == None {
			continue
		}
		m[string(tree.Mode())] = tree
		t.Cleanup(func() {
			if err := tree.RemoveAll(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(tree.Dir()); err == nil {
				t.Errorf("%s is left", tree.Dir())
			}
		})
	}
	if len(m) == 0 {
		t.Skip("no usable hierarchy")
	}
	return m
}

func eachTree(t *testing.T, fn func(t *testing.T, tree *Tree)) {
	for mode, tree := range trees(t) {
		t.Run(mode, func(t *testing.T) { fn(t, tree) })
	}
}

// run forks a shell into the cgroup. Its end is reaped when the test is over.
func run(t *testing.T, path, script string) int {
	t.Helper()
	target, err := OpenTarget(path)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	fd := null.Fd()
	pid, err := target.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: []string{"PATH=/bin:/usr/bin"}, Files: []uintptr{fd, fd, fd}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	})
	return pid
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 20 s: %s", what)
}

// dead says that a process has ended; one that nobody reaped yet counts.
func dead(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	s := string(b)
	return strings.HasPrefix(s[strings.LastIndexByte(s, ')')+1:], " Z")
}

// FF-044: what a task starts is in its cgroup, whatever it does, and dies with it.
func TestForkKillRemove(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "web")
		if err := tree.Make(path); err != nil {
			t.Fatal(err)
		}
		before, _ := os.ReadFile("/proc/self/cgroup")
		main := run(t, path, "(setsid sh -c 'sleep 60 & exec sleep 61' &) ; exec sleep 62")
		eventually(t, "three processes", func() bool { return len(Procs(path)) == 3 })
		if after, _ := os.ReadFile("/proc/thread-self/cgroup"); string(after) != string(before) {
			t.Errorf("we are in %s, were in %s", after, before)
		}
		if p := Procs(path); !slices.Contains(p, main) || slices.Contains(p, os.Getpid()) {
			t.Errorf("%v", p)
		}
		pids := Procs(path)
		if l, err := tree.List(); err != nil || len(l) != 1 || l[0] != path {
			t.Error(l, err)
		}
		if err := tree.Remove(path); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			eventually(t, "the end of a process", func() bool { return dead(pid) })
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("the cgroup is left")
		}
		if err := tree.Remove(path); err != nil { // again
			t.Error(err)
		}
		if p := Procs(path); len(p) != 0 {
			t.Error(p)
		}
		Kill(path)
	})
}

// A cgroup that was killed kills what is forked into it later; Make and
// OpenTarget never give one like that.
func TestNeverReused(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "web")
		for _, renew := range []func() error{
			func() error { return tree.Make(path) },
			func() error { return nil }, // OpenTarget meets one that holds a process
		} {
			pid := run(t, path, "exec sleep 60")
			Kill(path)
			eventually(t, "the end", func() bool { return dead(pid) })
			if err := renew(); err != nil {
				t.Fatal(err)
			}
			if len(Procs(path)) == 0 { // else the zombie keeps it populated
				if err := tree.Make(path); err != nil {
					t.Fatal(err)
				}
			}
			ran := t.TempDir() + "/ran"
			pid = run(t, path, "sleep 0.05; : > "+ran+"; exec sleep 60")
			eventually(t, "the next one lives or was killed too", func() bool {
				_, err := os.Stat(ran)
				return err == nil || dead(pid)
			})
			if dead(pid) {
				t.Fatal("the next one was killed too")
			}
			if err := tree.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// OpenTarget makes what is missing, takes over what is empty and empties what is
// not.
func TestOpenTarget(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("a", "b")
		first := run(t, path, "exec sleep 60")
		second := run(t, path, "exec sleep 60")
		if !dead(first) || dead(second) {
			t.Errorf("first dead: %v, second dead: %v", dead(first), dead(second))
		}
		if err := tree.Remove(path); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"/proc/nothing", tree.Dir() + "/no\nline"} {
			if target, err := OpenTarget(bad); err == nil {
				target.Close()
				t.Errorf("opened %q", bad)
			}
		}
	})
}

// FF-046: a frozen cgroup, and one the task froze inside, is killed all the same.
func TestFrozen(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "web")
		inner := path + "/inner"
		run(t, path, "exec sleep 60")
		if err := os.Mkdir(inner, 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, inner, "exec sleep 60")
		if err := os.MkdirAll(inner+"/deeper/still", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{inner, path} {
			freeze(p, true)
			eventually(t, "frozen", func() bool {
				b, _ := os.ReadFile(p + "/freezer.state")
				e, _ := os.ReadFile(p + "/cgroup.events")
				return string(b) == "FROZEN\n" || strings.Contains(string(e), "frozen 1")
			})
		}
		pids := Procs(path)
		if len(pids) != 2 {
			t.Fatalf("%v", pids)
		}
		t0 := time.Now()
		if err := tree.RemoveAlloc("alloc"); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			eventually(t, "the end", func() bool { return dead(pid) })
		}
		t.Logf("removed after %v", time.Since(t0))
	})
}

// The older ways of a v2 kill: freeze, kill what is listed, thaw.
func TestKillByList(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "web")
		run(t, path, "while :; do (sleep 0.02 &); sleep 0.005; done") // forks all the time
		eventually(t, "children", func() bool { return len(Procs(path)) > 1 })
		killListed(path)
		if err := tree.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
}

// FF-048: a big process takes a while to die; two Removes at once wait for it and
// both succeed.
func TestRemoveWaits(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "big")
		run(t, path, "exec dd if=/dev/zero of=/dev/null bs=256M")
		eventually(t, "a quarter of a gigabyte", func() bool {
			pages := 0
			for _, pid := range Procs(path) {
				b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
				if f := strings.Fields(string(b)); len(f) > 1 {
					n, _ := strconv.Atoi(f[1])
					pages += n
				}
			}
			return pages >= 256<<20/4096
		})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := tree.Remove(path); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := os.Stat(path); err == nil {
			t.Error("left")
		}
	})
}

// Nothing outside the agent's own directory is touched.
func TestBounds(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		other, err := Open(Config{Root: filepath.Dir(filepath.Dir(tree.Dir())), Slice: "nk-test.slice", AgentID: "other"})
		if err != nil {
			t.Fatal(err)
		}
		theirs := other.Path("alloc", "web")
		pid := run(t, theirs, "exec sleep 60")
		for _, path := range []string{
			theirs, other.Dir(), tree.Dir(), tree.Dir() + "/", tree.Dir() + "/../other", tree.Dir() + "/x/../../other", "/tmp", "rel",
			strings.TrimSuffix(tree.Dir(), "x") + "y",
		} {
			if tree.Remove(path) == nil || tree.Make(path) == nil {
				t.Errorf("%s was accepted", path)
			}
		}
		if err := tree.RemoveAll(); err != nil {
			t.Fatal(err)
		}
		if dead(pid) {
			t.Error("another agent's task is dead")
		}
		if err := other.RemoveAll(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPathsAreDistinct(t *testing.T) {
	tree := &Tree{mode: V2, dir: "/sys/fs/cgroup/s/a"}
	long := strings.Repeat("x", 128)
	names := []string{"a", "a.b", "b", "a.b.c", "A", "a/b", "ü", "%", "%2E", ".", "..", "a\nb", long, long + "y", strings.Repeat(".", 128), strings.Repeat("/", 128), "x" + strings.Repeat("/", 127)}
	seen := map[string]string{}
	for _, a := range names {
		for _, b := range names {
			p := tree.Path(a, b)
			name := filepath.Base(p)
			if filepath.Dir(p) != tree.dir || len(name) > 255 || strings.ContainsAny(name, "/\n") || !strings.HasSuffix(name, ".scope") {
				t.Errorf("%q %q: %q", a, b, p)
			}
			if was, ok := seen[p]; ok {
				t.Errorf("%q %q and %s share %q", a, b, was, p)
			}
			seen[p] = fmt.Sprintf("%q %q", a, b)
			if p != tree.Path(a, b) {
				t.Error("not the same again")
			}
			for _, other := range names { // what RemoveAlloc goes by
				if strings.HasPrefix(name, escape(other, 100)+".") != (other == a) {
					t.Errorf("alloc %q takes %q of %q", other, name, a)
				}
			}
		}
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a.b", "a", 40)
	f.Add(strings.Repeat("x", 50), strings.Repeat("x", 51), 30)
	f.Fuzz(func(t *testing.T, a, b string, limit int) {
		limit = 20 + max(limit, -limit)%200
		limit = max(limit, 20)
		x, y := escape(a, limit), escape(b, limit)
		if len(x) > limit || strings.ContainsAny(x, "./\n") {
			t.Errorf("%q became %q", a, x)
		}
		if (x == y) != (a == b) {
			t.Errorf("%q and %q are %q and %q", a, b, x, y)
		}
	})
}

func TestNone(t *testing.T) {
	for _, cfg := range []Config{{AgentID: "a", Root: t.TempDir()}, {AgentID: "a", Root: "/nothing"}} {
		tree, err := Open(cfg)
		if err != nil || tree.Mode() != None || tree.Reason() == "" || tree.Dir() != "" {
			t.Fatalf("%+v %v", tree, err)
		}
		p := tree.Path("a", "b")
		l, lerr := tree.List()
		if p != "" || tree.Make(p) != nil || tree.Remove(p) != nil || tree.RemoveAlloc("a") != nil || tree.RemoveAll() != nil || l != nil || lerr != nil {
			t.Error("not a no-op")
		}
		if tree.Remove("/tmp") == nil {
			t.Error("removes what is no cgroup")
		}
	}
	if target, err := OpenTarget(""); err != nil || target.set {
		t.Error(err)
	}
	for _, cfg := range []Config{{}, {AgentID: "a", Slice: "a/b"}, {AgentID: "a", Slice: ".."}} {
		if _, err := Open(cfg); err == nil {
			t.Errorf("%+v", cfg)
		}
	}
}

// The agent finds a hierarchy by itself, and the best one.
func TestDetect(t *testing.T) {
	tree, err := Open(Config{AgentID: fmt.Sprint("nk-test-", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s in %s: %s", tree.Mode(), tree.Dir(), tree.Reason())
	if _, err := os.Stat("/sys/fs/cgroup/unified"); err == nil && os.Geteuid() == 0 && tree.Mode() != Hybrid {
		t.Errorf("mode %s beside a v2 tree", tree.Mode())
	}
	if err := tree.RemoveAll(); err != nil {
		t.Error(err)
	}
}

func TestDelegated(t *testing.T) {
	const own = "9:name=systemd:/\n6:freezer,net_cls:/docker/abc/x\n0::/user.slice/user-1000.slice/app.scope\n"
	for _, c := range []struct{ controller, sub, want string }{
		{"", "/", "/user.slice/user-1000.slice/app.scope"},
		{"", "/user.slice", "/user-1000.slice/app.scope"},
		{"freezer", "/docker/abc", "/x"},
		{"freezer", "/docker/abc/x", ""},
		{"memory", "/", ""},
	} {
		if got := delegated(own, c.controller, c.sub); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("%q", got)
	}
}

func TestOOMKills(t *testing.T) {
	dir := t.TempDir()
	if _, ok := OOMKills(dir); ok {
		t.Error("counted where nothing counts")
	}
	for text, want := range map[string]int{
		"low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n": 2,
		"oom_kill 0\n": 0,
	} {
		_ = os.WriteFile(dir+"/memory.events", []byte(text), 0o644)
		if n, ok := OOMKills(dir); !ok || n != want {
			t.Errorf("%d %v", n, ok)
		}
	}
	_ = os.WriteFile(dir+"/memory.events", []byte("low 0\noom_kill x\n"), 0o644)
	if _, ok := OOMKills(dir); ok {
		t.Error("nonsense is a number")
	}
}

// On a hybrid host nothing is enabled; on a v2 host what is there and is not yet.
func TestEnableOnlyInV2(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{dir, dir + "/s", dir + "/s/a"} {
		_ = os.MkdirAll(p, 0o755)
		_ = os.WriteFile(p+"/cgroup.subtree_control", nil, 0o644)
	}
	_ = os.WriteFile(dir+"/cgroup.controllers", []byte("io memory rdma\n"), 0o644)
	_ = os.WriteFile(dir+"/s/cgroup.subtree_control", []byte("memory"), 0o644)
	(&Tree{mode: Hybrid, top: dir, slice: dir + "/s", dir: dir + "/s/a"}).enable()
	if b, _ := os.ReadFile(dir + "/cgroup.subtree_control"); len(b) != 0 {
		t.Error("asked on a hybrid host")
	}
	tree := &Tree{mode: V2, top: dir, slice: dir + "/s", dir: dir + "/s/a"}
	tree.enable()
	for p, want := range map[string]string{dir: "+memory", dir + "/s": "memory", dir + "/s/a": "+memory"} {
		if b, _ := os.ReadFile(p + "/cgroup.subtree_control"); string(b) != want {
			t.Errorf("%s: %q", p, b)
		}
	}
	if l := tree.Lacking(); !strings.Contains(l, "cpu, pids, cpuset: "+dir) {
		t.Error(l)
	}
}
