// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// D15: the pair is the task's, from the first Logs to EndLogs, over attempts and
// whoever writes.
func TestLogPair(t *testing.T) {
	r := newRig(t)
	r.pid()
	fds := count(os.Getpid(), "fd")
	o, e := r.fifos("web.1")
	if n := count(os.Getpid(), "fd"); n != fds+2 {
		t.Errorf("the agent holds %d descriptors more, want one per FIFO", n-fds)
	}
	for _, f := range []string{o, e} {
		st, err := os.Lstat(f)
		if err != nil || st.Mode() != os.ModeNamedPipe|0o600 {
			t.Fatalf("%s: %v %v", f, st.Mode(), err)
		}
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			o2, e2, err := r.Logs(t.Context(), LogSpec{Task: "web.1", Dir: r.logs, MaxSize: 1 << 20})
			if err != nil || o2 != o || e2 != e {
				t.Errorf("%s %s %v", o2, e2, err)
			}
		})
	}
	wg.Wait()
	if _, _, err := r.Logs(t.Context(), LogSpec{Task: "web.1", Dir: r.base}); err == nil {
		t.Error("other files for the same pair")
	}
	// A writer that opens late, as a driver of another program would, write-only.
	for _, text := range []string{"one\n", "two\n"} {
		f, err := os.OpenFile(o, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(text)
		_ = f.Close()
		r.waitLog("web.1.stdout", text)
	}
	if f, err := os.OpenFile(e, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	} else {
		_, _ = f.WriteString("last words")
		_ = f.Close()
	}
	for range 2 {
		if err := r.EndLogs(t.Context(), "web.1"); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.log("web.1.stderr"); got != "last words" {
		t.Errorf("%q", got)
	}
	if n := count(os.Getpid(), "fd"); n != fds {
		t.Errorf("%d descriptors, were %d", n, fds)
	}
	if exists(o) || exists(e) {
		t.Error("FIFOs left")
	}
	// Again under the same name, beside one an earlier life left.
	if err := syscall.Mkfifo(o, 0o600); err != nil {
		t.Fatal(err)
	}
	sp := r.sh("web.1", "echo three")
	r.start(sp)
	r.wait(sp.ID)
	if got := r.log("web.1.stdout"); got != "one\ntwo\nthree\n" {
		t.Errorf("%q", got)
	}
}

// Two tasks of one name in one scope, as in a supervisor for the whole node.
func TestSameTaskName(t *testing.T) {
	r := newRig(t)
	long := strings.Repeat("alloc/", 60)
	for _, id := range []string{"one", "two", long, long + "x"} {
		dir := r.base + "/" + shortName(id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		o, _, err := r.Logs(t.Context(), LogSpec{ID: id + "/web", Task: "web", Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		r.start(Spec{ID: id, Path: "/bin/echo", Args: []string{"echo", id}, Stdout: o})
	}
	r.killSupervisor()
	for _, id := range []string{"one", "two", long, long + "x"} {
		r.wait(id)
		if b, _ := os.ReadFile(r.base + "/" + shortName(id) + "/web.stdout.0"); string(b) != id+"\n" {
			t.Errorf("%q", b)
		}
		if err := r.EndLogs(t.Context(), id+"/web"); err != nil {
			t.Fatal(err)
		}
	}
}

// Ending and asking for the same pair at the same time is settled one way or the
// other, and no byte is lost.
func TestLogPairRaces(t *testing.T) {
	r := newRig(t)
	for range 30 {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := r.EndLogs(t.Context(), "a"); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() { r.fifos("a") })
		}
		wg.Wait()
		r.fifos("a")
	}
	r.start(r.sh("a", "echo x"))
	r.wait("a")
	if got := r.log("a.stdout"); got != "x\n" {
		t.Errorf("%q", got)
	}
}

// FF-086: the task's user can write by path, another one cannot, and neither can
// reach what is ours.
func TestFIFOOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t)
	if err := os.Chmod(r.base, 0o711); err != nil { // the host's part
		t.Fatal(err)
	}
	r.fifos("root") // alone it opens nothing to others
	for _, dir := range []string{r.p.cfg.Dir, r.dir} {
		if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v", dir, st.Mode())
		}
	}
	o, _, err := r.Logs(t.Context(), LogSpec{Task: "theirs", Dir: r.logs, UID: 65534, GID: 65534})
	if err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, script string) error {
		c := exec.Command("/bin/sh", "-c", script)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return c.Run()
	}
	if err := as(65534, "echo hello > "+o); err != nil {
		t.Errorf("the owner: %v", err)
	}
	r.waitLog("theirs.stdout", "hello")
	for _, path := range []string{o, r.dir + "/sock", r.dir + "/journal", r.dir + "/lock", r.dir + "/log"} {
		if as(65533, ": < "+path) == nil || as(65533, ": > "+path) == nil {
			t.Errorf("a stranger opens %s", path)
		}
	}
	if as(65534, "ls "+r.dir) == nil {
		t.Error("the directory can be listed")
	}
}

