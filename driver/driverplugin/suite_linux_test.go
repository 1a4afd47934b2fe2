// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

const runEnv = "NODEKEEP_TEST_RUN" // where supervisors live

// serveRawexec is the main of raw_exec as an external driver.
func serveRawexec() {
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: os.Getenv(runEnv), Env: []string{"GORACE=atexit_sleep_ms=0"}})
	if err == nil {
		defer func() { _ = pool.Close() }()
		var d driver.Driver
		if d, err = rawexec.New(rawexec.Config{Enabled: true})(pool); err == nil {
			driverplugin.Serve(d)
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// rig is a place where an external raw_exec runs tasks: directories, cgroups, and
// supervisors that outlive the driver's process.
type rig struct {
	t    *testing.T
	base string
	dirs driver.Dirs
	tree *cgroup.Tree
}

var rigs int

func newRig(t *testing.T) *rig {
	t.Helper()
	rigs++
	r := &rig{t: t, base: shortDir(t)}
	task := filepath.Join(r.base, "alloc1", "web")
	r.dirs = driver.Dirs{Alloc: filepath.Join(r.base, "alloc1", "alloc"), Task: task, Local: filepath.Join(task, "local")}
	for _, d := range []string{r.dirs.Alloc, r.dirs.Local} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	var err error
	r.tree, err = cgroup.Open(cgroup.Config{AgentID: fmt.Sprintf("driverplugin-test-%d-%d", os.Getpid(), rigs)})
	require.NoError(t, err)
	t.Cleanup(r.clean)
	return r
}

// clean ends the supervisors. No task may be left by then.
func (r *rig) clean() {
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: r.run()})
	require.NoError(r.t, err)
	names, err := pool.Names()
	require.NoError(r.t, err)
	for _, n := range names {
		left, err := pool.Scope(n).List(bounded(r.t))
		require.NoError(r.t, err)
		for _, st := range left {
			r.t.Errorf("left in scope %s: %+v", n, st)
			require.NoError(r.t, pool.Scope(n).Destroy(bounded(r.t), st.ID))
		}
		require.NoError(r.t, pool.Scope(n).Release(bounded(r.t)))
	}
	require.NoError(r.t, pool.Close())
	require.NoError(r.t, r.tree.RemoveAll())
}

func (r *rig) run() string { return filepath.Join(r.base, "run") }

// launch starts the driver's process.
func (r *rig) launch() (drivermanager.Launch, string) {
	l, _ := launch(r.t, "rawexec", runEnv+"="+r.run())
	return l, self(r.t)
}

func (r *rig) task(id string) driver.TaskConfig {
	r.t.Helper()
	c := driver.TaskConfig{ID: id, Name: "web", Scope: "alloc1", Dirs: r.dirs, Owner: driver.Owner{AllocID: "alloc1", Task: "web"},
		Env: []string{"NK_TASK=" + r.base + id, "PATH=/usr/local/bin:/usr/bin:/bin"}}
	if r.tree.Mode() != cgroup.None {
		c.Cgroup = r.tree.Path("alloc1", strings.ReplaceAll(id, "/", "-"))
		require.NoError(r.t, r.tree.Make(c.Cgroup))
	}
	return c
}

func (r *rig) left(c driver.TaskConfig) (l []string) {
	for _, pid := range withEnv(c.Env[0]) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		l = append(l, fmt.Sprintf("process %d %q", pid, b))
	}
	if _, err := os.Stat(c.Cgroup); err == nil && c.Cgroup != "" {
		l = append(l, c.Cgroup)
	}
	return l
}

func command(argv ...string) json.RawMessage {
	b, err := json.Marshal(map[string]any{"command": argv[0], "args": argv[1:]})
	if err != nil {
		panic(err)
	}
	return b
}

// The same suite that raw_exec passes in process, over the wire: with the next
// agent reattaching to the plugin, and with plugin and agent killed together, so
// that a new plugin recovers the tasks.
func TestSuiteWithRawexec(t *testing.T) {
	for _, killed := range []bool{false, true} {
		if killed && os.Getenv("NODEKEEP_LONG") == "" {
			continue // drivermanager kills drivers too
		}
		t.Run(map[bool]string{false: "reattached", true: "killed"}[killed], func(t *testing.T) {
			r := newRig(t)
			l, exe := r.launch()
			p, err := driverplugin.Launch(bounded(t), exe, l)
			require.NoError(t, err)
			t.Cleanup(func() { closePlugin(t, p) }) // the last one
			drivertest.Suite(t, drivertest.SuiteConfig{
				New: func(t *testing.T) driver.Driver { return patient{p.Driver().(whole), t} },
				Renew: func(t *testing.T, _ driver.Driver) driver.Driver {
					l, exe := r.launch()
					var err error
					if killed {
						require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
						<-p.Done()
						closePlugin(t, p)
						p, err = driverplugin.Launch(bounded(t), exe, l)
					} else {
						rec := p.Record()
						p.Detach()
						p, err = driverplugin.Reattach(bounded(t), rec, l)
					}
					require.NoError(t, err)
					return patient{p.Driver().(whole), t}
				},
				Task:   func(_ *testing.T, _ driver.Driver, id string) driver.TaskConfig { return r.task(id) },
				Sleep:  command("/bin/sleep", "3600"),
				Exit:   func(code int) json.RawMessage { return command("/bin/sh", "-c", fmt.Sprint("exit ", code)) },
				Ignore: command("/usr/bin/env", "--ignore-signal=TERM", "sleep", "3600"),
				Bad:    command("no-such-command"),
				Shell:  []string{"/bin/sh", "-c"},
				Left:   func(_ *testing.T, c driver.TaskConfig) []string { return r.left(c) },
			})
		})
	}
}

// patient returns from the start of a task that is to ignore a signal once it
// does: a plain process needs a moment for that.
type patient struct {
	whole
	t *testing.T
}

func (p patient) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	h, err := p.whole.Start(ctx, cfg)
	if err == nil && strings.Contains(string(cfg.Config), "--ignore-signal") {
		eventually(p.t, "the signal is ignored", func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.PID))
			_, rest, _ := strings.Cut(string(b), "\nSigIgn:\t")
			mask, _ := strconv.ParseUint(rest[:min(16, len(rest))], 16, 64)
			return mask&(1<<14) != 0
		})
	}
	return h, err
}
