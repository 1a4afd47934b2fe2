// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/proctest"
	"github.com/nodekeep/nodekeep/supervisor"
)

// rig is one agent's surroundings: a runtime directory, an alloc's directories
// and a cgroup tree. Everything a test starts carries the rig's mark in its
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

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	root := "/dev/shm"
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	base, err := os.MkdirTemp(root, "rawexec")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(base, 0o755)) // also for tasks of other users
	rigs++
	r := &rig{t: t, cfg: cfg, base: base, mark: fmt.Sprintf("NK_MARK=%d.%d", os.Getpid(), rigs)}
	alloc := filepath.Join(base, "alloc1")
	task := filepath.Join(alloc, "web")
	r.dirs = driver.Dirs{Alloc: filepath.Join(alloc, "alloc"), Task: task, Local: filepath.Join(task, "local"), Logs: filepath.Join(alloc, "alloc", "logs")}
	for _, d := range []string{r.dirs.Local, r.dirs.Logs} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	require.NoError(t, os.Chmod(task, 0o777))
	r.tree, err = cgroup.Open(cgroup.Config{AgentID: fmt.Sprintf("rawexec-test-%d-%d", os.Getpid(), rigs)})
	require.NoError(t, err)
	r.renew()
	t.Cleanup(r.clean)
	return r
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
	require.Empty(r.t, r.alive(), "processes left")
	require.NoError(r.t, r.tree.RemoveAll())
	require.NoError(r.t, os.RemoveAll(r.base))
}

// task makes a complete configuration of a task.
func (r *rig) task(id string, config map[string]any) driver.TaskConfig {
	r.t.Helper()
	raw, err := json.Marshal(config)
	require.NoError(r.t, err)
	c := driver.TaskConfig{ID: id, Name: "web", Scope: scope, Dirs: r.dirs, Config: raw,
		Env: []string{r.mark, "PATH=/usr/local/bin:/usr/bin:/bin"}}
	if r.tree.Mode() != cgroup.None {
		c.Cgroup = r.tree.Path("alloc1", strings.ReplaceAll(id, "/", "-"))
	}
	return c
}

// sh is a task of a shell script.
func (r *rig) sh(id, script string) driver.TaskConfig {
	return r.task(id, map[string]any{"command": "/bin/sh", "args": []string{"-c", script}})
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
	if c.Cgroup != "" {
		require.NoError(r.t, r.tree.Make(c.Cgroup))
	}
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
		l = append(l, "process "+cmdline(pid))
	}
	if c.Cgroup != "" {
		if _, err := os.Stat(c.Cgroup); err == nil {
			l = append(l, c.Cgroup)
		}
	}
	exits, _ := filepath.Glob(r.base + "/alloc1/*.exit")
	return append(l, exits...)
}

func (r *rig) empty(c driver.TaskConfig) {
	r.t.Helper()
	require.Empty(r.t, r.left(c))
}

// alive returns all processes that carry the rig's mark, zombies excepted.
func (r *rig) alive() []int { return proctest.Marked(r.mark) }

func cmdline(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return fmt.Sprintf("%d %q", pid, b)
}

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

// supervisorOf kills the supervisor of the scope and waits for its end.
func (r *rig) killSupervisor() {
	r.t.Helper()
	_, pid, err := r.pool.Scope(scope).Hello(r.ctx())
	require.NoError(r.t, err)
	require.NoError(r.t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(r.t, "end of the supervisor", func() bool {
		_, now, err := r.pool.Scope(scope).Hello(r.ctx())
		return err == nil && now != pid
	})
}

func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
}
