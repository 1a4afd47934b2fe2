// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

func TestMain(m *testing.M) {
	switch {
	case creator.Asked(os.Args):
		Main()
	case len(os.Args) > 2 && os.Args[1] == "probe:inside":
		inside(os.Args[2:])
		os.Exit(0)
	}
	// What creators make becomes ours, as it would the supervisor's.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	os.Exit(m.Run())
}

// rig is a supervisor's part, by hand, with the surroundings of one task. Nothing of
// a container may be left in the end.
type rig struct {
	t    testing.TB
	base string
	tree *cgroup.Tree
	path string // of the task's cgroup
	mark string
	id   string
	dirs driver.Dirs
	node NodeOptions
	cfg  driver.TaskConfig
}

// features are found once, and not by the creators that this program is, too.
var features = sync.OnceValue(func() Features { return Probe(context.Background()) })

func newRig(t testing.TB) *rig {
	t.Helper()
	if features().Unusable != "" {
		t.Skip(features().Unusable)
	}
	if os.Geteuid() != 0 {
		t.Skip("containers of root's need root")
	}
	base, err := os.MkdirTemp("", "container")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755))
	r := &rig{t: t, base: base, id: "alloc1/web/0"}
	r.mark = "NK_MARK=" + filepath.Base(base)
	task := filepath.Join(base, "task")
	r.dirs = driver.Dirs{Alloc: filepath.Join(base, "alloc"), Task: task, Local: task + "/local", Secrets: task + "/secrets"}
	for _, d := range []string{r.dirs.Alloc, task, r.dirs.Local, r.dirs.Secrets, task + "/tmp", base + "/ctr"} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	for _, d := range []string{r.dirs.Alloc, r.dirs.Local, r.dirs.Secrets, task + "/tmp"} {
		require.NoError(t, os.Chmod(d, 0o777))
	}
	r.tree, err = cgroup.Open(cgroup.Config{Slice: "nodekeep-test.slice", AgentID: filepath.Base(base)})
	require.NoError(t, err)
	r.path = r.tree.Path("alloc1", "web")
	require.NoError(t, r.tree.Make(r.path))
	r.node = NodeOptions{StateRoot: base + "/ctr", Cgroup: cgroup.Below(r.path), Features: features()}
	r.cfg = driver.TaskConfig{ID: r.id, Name: "web", Owner: driver.Owner{AllocID: "alloc1", Task: "web"}, Dirs: r.dirs,
		Env: []string{"GORACE=atexit_sleep_ms=0", "HOME=/local", "PATH=/usr/local/bin:/usr/bin:/bin", r.mark}, Res: driver.Resources{CPU: 500, MemoryMB: 128}}
	t.Cleanup(func() { r.leavesNothing() })
	return r
}

// leavesNothing destroys what is there, as the supervisor does, and looks for what
// was missed.
func (r *rig) leavesNothing() {
	r.purge(r.id)
	require.NoError(r.t, r.tree.RemoveAll())
	for _, p := range cgroup.Everywhere(filepath.Dir(r.path)) {
		_ = os.Remove(p)
		_ = os.Remove(filepath.Dir(p))
	}
	require.Empty(r.t, proctest.Marked(r.mark))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(r.t, err)
	require.NotContains(r.t, string(mounts), r.base)
	left, err := filepath.Glob(r.base + "/ctr/[^.]*")
	require.NoError(r.t, err)
	require.Empty(r.t, left)
	require.NoError(r.t, os.RemoveAll(r.base))
}

func (r *rig) purge(id string) {
	paths := cgroup.Everywhere(r.path)
	cgroup.KillEach(paths)
	require.NoError(r.t, cgroup.RemoveEach(paths))
	require.NoError(r.t, os.RemoveAll(filepath.Join(r.base, "ctr", creator.Name(id))))
	for { // what was killed and is ours by now
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			break
		}
	}
}

// task is a container that runs.
type task struct {
	r        *rig
	pid      int
	out, err *os.File // what it writes
}

// options decodes a config block, the way a job writes it.
func options(t testing.TB, kv map[string]any) TaskOptions {
	t.Helper()
	raw, err := json.Marshal(kv)
	require.NoError(t, err)
	c, err := Decode(raw)
	require.NoError(t, err)
	return c
}

func (r *rig) build(kv map[string]any) (Spec, error) {
	s, _, err := Build(r.cfg, options(r.t, kv), r.node)
	return s, err
}

// fork starts a creator and returns its answer.
func (r *rig) fork(verb string, spec []byte, stdin, stdout, stderr, status *os.File) (creator.Result, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(r.t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer func() { _ = ours.Close() }()
	lock, err := os.Open(os.DevNull)
	require.NoError(r.t, err)
	defer func() { _ = lock.Close() }()
	exe, err := os.Executable()
	require.NoError(r.t, err)
	cmd := exec.Command(exe)
	cmd.Args = []string{creator.Argv0, verb}
	cmd.Env = []string{"GOGC=off", "GORACE=atexit_sleep_ms=0"}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", stdin, stdout, stderr
	cmd.ExtraFiles = []*os.File{theirs, lock}
	if status != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, status)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	}
	require.NoError(r.t, cmd.Start())
	_ = theirs.Close()
	require.NoError(r.t, creator.WriteSpec(ours, spec))
	res, err := creator.ReadResult(ours)
	_ = ours.Close()
	_ = cmd.Wait()
	return res, err
}

