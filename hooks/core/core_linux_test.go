// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// host is what one agent would wire: real supervisors, a Fake driver.
type host struct {
	t     *testing.T
	pool  *supervisor.Pool
	store state.Store
	dir   *allocdir.Dir
	fake  *drivertest.Fake
	cfg   Config
	run   string
}

func newHost(t *testing.T, edit func(*Config)) *host {
	h := &host{t: t, store: state.Memory(), fake: &drivertest.Fake{}, run: filepath.Join(t.TempDir(), "run")}
	h.fake.Script = func(int, driver.TaskConfig) drivertest.Life {
		return drivertest.Life{Run: drivertest.Forever, Term: 0}
	}
	var err error
	h.dir, err = allocdir.New(allocdir.Config{Root: filepath.Join(t.TempDir(), "alloc"), AllocID: "a"})
	require.NoError(t, err)
	h.open()
	t.Cleanup(func() {
		require.NoError(t, h.dir.Destroy(context.Background()))
		names, err := h.pool.Names()
		require.NoError(t, err)
		require.Empty(t, names, "a supervisor's scope is left")
		require.NoError(t, h.pool.Close())
		h.fake.Check(t)
	})
	h.cfg.Dir = func(string) (*allocdir.Dir, error) { return h.dir, nil }
	h.cfg.AllocScope = func(id string) string { return "alloc/" + id }
	if edit != nil {
		edit(&h.cfg)
	}
	return h
}

func (h *host) open() {
	var err error
	h.pool, err = supervisor.NewPool(supervisor.PoolConfig{Dir: h.run, Env: []string{"GORACE=atexit_sleep_ms=0"}, Warn: func(m string) { h.t.Log(m) }})
	require.NoError(h.t, err)
	h.cfg.Supervisors = h.pool
}

func (h *host) alloc(edit func(*spec.Task)) *spec.Alloc {
	al := &spec.Alloc{ID: "a", JobID: "j", Group: "g", ModifyIndex: 1, Tasks: []spec.Task{{Name: "t", Driver: "fake"}}}
	if edit != nil {
		edit(&al.Tasks[0])
	}
	return al
}

// start runs the alloc and returns how to detach.
func (h *host) start(al *spec.Alloc) (*allocrunner.AllocRunner, func()) {
	r, err := allocrunner.New(allocrunner.Config{Alloc: al, Store: h.store, Dir: h.dir, Hooks: AllocHooks(h.cfg),
		Tasks:        taskrunner.Config{Drivers: h.fake, Hooks: TaskHooks(h.cfg), Scope: "alloc/a"},
		ScopePerTask: h.cfg.TaskScopes != nil})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Run(ctx) }()
	stop := func() { cancel(); <-ended }
	h.t.Cleanup(stop)
	return r, stop
}

func (h *host) until(r *allocrunner.AllocRunner, what string, ok func(allocrunner.Snapshot) bool) allocrunner.Snapshot {
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	var last allocrunner.Snapshot
	for last = range r.Watch(ctx) {
		if ok(last) {
			return last
		}
	}
	h.t.Fatalf("not %s: %+v", what, last)
	return last
}

func running(s allocrunner.Snapshot) bool { return s.Status == allocrunner.Running }

// kill ends the alloc and waits for its end.
func (h *host) kill(r *allocrunner.AllocRunner) {
	require.NoError(h.t, r.Kill(h.t.Context(), allocrunner.KillRequest{}))
	<-r.Done()
}

