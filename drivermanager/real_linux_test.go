// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/proctest"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/supervisor"
)

// The programs of these tests are this binary, behind a script that says its role.
const (
	roleEnv = "NODEKEEP_TEST_ROLE"
	baseEnv = "NODEKEEP_TEST_BASE"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		os.Exit(m.Run())
	case "rawexec":
		pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: os.Getenv(baseEnv) + "/run", Env: []string{"GORACE=atexit_sleep_ms=0"}})
		if err != nil {
			panic(err)
		}
		d, err := rawexec.New(rawexec.Config{Enabled: true})(pool)
		if err != nil {
			panic(err)
		}
		driverplugin.Serve(d)
	case "fake":
		driverplugin.Serve(&drivertest.Fake{Name: "fake", Schema: driver.Object(nil)})
	case "agent":
		playAgent()
	}
}

// place is a node: a plugin directory, a state file, supervisors.
type place struct {
	t    *testing.T
	base string
	mark string
}

func newPlace(t *testing.T, roles ...string) *place {
	t.Helper()
	root := "/dev/shm"
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	base, err := os.MkdirTemp(root, "nkm")
	require.NoError(t, err)
	p := &place{t: t, base: base, mark: baseEnv + "=" + base}
	require.NoError(t, os.Mkdir(base+"/plugins", 0o755))
	exe, err := os.Executable()
	require.NoError(t, err)
	for _, r := range roles {
		script := fmt.Sprintf("#!/bin/sh\nexport %s=%s %s=%s GORACE=atexit_sleep_ms=0\nexec %s\n", roleEnv, r, baseEnv, base, exe)
		require.NoError(t, os.WriteFile(filepath.Join(base, "plugins", r), []byte(script), 0o755))
	}
	t.Cleanup(func() {
		p.end()
		require.NoError(t, os.RemoveAll(base))
	})
	return p
}

// end ends the supervisors; nothing may be left then.
func (p *place) end() {
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: p.base + "/run"})
	require.NoError(p.t, err)
	names, err := pool.Names()
	require.NoError(p.t, err)
	for _, n := range names {
		left, err := pool.Scope(n).List(limited(p.t))
		require.NoError(p.t, err)
		require.Empty(p.t, left)
		require.NoError(p.t, pool.Scope(n).Release(limited(p.t)))
	}
	require.NoError(p.t, pool.Close())
	eventually(p.t, "nothing is left", func() bool { return len(p.alive()) == 0 })
}

// alive are the processes of this place.
func (p *place) alive() []int { return proctest.Marked(p.mark) }