// errCreator is what a creator answered.
type errCreator struct{ creator.Result }

func (e errCreator) Error() string { return e.Err }

// start makes a container, lets it go and returns it, or why it does not run.
func (r *rig) start(s Spec) (*task, error) {
	r.t.Helper()
	raw, err := s.Encode()
	require.NoError(r.t, err)
	outR, outW, err := os.Pipe()
	require.NoError(r.t, err)
	errR, errW, err := os.Pipe()
	require.NoError(r.t, err)
	statusR, statusW, err := os.Pipe()
	require.NoError(r.t, err)
	defer func() { _ = statusR.Close() }()
	null, err := os.Open(os.DevNull)
	require.NoError(r.t, err)
	res, err := r.fork(creator.Create, raw, null, outW, errW, statusW)
	for _, f := range []*os.File{null, outW, errW, statusW} {
		_ = f.Close()
	}
	tk := &task{r: r, pid: res.PID, out: outR, err: errR}
	r.t.Cleanup(func() { _, _ = outR.Close(), errR.Close() })
	if err != nil {
		return nil, err
	}
	if res.Err != "" {
		return nil, errCreator{res}
	}
	fifo, err := os.OpenFile(filepath.Join(s.StateRoot, s.ID, creator.FIFO), os.O_RDWR, 0)
	require.NoError(r.t, err)
	defer func() { _ = fifo.Close() }()
	_, err = fifo.Read(make([]byte, 1))
	require.NoError(r.t, err)
	if errno := creator.ReadExec(statusR); errno != 0 {
		tk.wait()
		return nil, ExecError(s.Process.Args[0], errno)
	}
	return tk, nil
}

// wait returns how a process of ours ended.
func (k *task) wait() syscall.WaitStatus { return wait(k.r.t, k.pid) }

func wait(t testing.TB, pid int) syscall.WaitStatus {
	t.Helper()
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			require.NoError(t, err)
			return ws
		}
	}
}

// output waits for the end and returns what was written.
func (k *task) output() (out, errs string, code int) {
	k.r.t.Helper()
	done := make(chan string)
	go func() { b, _ := io.ReadAll(k.err); done <- string(b) }()
	b, err := io.ReadAll(k.out)
	require.NoError(k.r.t, err)
	errs = <-done
	ws := k.wait()
	if ws.Signaled() {
		return string(b), errs, 128 + int(ws.Signal())
	}
	return string(b), errs, ws.ExitStatus()
}

// sh runs a line of shell in a container of its own and returns what it wrote.
func (r *rig) sh(line string, kv map[string]any) string {
	r.t.Helper()
	out, errs, code := r.run(kv, "/bin/sh", "-c", line)
	require.Zero(r.t, code, "%s\n%s%s", line, out, errs)
	return out
}

// run starts a container, waits for its end and destroys it.
func (r *rig) run(kv map[string]any, argv ...string) (out, errs string, code int) {
	r.t.Helper()
	opts := map[string]any{"command": argv[0], "args": argv[1:]}
	for k, v := range kv {
		opts[k] = v
	}
	s, err := r.build(opts)
	require.NoError(r.t, err)
	k, err := r.start(s)
	require.NoError(r.t, err)
	out, errs, code = k.output()
	r.again()
	return out, errs, code
}

// again destroys the task and makes its cgroup anew.
func (r *rig) again() {
	r.t.Helper()
	r.purge(r.id)
	require.NoError(r.t, r.tree.Make(r.path))
}

// beside runs a command beside the task.
func (k *task) beside(env []string, argv ...string) (out string, code int, err error) {
	t := k.r.t
	t.Helper()
	raw, err := Exec{Version: SpecVersion, ID: creator.Name(k.r.id), StateRoot: k.r.node.StateRoot, Args: argv, Env: env}.Encode()
	require.NoError(t, err)
	outR, outW, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = outR.Close() }()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	res, err := k.r.fork(creator.Exec, raw, null, outW, outW, nil)
	_, _ = null.Close(), outW.Close()
	if err != nil {
		return "", 0, err
	}
	if res.Err != "" {
		return "", 0, errCreator{res}
	}
	b, err := io.ReadAll(outR)
	require.NoError(t, err)
	ws := wait(t, res.PID)
	if ws.Signaled() {
		return string(b), 128 + int(ws.Signal()), nil
	}
	return string(b), ws.ExitStatus(), nil
}

// eventually polls the kernel.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for tick := time.Tick(2 * time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-late:
			t.Fatal(what)
		}
	}
}

// probe makes this test's own program a program of the task: /local/probe.
func (r *rig) probe() {
	r.t.Helper()
	exe, err := os.Executable()
	require.NoError(r.t, err)
	r.cfg.Mounts = append(r.cfg.Mounts, driver.Mount{Source: exe, Target: "/probe", ReadOnly: true})
}

// ask runs a function of inside in a container and returns its answers by name.
func (r *rig) ask(kv map[string]any, what ...string) map[string]string {
	r.t.Helper()
	if !slices.ContainsFunc(r.cfg.Mounts, func(m driver.Mount) bool { return m.Target == "/probe" }) {
		r.probe()
	}
	out, errs, code := r.run(kv, append([]string{"/probe", "probe:inside"}, what...)...)
	require.Zero(r.t, code, "%s%s", out, errs)
	return answers(out)
}

func answers(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		m[k] = v
	}
	return m
}

func owner(st os.FileInfo) uint32 { return st.Sys().(*syscall.Stat_t).Uid }