func (h *host) write(path, text string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(h.t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	require.NoError(h.t, err)
}

func (h *host) logged(name, want string) {
	require.Eventually(h.t, func() bool {
		b, _ := os.ReadFile(filepath.Join(h.dir.Logs(), name))
		return string(b) == want
	}, 10*time.Second, 2*time.Millisecond, "%s is not %q", name, want)
}

func TestLogsAreCollectedOverRestartsOfTheAgent(t *testing.T) {
	h := newHost(t, nil)
	al := h.alloc(nil)
	r, stop := h.start(al)
	h.until(r, "running", running)
	cfg := h.fake.Configs()[0]
	require.NotEmpty(t, cfg.Stdio.Stdout)
	require.Equal(t, "alloc/a", cfg.Scope)
	h.write(cfg.Stdio.Stdout, "one\n")
	h.write(cfg.Stdio.Stderr, "oops\n")
	h.logged("t.stdout.0", "one\n")
	h.logged("t.stderr.0", "oops\n")

	stop()
	require.NoError(t, h.pool.Close())
	h.write(cfg.Stdio.Stdout, "while away\n")
	h.open()
	r, _ = h.start(al)
	h.until(r, "running", running)
	h.write(cfg.Stdio.Stdout, "two\n")
	h.logged("t.stdout.0", "one\nwhile away\ntwo\n")
	require.Equal(t, 1, h.fake.Lives())

	require.NoError(t, r.Restart(t.Context(), allocrunner.RestartRequest{}))
	h.until(r, "started again", func(s allocrunner.Snapshot) bool {
		return s.Tasks["t"].Attempt == 1 && s.Tasks["t"].Phase == taskrunner.Running
	})
	require.Equal(t, cfg.Stdio, h.fake.Configs()[1].Stdio, "the pair lives from the first prestart to stop")
	h.kill(r)
	require.NoFileExists(t, cfg.Stdio.Stdout)
	h.logged("t.stdout.0", "one\nwhile away\ntwo\n")
}

func TestNoCollection(t *testing.T) {
	for name, edit := range map[string]func(*host) *spec.Alloc{
		"logs off": func(h *host) *spec.Alloc {
			return h.alloc(func(t *spec.Task) { t.Logs = &spec.LogConfig{Disabled: true, MaxFiles: 1, MaxSize: 1 << 20} })
		},
		"driver collects": func(h *host) *spec.Alloc {
			h.fake.Capabilities = &driver.Capabilities{CollectsLogs: true, IdempotentStart: true}
			return h.alloc(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			al := edit(h)
			r, _ := h.start(al)
			h.until(r, "running", running)
			require.Empty(t, h.fake.Configs()[0].Stdio.Stdout)
			names, err := h.pool.Names()
			require.NoError(t, err)
			require.Empty(t, names, "no supervisor for nothing")
			h.kill(r)
		})
	}
}

func TestScopePerTask(t *testing.T) {
	h := newHost(t, func(c *Config) {
		c.AllocScope = nil
		c.TaskScopes = func(string) bool { return true }
	})
	r, _ := h.start(h.alloc(nil))
	h.until(r, "running", running)
	names, err := h.pool.Names()
	require.NoError(t, err)
	require.Equal(t, []string{"alloc/a/t"}, names)
	h.kill(r)
}

func TestInvalidConfigStartsNothing(t *testing.T) {
	h := newHost(t, func(c *Config) {
		c.Validate = func(*driver.Schema, json.RawMessage, map[string]spec.Origin) error {
			return errors.New("command: is required")
		}
	})
	r, _ := h.start(h.alloc(nil))
	<-r.Done()
	s := r.Snapshot()
	require.Equal(t, allocrunner.Failed, s.Status)
	require.Zero(t, h.fake.Count(drivertest.Start))
	require.NoDirExists(t, h.dir.Task("t").Local)
	var kinds []taskrunner.Kind
	for _, ev := range s.Tasks["t"].Events {
		kinds = append(kinds, ev.Kind)
	}
	require.Contains(t, kinds, taskrunner.FailedValidation)
}

func TestUserOwnsItsDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	h := newHost(t, nil)
	r, _ := h.start(h.alloc(func(t *spec.Task) { t.User = "65534" }))
	h.until(r, "running", running)
	for _, path := range []string{h.dir.Task("t").Local, h.dir.Task("t").Secrets, h.fake.Configs()[0].Stdio.Stdout} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, uint32(65534), uid(st), path)
	}
	h.kill(r)
}

func TestUnknownUserFails(t *testing.T) {
	h := newHost(t, nil)
	r, _ := h.start(h.alloc(func(t *spec.Task) { t.User = "no-such-user" }))
	<-r.Done()
	require.Equal(t, allocrunner.Failed, r.Snapshot().Status)
	require.Zero(t, h.fake.Count(drivertest.Start))
}
