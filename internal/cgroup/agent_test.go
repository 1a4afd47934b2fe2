// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package cgroup

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestMain is also an agent of its own: what this process may not be moved for.
func TestMain(m *testing.M) {
	switch os.Getenv("NK_CGROUP_AGENT") {
	case "agent":
		os.Exit(testAgent())
	case "namespace":
		os.Exit(enterNamespace())
	}
	os.Exit(m.Run())
}

// report is what an agent of the tests tells after each command.
type report struct {
	Mode        Mode
	Dir, Reason string
	Controllers []string
	Lacking     string
	Own         string // its cgroup
	Pid         int    // of a task
	OOM         bool   // kills for want of memory are counted in the task's scope
	Err         string
}

// testAgent opens a tree and does what its input says: make, task, clean.
func testAgent() int {
	cfg := Config{AgentID: os.Getenv("NK_ID"), Slice: "nk-test.slice"}
	if pid, err := strconv.Atoi(os.Getenv("NK_MINE")); err == nil {
		cfg.Mine = func(p int) bool { return p == pid }
	}
	tree, err := Open(cfg)
	if err != nil {
		println(err.Error())
		return 1
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for task := 0; ; {
		b, _ := os.ReadFile("/proc/self/cgroup")
		_, own, _ := strings.Cut("\n"+string(b), "\n0::")
		path := tree.Path("alloc", "web")
		r := report{Mode: tree.Mode(), Dir: tree.Dir(), Reason: tree.Reason(), Controllers: tree.Controllers(), Lacking: tree.Lacking(),
			Own: strings.TrimSpace(own), Pid: task}
		_, r.OOM = OOMKills(path)
		if err != nil {
			r.Err = err.Error()
		}
		if out.Encode(r) != nil || !in.Scan() {
			return 0
		}
		switch in.Text() {
		case "make":
			err = tree.Make(path)
		case "task":
			task, err = sleepIn(path, nil)
		case "clean":
			err = tree.RemoveAll()
			_, _ = syscall.Wait4(task, nil, 0, nil)
		}
	}
}

// sleepIn forks a task into a cgroup.
func sleepIn(path string, cred *syscall.Credential) (int, error) {
	target, err := OpenTarget(path)
	if err != nil {
		return 0, err
	}
	defer target.Close()
	return target.ForkExec("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{
		Env: []string{"PATH=/bin:/usr/bin"}, Sys: &syscall.SysProcAttr{Setsid: true, Credential: cred},
	})
}

// enterNamespace makes the process' cgroup the root of what it sees, as in a
// container, and runs the agent there.
func enterNamespace() int {
	runtime.LockOSThread()
	err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP)
	if err == nil {
		err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	}
	if err == nil {
		err = syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH)
	}
	if err == nil {
		err = syscall.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "")
	}
	if err == nil {
		_ = os.Setenv("NK_CGROUP_AGENT", "agent")
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	println(err.Error())
	return 1
}

// agentIn is an agent that was started in a cgroup.
type agentIn struct {
	t   *testing.T
	pid int
	in  *os.File
	out *json.Decoder
}

// startAgent starts one in a cgroup, as a user.
func startAgent(t *testing.T, dir string, uid int, env ...string) (*agentIn, report) {
	t.Helper()
	target, err := JoinTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := target.ForkExec("/proc/self/exe", []string{"agent"}, &syscall.ProcAttr{
		Dir: "/", Env: append(env, "NK_CGROUP_AGENT=agent", "NK_ID=one", "GORACE=atexit_sleep_ms=0"), // of two the first counts
		Files: []uintptr{inR.Fd(), outW.Fd(), 2}, Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}},
	})
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		_, _ = inW.Close(), outR.Close()
		t.Fatal(err)
	}
	a := &agentIn{t, pid, inW, json.NewDecoder(outR)}
	t.Cleanup(func() {
		a.kill()
		_, _ = inW.Close(), outR.Close()
	})
	return a, a.read()
}

func (a *agentIn) kill() {
	if a.pid != 0 {
		_ = syscall.Kill(a.pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(a.pid, nil, 0, nil)
		a.pid = 0
	}
}

func (a *agentIn) read() (r report) {
	a.t.Helper()
	if err := a.out.Decode(&r); err != nil {
		a.t.Fatal("the agent has ended: ", err)
	}
	return r
}

func (a *agentIn) do(what string) report {
	a.t.Helper()
	_, _ = io.WriteString(a.in, what+"\n")
	r := a.read()
	if r.Err != "" {
		a.t.Fatalf("%s: %s", what, r.Err)
	}
	return r
}

const nobody = 65534

// v2Base makes a cgroup for a test in the v2 tree, with all that can be had
// handed down to it, and returns it and its path in the hierarchy.
func v2Base(t *testing.T) (dir, path string, have []string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can delegate a cgroup")
	}
	mount := ""
	for _, m := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if mode := modeOf(m); mode == V2 || mode == Hybrid {
			mount = m
		}
	}
	if mount == "" {
		t.Skip("no v2 tree")
	}
	have = controllersOf(mount)
	for _, c := range have {
		_ = write(mount+"/cgroup.subtree_control", "+"+c)
	}
	path = fmt.Sprintf("/nk-test-base-%d", os.Getpid())
	dir = mount + path
	if err := Make(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, path, have
}