func placeConfig(base string, store state.Store, log hclog.Logger) drivermanager.Config {
	return drivermanager.Config{Launchers: []drivermanager.Launcher{driverplugin.Dir(base + "/plugins")}, Dir: base + "/p",
		Records: drivermanager.StateRecords(store), MaxBackoff: 100 * time.Millisecond, Log: log}
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// shell is a task of raw_exec.
func (p *place) shell(id, script string) driver.TaskConfig {
	config, err := json.Marshal(map[string]any{"command": "/bin/sh", "args": []string{"-c", script}})
	require.NoError(p.t, err)
	return driver.TaskConfig{ID: id, Name: "web", Scope: "alloc1", Config: config, Env: []string{p.mark, "PATH=/usr/bin:/bin"}}
}

// pid is the process of the plugin, by its program's argument zero.
func (p *place) pid() int {
	var rec struct{ Pid int }
	files, err := filepath.Glob(p.base + "/p/*/process")
	require.NoError(p.t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && json.Unmarshal(b, &rec) == nil && rec.Pid != 0 {
			return rec.Pid
		}
	}
	return 0
}

func (p *place) kill(pid int) {
	p.t.Helper()
	require.NotZero(p.t, pid)
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
}

// A driver's program is killed while twenty of its tasks run. No task ends, no
// waiter returns, exits that happen meanwhile arrive with their codes; commands,
// stats and stops work again.
func TestKillWithTasks(t *testing.T) {
	p := newPlace(t, "rawexec")
	a := newAgent(t, placeConfig(p.base, state.Memory(), nil))
	d := a.driver("raw_exec")
	var waits sync.WaitGroup
	var early sync.Map
	handles := make([]*driver.Handle, 20)
	for i := range 20 {
		script := "exec sleep 3600"
		if i < 10 {
			script = fmt.Sprintf("while [ ! -e %s/go ]; do sleep 0.02; done; exit %d", p.base, i+1)
		}
		c := p.shell(fmt.Sprintf("alloc1/web%d/0", i), script)
		h, err := d.Start(limited(t), c)
		require.NoError(t, err)
		handles[i] = h
		waits.Go(func() {
			res, err := d.Wait(limited(t), c.ID)
			want := driver.ExitResult{Code: i + 1}
			if i >= 10 {
				want = driver.ExitResult{Code: 143, Signal: 15}
			}
			if err != nil || res != want {
				t.Errorf("%s: %+v, %v", c.ID, res, err)
			}
			early.Store(i, true)
		})
	}
	stats, err := d.(driver.Meter).Stats(limited(t), handles[15].TaskID, 50*time.Millisecond)
	require.NoError(t, err)
	<-stats

	for range 3 { // it comes back, and nobody noticed
		old := p.pid()
		p.kill(old)
		eventually(t, "another process", func() bool { n := p.pid(); return n != 0 && n != old })
		out, err := driver.Output(limited(t), d.(driver.Execer), handles[15].TaskID, []string{"/bin/echo", "here"}, 10*time.Second, 100)
		require.NoError(t, err)
		require.Equal(t, "here\n", string(out.Stdout))
		seen := time.Now()
		for u := range stats {
			if u.Time.After(seen) {
				break
			}
		}
	}
	// It cannot come back for a while, in which half of the tasks end.
	plugin := p.base + "/plugins/rawexec"
	require.NoError(t, os.Chmod(plugin, 0o644))
	p.kill(p.pid())
	require.NoError(t, os.WriteFile(p.base+"/go", nil, 0o644))
	eventually(t, "the tasks end", func() bool { return strings.Count(p.commands(), p.base+"/go") == 0 })
	eventually(t, "the driver is unhealthy", func() bool { return a.Status()[0].Health == driver.Unhealthy })
	_, any := early.Load(0)
	require.False(t, any)
	require.NoError(t, os.Chmod(plugin, 0o755))
	for i, h := range handles {
		if i >= 10 {
			require.NoError(t, d.Stop(limited(t), h.TaskID, "SIGTERM", 10*time.Second))
		}
	}
	waits.Wait()
	for _, h := range handles {
		require.NoError(t, d.Destroy(limited(t), driver.TaskRef{ID: h.TaskID, Handle: h, Scope: "alloc1"}, true))
	}
	a.stop()
	a = newAgent(t, func() drivermanager.Config {
		c := placeConfig(p.base, state.Memory(), nil)
		c.EndPrograms = true
		return c
	}())
	a.driver("raw_exec")
	require.Len(t, p.dirs(), 1, "the process that no record was of is swept away")
	a.stop()
	require.Empty(t, p.dirs())
}

func (p *place) dirs() []string {
	entries, _ := os.ReadDir(p.base + "/p")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (p *place) commands() string {
	var all strings.Builder
	for _, pid := range p.alive() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		all.Write(b)
	}
	return all.String()
}

// playAgent is an agent that starts five tasks, says so and waits for its death.
func playAgent() {
	base := os.Getenv(baseEnv)
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	store, err := state.Open(state.OpenConfig{Path: base + "/state.db"})
	fail(err)
	m, err := drivermanager.New(placeConfig(base, store, hclog.New(&hclog.LoggerOptions{Output: os.Stderr})))
	fail(err)
	ctx := context.Background()
	go func() { fail(m.Run(ctx)) }()
	d, err := m.Driver(ctx, "raw_exec")
	fail(err)
	var handles []*driver.Handle
	for i := range 5 {
		h, err := d.Start(ctx, driver.TaskConfig{ID: fmt.Sprintf("alloc1/web/%d", i), Name: "web", Scope: "alloc1",
			Config: json.RawMessage(`{"command":"/bin/sleep","args":["3600"]}`), Env: []string{baseEnv + "=" + base}})
		fail(err)
		handles = append(handles, h)
	}
	fail(json.NewEncoder(os.Stdout).Encode(handles))
	select {}
}

// Agent and driver are killed together, or the agent alone: the next agent finds
// every task as it was, in the same driver process if that lives.
func TestKillAgent(t *testing.T) {
	for _, both := range []bool{true, false} {
		t.Run(map[bool]string{true: "and driver", false: "alone"}[both], func(t *testing.T) {
			p := newPlace(t, "rawexec")
			exe, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), roleEnv+"=agent", p.mark)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			var handles []*driver.Handle
			require.NoError(t, json.NewDecoder(out).Decode(&handles))
			plugin := p.pid()
			if both {
				p.kill(plugin)
			}
			require.NoError(t, cmd.Process.Kill())
			_, _ = io.Copy(io.Discard, out)
			require.Error(t, cmd.Wait())

			store, err := state.Open(state.OpenConfig{Path: p.base + "/state.db"})
			require.NoError(t, err)
			defer func() { require.NoError(t, store.Close()) }()
			cfg := placeConfig(p.base, store, nil)
			cfg.EndPrograms = true
			a := newAgent(t, cfg)
			d := a.driver("raw_exec")
			require.Equal(t, both, p.pid() != plugin)
			require.Len(t, p.dirs(), 1)
			for _, h := range handles {
				require.NoError(t, syscall.Kill(h.PID, 0))
				require.NoError(t, d.Recover(limited(t), h))
				st, err := d.(driver.Inspector).Inspect(limited(t), h.TaskID)
				require.NoError(t, err)
				require.Equal(t, strconv.Itoa(h.PID), st.Attrs["pid"])
				require.NoError(t, d.Destroy(limited(t), driver.TaskRef{ID: h.TaskID, Handle: h, Scope: "alloc1"}, true))
			}
			a.stop()
		})
	}
}