// What is no FIFO of ours is opened and not drained.
func TestOtherOutputs(t *testing.T) {
	r := newRig(t)
	file, fifo := r.base+"/file", r.base+"/theirs"
	_ = os.WriteFile(file, []byte("before\n"), 0o600)
	_ = syscall.Mkfifo(fifo, 0o600)
	r.start(Spec{ID: "a", Path: "/bin/sh", Args: []string{"sh", "-c", "echo out; echo err >&2"}, Stdout: file, Stderr: fifo})
	if st := r.wait("a"); st.Code != 0 { // nobody reads the FIFO: no SIGPIPE, no hang
		t.Fatalf("%+v", st)
	}
	if b, _ := os.ReadFile(file); string(b) != "before\nout\n" {
		t.Errorf("%q", b)
	}
	if err := os.Symlink(file, r.base+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), Spec{ID: "b", Path: "/bin/true", Stdout: r.base + "/link"}); err == nil {
		t.Error("a link is followed")
	}
	r.start(Spec{ID: "c", Path: "/bin/sh", Args: []string{"sh", "-c", "echo x; echo y >&2; read z"}})
	if st := r.wait("c"); st.Code != 1 { // /dev/null gives and takes
		t.Fatalf("%+v", st)
	}
}

// FF-088: a disk that is full neither blocks the task nor delays its exit.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := newRig(t)
	if err := syscall.Mount("small", r.logs, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	defer func() {
		_ = r.EndLogs(t.Context(), "a")
		if err := syscall.Unmount(r.logs, 0); err != nil {
			t.Error(err)
		}
	}()
	r.start(r.sh("a", "yes | head -c 8000000; echo end >&2"))
	if st := r.wait("a"); st.Code != 0 {
		t.Fatalf("%+v", st)
	}
	pid := r.pid()
	_ = os.Remove(r.logs + "/a.stdout.0") // still open: the space comes with the next file
	sp := r.sh("a", "sleep 0.2; echo again")
	sp.ID = "a/1"
	r.start(sp)
	r.wait(sp.ID)
	if r.pid() != pid {
		t.Error("the supervisor was replaced")
	}
	r.destroy(sp.ID)
	r.destroy("a")
	b, _ := os.ReadFile(r.dir + "/log")
	if n := strings.Count(string(b), "\n"); n == 0 || n > 10 {
		t.Errorf("told in %d lines: %.300s", n, b)
	}
}

// A change of size is taken over while the pair lives.
func TestLogSizes(t *testing.T) {
	r := newRig(t)
	o, e := r.fifos("a")
	if _, _, err := r.Logs(t.Context(), LogSpec{Task: "a", Dir: r.logs, MaxSize: 10000, MaxFiles: 3}); err != nil {
		t.Fatal(err)
	}
	r.killSupervisor() // and survives
	r.start(Spec{ID: "a", Path: "/bin/sh", Args: []string{"sh", "-c", "seq 100000 110000"}, Env: []string{"PATH=/bin:/usr/bin"}, Stdout: o, Stderr: e})
	r.wait("a")
	des, _ := os.ReadDir(r.logs)
	if len(des) != 3 {
		t.Errorf("%v", des)
	}
	for _, d := range des {
		if fi, err := d.Info(); err != nil || fi.Size() > 10000 {
			t.Errorf("%s: %d bytes %v", d.Name(), fi.Size(), err)
		}
	}
}
