// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
	"github.com/nodekeep/nodekeep/internal/proctest"
	"github.com/nodekeep/nodekeep/supervisor"
)

// rig is one agent's surroundings: a runtime directory, an alloc's directories and
// a cgroup tree. Everything a test starts carries the rig's mark in its
// environment, and nothing that does may be left in the end.
type rig struct {
	t    *testing.T
	cfg  Config
	base string
	mark string
	dirs driver.Dirs
	tree *cgroup.Tree
	pool *supervisor.Pool
	d    driver.Driver
}

const scope = "alloc1"

var rigs int

// features are found once, and not by the creators that this program is, too.
var features = sync.OnceValue(func() container.Features { return container.Probe(context.Background()) })

// bin is where small is built.
var bin string

func TestMain(m *testing.M) {
	code := m.Run()
	if bin != "" {
		_ = os.RemoveAll(bin)
	}
	os.Exit(code)
}

// small is the creator alone, which makes a container in a fraction of the time that
// this program under the race detector takes; "" is this program: in long tests,
// and where there is no go command.
var small = sync.OnceValue(func() string {
	if os.Getenv("NODEKEEP_LONG") != "" {
		return ""
	}
	var err error
	if bin, err = os.MkdirTemp("", "nodekeep-exec-bin-"); err != nil {
		return ""
	}
	path := filepath.Join(bin, creatorName)
	if exec.Command("go", "build", "-o", path, "github.com/nodekeep/nodekeep/cmd/nodekeep-exec").Run() != nil {
		return ""
	}
	return path
})

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("these containers need root")
	}
	if f := features(); f.Unusable != "" {
		t.Skip(f.Unusable)
	}
	if cfg.CreatorExe == "" && cfg.BinDir == "" {
		cfg.CreatorExe = small()
	}
	root := "/dev/shm"
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	base, err := os.MkdirTemp(root, "exec")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755)) // also for tasks of other users
	rigs++
	r := &rig{t: t, cfg: cfg, base: base, mark: fmt.Sprintf("NK_MARK=%d.%d", os.Getpid(), rigs)}
	alloc := filepath.Join(base, "alloc1")
	task := filepath.Join(alloc, "web")
	r.dirs = driver.Dirs{Alloc: alloc + "/alloc", Task: task, Local: task + "/local", Secrets: task + "/secrets", Logs: alloc + "/alloc/logs"}
	for _, d := range []string{r.dirs.Local, r.dirs.Secrets, r.dirs.Logs, task + "/tmp"} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	for _, d := range []string{r.dirs.Alloc, r.dirs.Local, r.dirs.Secrets, task + "/tmp"} {
		require.NoError(t, os.Chmod(d, 0o777))
	}
	r.tree, err = cgroup.Open(cgroup.Config{AgentID: fmt.Sprintf("exec-test-%d-%d", os.Getpid(), rigs), Slice: "nk-exec.slice"})
	require.NoError(t, err)
	t.Cleanup(r.clean)
	r.renew()
	return r
}

func (r *rig) fingerprint() driver.Fingerprint {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	ch, err := r.d.Fingerprint(ctx)
	require.NoError(r.t, err)
	return <-ch
}

// hostMounts are those of ours that are seen on the host, which there must not be.
func (r *rig) hostMounts() (l []string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(r.t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, r.base) {
			l = append(l, line)
		}
	}
	return l
}

// renew is the restart of the agent.
func (r *rig) renew() driver.Driver {
	r.t.Helper()
	if r.pool != nil {
		require.NoError(r.t, r.pool.Close())
	}
	var err error
	r.pool, err = supervisor.NewPool(supervisor.PoolConfig{Dir: r.base + "/run", Env: []string{"GORACE=atexit_sleep_ms=0"}})
	require.NoError(r.t, err)
	r.d, err = New(r.cfg)(r.pool)
	require.NoError(r.t, err)
	return r.d
}

func (r *rig) clean() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 30*time.Second)
	defer cancel()
	if r.pool != nil {
		names, err := r.pool.Names()
		require.NoError(r.t, err)
		for _, n := range names {
			s := r.pool.Scope(n)
			l, err := s.List(ctx)
			require.NoError(r.t, err)
			for _, st := range l {
				require.NoError(r.t, s.Destroy(ctx, st.ID))
			}
			require.NoError(r.t, s.Release(ctx))
		}
		require.NoError(r.t, r.pool.Close())
	}
	require.Empty(r.t, r.alive(), "processes left")
	for _, dir := range cgroup.Everywhere(r.tree.Path("alloc1", "x")) {
		l, _ := os.ReadDir(filepath.Dir(dir))
		for _, e := range l {
			if e.IsDir() {
				r.t.Errorf("left in %s: %s", filepath.Dir(dir), e.Name())
			}
		}
	}
	require.NoError(r.t, r.tree.RemoveAll())
	require.Empty(r.t, r.hostMounts())
	require.NoError(r.t, os.RemoveAll(r.base))
}