// Nothing grows: neither what the agent holds over many deaths of a driver, nor
// what a driver holds over many agents (FF-042).
func TestDescriptors(t *testing.T) {
	rounds := 4
	if os.Getenv("NODEKEEP_LONG") != "" {
		rounds = 100
	}
	p := newPlace(t, "fake")
	store := state.Memory()
	cfg := placeConfig(p.base, store, nil)
	cfg.MaxBackoff = time.Millisecond
	fds := func(pid int) int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		require.NoError(t, err)
		return len(list)
	}
	a := newAgent(t, cfg)
	d := a.driver("fake")
	die := func(n int) {
		for range n {
			old := p.pid()
			p.kill(old)
			eventually(t, "another process", func() bool { pid := p.pid(); return pid != 0 && pid != old })
			_, err := d.Start(limited(t), driver.TaskConfig{ID: "a/t/0", Name: "t", Cgroup: "/x"})
			require.NoError(t, err)
			require.NoError(t, d.Destroy(limited(t), driver.TaskRef{ID: "a/t/0", Cgroup: "/x"}, true))
		}
	}
	die(3)
	before := fds(os.Getpid())
	die(rounds)
	require.InDelta(t, before, fds(os.Getpid()), 2)
	a.stop()

	attach := func(n int) {
		for range n {
			a := newAgent(t, cfg)
			a.driver("fake")
			a.stop()
		}
	}
	attach(3)
	plugin := p.pid()
	before, own := fds(plugin), fds(os.Getpid())
	attach(rounds)
	require.Equal(t, plugin, p.pid())
	require.InDelta(t, before, fds(plugin), 2)
	require.InDelta(t, own, fds(os.Getpid()), 2)
	require.Len(t, p.dirs(), 1)
	cfg.EndPrograms = true
	attach(1)
}
