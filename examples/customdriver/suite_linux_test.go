// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// roleEnv makes this binary the driver's program.
const roleEnv = "NODEKEEP_TEST_DRIVER"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		main()
		return
	}
	// The small supervisor starts quicker than this binary, and is found beside it.
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(filepath.Dir(exe), "nodekeep-supervisor"), "github.com/nodekeep/nodekeep/cmd/nodekeep-supervisor")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	os.Exit(m.Run())
}

// machine is where tasks run.
type machine struct {
	t    *testing.T
	base string
	tree *cgroup.Tree
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	root := "/dev/shm" // the path of a socket must be short
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	base, err := os.MkdirTemp(root, "nkc")
	require.NoError(t, err)
	tree, err := cgroup.Open(cgroup.Config{AgentID: "customdriver-" + filepath.Base(base)})
	require.NoError(t, err)
	m := &machine{t, base, tree}
	t.Cleanup(func() {
		pool := m.pool(t)
		names, err := pool.Names()
		require.NoError(t, err)
		require.Empty(t, names, "supervisors are left")
		require.NoError(t, pool.Close())
		require.NoError(t, tree.RemoveAll())
		require.NoError(t, os.RemoveAll(base))
	})
	return m
}

func (m *machine) run() string { return filepath.Join(m.base, "run") }

func (m *machine) pool(t *testing.T) *supervisor.Pool {
	t.Helper()
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: m.run()})
	require.NoError(t, err)
	return pool
}

func script(text string) json.RawMessage {
	b, err := json.Marshal(map[string]any{"script": text, "interpreter": []string{"/bin/sh", "-c"}})
	if err != nil {
		panic(err)
	}
	return b
}

func (m *machine) suite(t *testing.T, newDriver func(*testing.T) driver.Driver, renew func(*testing.T, driver.Driver) driver.Driver) {
	drivertest.Suite(t, drivertest.SuiteConfig{
		New: newDriver, Renew: renew,
		Task: func(t *testing.T, _ driver.Driver, id string) driver.TaskConfig {
			c := driver.TaskConfig{ID: id, Name: "web", Scope: "alloc1", Env: []string{"MARK=" + m.base + id, "PATH=/usr/bin:/bin"}}
			c.Dirs.Task = m.base
			if m.tree.Mode() != cgroup.None {
				c.Cgroup = m.tree.Path("alloc1", strings.ReplaceAll(id, "/", "-"))
				require.NoError(t, m.tree.Make(c.Cgroup))
			}
			return c
		},
		Sleep: script("exec sleep 3600"),
		Exit:  func(code int) json.RawMessage { return script(fmt.Sprint("exit ", code)) },
		Bad:   json.RawMessage(`{"script":"x","interpreter":["/no/such/program"]}`),
		Left: func(_ *testing.T, c driver.TaskConfig) (left []string) {
			entries, _ := os.ReadDir("/proc")
			for _, e := range entries {
				if _, err := strconv.Atoi(e.Name()); err != nil {
					continue
				}
				env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
				if bytes.Contains(env, []byte(c.Env[0]+"\x00")) {
					left = append(left, e.Name())
				}
			}
			if c.Cgroup != "" { // the runner's own, it removes it
				require.NoError(t, m.tree.Remove(c.Cgroup))
			}
			return left
		},
	})
}

// In this process, a new pool being a new process.
func TestInProcess(t *testing.T) {
	m := newMachine(t)
	pools := map[driver.Driver]*supervisor.Pool{}
	make1 := func(t *testing.T) driver.Driver {
		pool := m.pool(t)
		d := newDriver(pool)
		require.NoError(t, d.Configure(t.Context(), driver.Setup{Config: json.RawMessage(`{"interpreters":[]}`)}))
		pools[d] = pool
		return d
	}
	m.suite(t, make1, func(t *testing.T, d driver.Driver) driver.Driver {
		require.NoError(t, pools[d].Close())
		return make1(t)
	})
	for _, pool := range pools {
		require.NoError(t, pool.Close())
	}
}

// The same over the wire, with the program found again by the next agent, and
// with a new one.
func TestOverTheWire(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(map[bool]string{true: "reattached", false: "started anew"}[again], func(t *testing.T) {
			m := newMachine(t)
			launch := func(t *testing.T) *driverplugin.Plugin {
				t.Helper()
				p, err := driverplugin.Launch(limited(t), self(t), m.launch())
				require.NoError(t, err)
				return p
			}
			p := launch(t)
			defer func() { require.NoError(t, p.Close(limited(t))) }()
			m.suite(t, func(*testing.T) driver.Driver { return p.Driver() }, func(t *testing.T, _ driver.Driver) driver.Driver {
				if rec := p.Record(); again {
					p.Detach()
					var err error
					p, err = driverplugin.Reattach(limited(t), rec, m.launch())
					require.NoError(t, err)
				} else {
					require.NoError(t, p.Close(limited(t)))
					p = launch(t)
				}
				return p.Driver()
			})
		})
	}
}

// An operator's list of interpreters is kept by the driver; what does not fit its
// schema does not get there.
func TestConfigured(t *testing.T) {
	m := newMachine(t)
	l := m.launch()
	l.Config = json.RawMessage(`{"interpreters":["/bin/bash"]}`)
	p, err := driverplugin.Launch(limited(t), self(t), l)
	require.NoError(t, err)
	_, err = p.Driver().Start(limited(t), driver.TaskConfig{ID: "a/t/0", Scope: "alloc1", Config: script("true")})
	require.EqualError(t, err, "script: interpreter /bin/sh is not allowed on this node: use /bin/bash")
	require.False(t, driver.IsRecoverable(err))
	require.NoError(t, p.Close(limited(t)))

	for config, want := range map[string]string{`{"interpreters":["sh"]}`: "must be an absolute path", `{"shells":[]}`: "shells"} {
		l := m.launch()
		l.Config = json.RawMessage(config)
		_, err := driverplugin.Launch(limited(t), self(t), l)
		require.ErrorContains(t, err, want)
	}
}

var launches int

func (m *machine) launch() drivermanager.Launch {
	launches++
	return drivermanager.Launch{Dir: filepath.Join(m.base, fmt.Sprint("p", launches)), Args: []string{"-runtime-dir", m.run()},
		Env: []string{roleEnv + "=1", "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"}}
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return exe
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