// task makes a complete configuration of a task.
func (r *rig) task(id string, config map[string]any) driver.TaskConfig {
	r.t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(r.t, err)
	c := driver.TaskConfig{ID: id, Name: "web", Scope: scope, Dirs: r.dirs, Config: raw, Owner: driver.Owner{AllocID: "alloc1", Task: "web"},
		Res: driver.Resources{CPU: 500, MemoryMB: 64},
		Env: []string{r.mark, "PATH=/usr/local/bin:/usr/bin:/bin"}}
	c.Cgroup = r.tree.Path("alloc1", strings.ReplaceAll(id, "/", "-"))
	return c
}

// sh is a task of a shell script; more are further attributes.
func (r *rig) sh(id, script string, more ...map[string]any) driver.TaskConfig {
	config := map[string]any{"command": "/bin/sh", "args": []string{"-c", script}}
	for _, m := range more {
		maps.Copy(config, m)
	}
	return r.task(id, config)
}

// logs connects a task's output to files and returns what reads its stdout.
func (r *rig) logs(c *driver.TaskConfig) (stdout func() string) {
	r.t.Helper()
	var err error
	c.Stdio.Stdout, c.Stdio.Stderr, err = r.pool.Scope(c.Scope).Logs(r.t.Context(), supervisor.LogSpec{Task: c.Name, Dir: r.dirs.Logs})
	require.NoError(r.t, err)
	return func() string {
		b, err := os.ReadFile(filepath.Join(r.dirs.Logs, c.Name+".stdout.0"))
		if !os.IsNotExist(err) {
			require.NoError(r.t, err)
		}
		return string(b)
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 30*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

// start makes the cgroup, as a task runner does, and starts the task.
func (r *rig) start(c driver.TaskConfig) (*driver.Handle, error) {
	r.t.Helper()
	require.NoError(r.t, r.tree.Make(c.Cgroup))
	return r.d.Start(r.ctx(), c)
}

func (r *rig) mustStart(c driver.TaskConfig) *driver.Handle {
	r.t.Helper()
	h, err := r.start(c)
	require.NoError(r.t, err)
	return h
}

func (r *rig) wait(id string) driver.ExitResult {
	r.t.Helper()
	res, err := r.d.Wait(r.ctx(), id)
	require.NoError(r.t, err)
	return res
}

func ref(c driver.TaskConfig, h *driver.Handle) driver.TaskRef {
	return driver.TaskRef{ID: c.ID, Handle: h, Scope: c.Scope, Cgroup: c.Cgroup}
}

func (r *rig) destroy(c driver.TaskConfig, h *driver.Handle) {
	r.t.Helper()
	require.NoError(r.t, r.d.Destroy(r.ctx(), ref(c, h), true))
	r.empty(c)
}

// left is what there is of a task on the machine.
func (r *rig) left(c driver.TaskConfig) (l []string) {
	for _, pid := range r.alive() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		l = append(l, fmt.Sprintf("process %d %q", pid, b))
	}
	for _, dir := range cgroup.Everywhere(c.Cgroup) {
		if _, err := os.Stat(dir); err == nil {
			l = append(l, dir)
		}
	}
	if dir := filepath.Join(r.pool.Scope(c.Scope).StateRoot(), creator.Name(c.ID)); exists(dir) {
		l = append(l, dir)
	}
	l = append(l, r.hostMounts()...)
	exits, _ := filepath.Glob(r.base + "/alloc1/*.exit")
	return append(l, exits...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (r *rig) empty(c driver.TaskConfig) {
	r.t.Helper()
	require.Empty(r.t, r.left(c))
}

// alive returns all processes that carry the rig's mark, zombies excepted.
func (r *rig) alive() []int { return proctest.Marked(r.mark) }

// eventually waits for what another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *rig) supervisor() int {
	r.t.Helper()
	_, pid, err := r.pool.Scope(scope).Hello(r.ctx())
	require.NoError(r.t, err)
	return pid
}

// killSupervisor kills the supervisor of the scope and waits for the next one.
func (r *rig) killSupervisor() {
	r.t.Helper()
	pid := r.supervisor()
	require.NoError(r.t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(r.t, "the next supervisor", func() bool {
		_, now, err := r.pool.Scope(scope).Hello(r.ctx())
		return err == nil && now != pid
	})
}

// run runs a script beside a task.
func (r *rig) run(id, script string, req driver.ExecRequest) (driver.ExitResult, error) {
	r.t.Helper()
	req.Command = []string{"sh", "-c", script}
	return r.d.(driver.Execer).Exec(r.ctx(), id, req)
}