// delegate gives the cgroup to a user, as a service manager does.
func delegate(t *testing.T, dir string, uid int) {
	t.Helper()
	for _, f := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} {
		if err := os.Chown(dir+f, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

func bystander(t *testing.T, dir string, uid int) int {
	t.Helper()
	target, err := JoinTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	pid, err := target.ForkExec("/bin/sleep", []string{"sleep", "600"}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(pid) })
	return pid
}

func end(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_, _ = syscall.Wait4(pid, nil, 0, nil)
}

// D12: what a user's agent is given is used, with all controllers; the agent
// leaves the place that has to be empty for that, survives being killed, and
// leaves everything as it was.
func TestDelegatedAgent(t *testing.T) {
	for name, env := range map[string]string{"user": "NK_CGROUP_AGENT=agent", "container": "NK_CGROUP_AGENT=namespace"} {
		t.Run(name, func(t *testing.T) {
			dir, path, have := v2Base(t)
			uid := nobody
			if name == "container" {
				uid, path = 0, ""
			} else {
				delegate(t, dir, uid)
			}
			inner := "/nk-test.slice/one"
			home, leaf := path, path+inner+"/"+leafName
			if len(have) == 0 { // nothing to enable, nothing to leave for
				leaf = path
			}
			a, r := startAgent(t, dir, uid, env)
			check := func(r report, own string) {
				t.Helper()
				if own == "" {
					own = "/"
				}
				if r.Mode == None || !strings.HasSuffix(r.Dir, home+inner) || r.Own != own || !slices.Equal(r.Controllers, sorted(have)) {
					t.Errorf("%+v, want it in %s with %v", r, own, have)
				}
				if lacks := len(without(wanted, have)) > 0 && r.Mode == V2; (r.Lacking != "") != lacks {
					t.Errorf("lacking: %q", r.Lacking)
				}
			}
			check(r, leaf)
			r = a.do("task")
			if r.OOM != slices.Contains(have, "memory") {
				t.Errorf("%+v", r)
			}
			if name == "user" { // killed, and a program that starts itself anew starts in the leaf
				task := r.Pid
				a.kill()
				in := dir
				if len(have) > 0 {
					in += inner + "/" + leafName
				}
				a, r = startAgent(t, in, uid, env)
				check(r, leaf)
				if dead(task) {
					t.Error("the task died with its agent")
				}
				check(a.do("make"), leaf) // ends it
				eventually(t, "the task's end", func() bool { return dead(task) })
			}
			check2 := a.do("clean")
			if check2.Own != "/"+strings.TrimPrefix(home, "/") || len(children(dir)) != 0 || len(enabledIn(dir)) != 0 {
				t.Errorf("left: %+v, %v, %v", check2, children(dir), enabledIn(dir))
			}
		})
	}
}

func sorted(have []string) []string {
	l := []string{} // in the kernel's order
	for _, c := range []string{"cpuset", "cpu", "memory", "pids"} {
		if slices.Contains(have, c) {
			l = append(l, c)
		}
	}
	if len(l) == 0 {
		return nil
	}
	return l
}

// A service manager starts its unit's processes in the cgroup it delegated. With
// controllers enabled there it could not, beside tasks that live on: so they are
// not, and the agent says what that costs.
func TestManagedCgroupStaysUsable(t *testing.T) {
	dir, path, have := v2Base(t)
	if len(have) == 0 {
		t.Skip("no controller is in the v2 tree")
	}
	delegate(t, dir, nobody)
	if err := syscall.Setxattr(dir, "user.delegate", []byte("1"), 0); err != nil {
		t.Skip(err)
	}
	a, r := startAgent(t, dir, nobody)
	if r.Own != path || len(r.Controllers) != 0 || !strings.Contains(r.Lacking, "service manager") {
		t.Errorf("%+v", r)
	}
	task := a.do("task").Pid
	a.kill()
	a, _ = startAgent(t, dir, nobody) // the unit is started again
	if dead(task) {
		t.Error("the task is dead")
	}
	a.do("clean")
	eventually(t, "the task's end", func() bool { return dead(task) })
	// And this is what would happen.
	if err := os.Mkdir(dir+"/child", 0o755); err != nil {
		t.Fatal(err)
	}
	a.kill()
	if err := write(dir+"/cgroup.subtree_control", "+memory"); err != nil {
		t.Fatal(err)
	}
	target, err := JoinTarget(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if pid, err := target.ForkExec("/bin/sleep", []string{"sleep", "1"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{}}); err != syscall.EBUSY {
		end(pid)
		t.Errorf("the kernel allows it: %v", err)
	}
}

// What is not the agent's is not moved: it is named, and once it is gone the
// controllers come with the next task.
func TestStrangerInTheWay(t *testing.T) {
	dir, _, have := v2Base(t)
	if len(have) == 0 {
		t.Skip("no controller is in the v2 tree")
	}
	delegate(t, dir, nobody)
	stranger, supervisor := bystander(t, dir, 0), bystander(t, dir, nobody)
	a, r := startAgent(t, dir, nobody, "NK_MINE="+strconv.Itoa(supervisor))
	if len(r.Controllers) != 0 || !strings.Contains(r.Lacking, " "+strconv.Itoa(stranger)) || strings.Contains(r.Lacking, strconv.Itoa(supervisor)) {
		t.Errorf("%+v", r)
	}
	if l := procsOf(dir); len(l) != 1 || l[0] != stranger {
		t.Errorf("%v are left in the way, want %d", l, stranger)
	}
	if r = a.do("task"); r.OOM {
		t.Errorf("%+v", r)
	}
	end(stranger)
	if r = a.do("make"); !slices.Equal(r.Controllers, sorted(have)) || r.OOM != slices.Contains(have, "memory") {
		t.Errorf("%+v", r)
	}
	if l := Procs(r.Dir + "/" + leafName); !slices.Equal(l, slices.Sorted(slices.Values([]int{supervisor, a.pid}))) {
		t.Errorf("%v are in the leaf", l)
	}
	end(supervisor)
	a.do("clean")
}

// Two agents that were started in one cgroup each leave it; the second to do so
// enables the controllers, the first has them from its next task on.
func TestTwoAgentsInOneCgroup(t *testing.T) {
	dir, _, have := v2Base(t)
	if len(have) == 0 {
		t.Skip("no controller is in the v2 tree")
	}
	delegate(t, dir, nobody)
	waiting := bystander(t, dir, 0) // the second, before it opens its tree
	a, r := startAgent(t, dir, nobody)
	if len(r.Controllers) != 0 || r.Lacking == "" {
		t.Errorf("%+v", r)
	}
	b, _ := startAgent(t, dir, nobody, "NK_ID=two")
	end(waiting)
	for _, x := range []*agentIn{a, b, a} {
		if r = x.do("make"); !slices.Equal(r.Controllers, sorted(have)) || !r.OOM {
			t.Errorf("%+v", r)
		}
	}
	task := b.do("task").Pid
	if r = a.do("clean"); dead(task) || r.Own == "" {
		t.Errorf("%+v", r)
	}
	a.kill()
	if r = b.do("make"); !slices.Equal(r.Controllers, sorted(have)) {
		t.Errorf("after the other went: %+v", r)
	}
	if _, err := os.Stat(filepath.Dir(r.Dir) + "/one"); err == nil { // empty, for its next start
		a, _ = startAgent(t, r.Dir+"/"+leafName, nobody)
		b.do("clean")
		a.do("clean")
	}
}

// Without any right there is no hierarchy, and the reason says what to do.
func TestNoRight(t *testing.T) {
	dir, _, _ := v2Base(t)
	_, r := startAgent(t, dir, nobody)
	if r.Mode != None || !strings.Contains(r.Reason, "permission denied") || !strings.Contains(r.Reason, "delegated") {
		t.Errorf("%+v", r)
	}
}

// Root on a host of its own has all controllers and stays where it is.
func TestRootStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	before, _ := os.ReadFile("/proc/self/cgroup")
	for range 2 {
		tree, err := Open(Config{AgentID: fmt.Sprint(t.Name(), os.Getpid()), Slice: "nk-test.slice"})
		if err != nil {
			t.Fatal(err)
		}
		if tree.Mode() == V2 && (len(tree.Controllers()) != len(controllersOf(filepath.Dir(filepath.Dir(tree.Dir())))) || tree.Lacking() != "") {
			t.Errorf("%v, %q", tree.Controllers(), tree.Lacking())
		}
		if err := tree.RemoveAll(); err != nil {
			t.Error(err)
		}
	}
	if after, _ := os.ReadFile("/proc/self/cgroup"); string(after) != string(before) {
		t.Errorf("we are in %s, were in %s", after, before)
	}
}
