// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/drivermanager"
)

const richConfig = `{"endpoint":"http://x","ratio":0.1,"labels":{"a":"b"},"mirror":[{"url":"m1"},{"url":"m2","tls":false}]}`

var testNode = &driver.Node{MinPort: 14000, MaxPort: 14512, TotalMHz: 0, ReservedMHz: 500, NodeIDs: []int{0, 1}, Distances: [][]int{{10, 20}, {20, 10}},
	Cores: []driver.Core{{ID: 0, MaxMHz: 3000, BaseMHz: 2000}, {ID: 1, Socket: 1, NodeID: 1, Efficiency: true, GuessMHz: 1500}, {ID: 2, Disabled: true, MaxMHz: 9000}}}

func launchRich(t *testing.T) (*driverplugin.Plugin, *logged, drivermanager.Launch) {
	t.Helper()
	l, log := launch(t, "rich")
	l.Config, l.Node = json.RawMessage(richConfig), testNode
	p, err := driverplugin.Launch(bounded(t), self(t), l)
	require.NoError(t, err)
	return p, log, l
}

func tell(t *testing.T, d driver.Driver) []string {
	t.Helper()
	err := d.(driver.Signaler).Signal(bounded(t), "", "TELL")
	require.Error(t, err)
	return strings.Split(err.Error(), "\n")
}

var fullTask = driver.TaskConfig{
	ID: "alloc/task/7", Name: "task", Env: []string{"A=1", "B=2=3", "G=gpu0"}, DevEnv: []string{"G=gpu0"}, User: "nobody", Config: json.RawMessage(`{"code":0,"do":"sleep"}`),
	Owner: driver.Owner{AllocID: "alloc", Task: "task", Group: "g", JobID: "j", JobName: "job", ParentJobID: "p", Namespace: "ns", Region: "r", NodeID: "n", NodeName: "node", Attempt: 7},
	Dirs:  driver.Dirs{Alloc: "/a/alloc", Task: "/a/task", Local: "/a/task/local", Secrets: "/a/task/secrets", Logs: "/a/alloc/logs"},
	Stdio: driver.Stdio{Stdout: "/f/out", Stderr: "/f/err"}, Scope: "scope", Cgroup: "/cg/x",
	Res:    driver.Resources{CPU: 100, Cores: []int{1, 3}, MemoryMB: 64, MemoryMax: 128},
	Mounts: []driver.Mount{{Source: "/s", Target: "/t", ReadOnly: true, Propagation: "private", SELinux: "z", Volume: "v"}},
	Ports:  []driver.Port{{Label: "http", HostIP: "1.2.3.4", Value: 8080, To: 80}}, Devices: []driver.Device{{HostPath: "/dev/x", TaskPath: "/dev/y", Permissions: "rw"}},
	DNS:     &driver.DNS{Servers: []string{"1.1.1.1"}, Searches: []string{"s"}, Options: []string{"ndots:2"}},
	Network: &driver.Network{Mode: "group", Path: "/run/netns/x", Labels: map[string]string{"k": "v"}, Hostname: "h", Address: "10.0.0.2"},
}

// Everything that an agent says reaches the driver, and back.
func TestLive(t *testing.T) {
	p, _, _ := launchRich(t)
	defer closePlugin(t, p)
	d, ctx := p.Driver().(whole), bounded(t)

	info := d.Info()
	require.Equal(t, "rich", info.Name)
	require.Equal(t, "1.2.3", info.Version)
	require.Equal(t, driver.Capabilities{SendSignals: true, Exec: true, FSIsolation: driver.FSImage, NetIsolation: []string{"host", "group"}, MustInitNetwork: true,
		NoMounts: true, DynamicUsers: true, CollectsLogs: true, RemountSecrets: true}, info.Capabilities)
	require.Equal(t, "code", info.TaskSchema.Attrs["code"].Nested.Name, "names under a default are spelled out")

	h, err := d.Start(ctx, fullTask)
	require.NoError(t, err)
	require.Equal(t, &driver.TaskNetwork{IP: "10.1.2.3", PortMap: map[string]int{"http": 80}, AutoAdvertise: true}, h.Network)
	said := tell(t, d)
	var got driver.TaskConfig
	require.NoError(t, json.Unmarshal([]byte(said[0]), &got))
	require.Equal(t, fullTask, got)
	var setup driver.Setup
	require.NoError(t, json.Unmarshal([]byte(said[1]), &setup))
	require.JSONEq(t, `{"endpoint":"http://x","workers":3,"ratio":0.1,"labels":{"a":"b"},"mirror":[{"url":"m1","tls":true},{"url":"m2","tls":false}]}`, string(setup.Config))
	require.Equal(t, testNode, setup.Node)

	st, err := d.Inspect(ctx, fullTask.ID)
	require.NoError(t, err)
	require.Equal(t, driver.TaskStatus{ID: fullTask.ID, State: "running", StartedAt: time.Unix(100, 0).UTC(), Attrs: map[string]string{"adopted": "false"}}, st)

	n, created, err := d.CreateNetwork(ctx, "a1", "host1")
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, &driver.Network{Mode: "group", Path: "/run/netns/a1", Labels: map[string]string{"h": "host1"}, Hostname: "host1", Address: "10.0.0.1"}, n)
	require.ErrorContains(t, d.DestroyNetwork(ctx, "a1", n), "alloc a1: {Mode:group Path:/run/netns/a1 Labels:map[h:host1] Hostname:host1 Address:10.0.0.1}")
	n, created, err = d.CreateNetwork(ctx, "a1", "none")
	require.NoError(t, err)
	require.Nil(t, n)
	require.False(t, created)
	require.NoError(t, d.DestroyNetwork(ctx, "a1", nil))

	err = d.Destroy(ctx, driver.TaskRef{ID: "proof", Handle: h, Scope: "sc", Cgroup: "/cg"}, true)
	require.ErrorContains(t, err, "scope sc, cgroup /cg, force true, handle "+fullTask.ID)
	require.ErrorContains(t, d.Destroy(ctx, driver.TaskRef{ID: "panic"}, true), "the driver panicked in Destroy: destroyed myself")
	require.NoError(t, d.Destroy(ctx, driver.TaskRef{ID: fullTask.ID, Handle: h}, true), "and lives on")
}

func TestLivePrepare(t *testing.T) {
	p, _, _ := launchRich(t)
	defer closePlugin(t, p)
	d := p.Driver().(whole)
	var got []driver.Event
	require.NoError(t, d.Prepare(bounded(t), fullTask, func(e driver.Event) { got = append(got, e) }))
	require.Len(t, got, 2)
	require.Equal(t, "pulling", got[0].Message)
	require.Equal(t, "1", got[0].Attrs["layer"])
	require.EqualError(t, got[1].Err, "mirror is down")
	busy := fullTask
	busy.Config = json.RawMessage(`{"do":"busy","code":null}`)
	err := d.Prepare(bounded(t), busy, func(driver.Event) {})
	require.EqualError(t, err, "no image yet")
	require.True(t, driver.IsRecoverable(err))
}

func TestLiveExec(t *testing.T) {
	p, _, _ := launchRich(t)
	defer closePlugin(t, p)
	d := p.Driver().(whole)
	var out, errs bytes.Buffer
	res, err := d.Exec(bounded(t), "id", driver.ExecRequest{Command: []string{"a", "b c"}, Env: []string{"X=1"},
		Stdin: io.NopCloser(strings.NewReader(strings.Repeat("x", 200_000))), Stdout: &out, Stderr: &errs})
	require.NoError(t, err)
	require.Equal(t, driver.ExitResult{Code: 3, OOMKilled: true}, res)
	require.Equal(t, "id [a b c] [X=1] {0 0}|"+strings.Repeat("x", 200_000), out.String())
	require.Equal(t, "complaint", errs.String())
	out.Reset()
	_, err = d.Exec(bounded(t), "id", driver.ExecRequest{TTY: true, Size: driver.TerminalSize{Rows: 5, Cols: 7}, Stdout: &out})
	require.NoError(t, err)
	require.Equal(t, "id [] [] {5 7}|", out.String())
	_, err = d.Exec(bounded(t), "nobody", driver.ExecRequest{})
	require.ErrorIs(t, err, driver.ErrTaskNotFound)
}

func TestLiveEvents(t *testing.T) {
	p, _, _ := launchRich(t)
	defer closePlugin(t, p)
	d := p.Driver().(whole)
	_, err := d.Start(bounded(t), fullTask)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(bounded(t))
	events, err := d.Events(ctx)
	require.NoError(t, err)
	require.NoError(t, d.Signal(ctx, fullTask.ID, "EVENT"))
	require.Equal(t, driver.Event{TaskID: fullTask.ID, AllocID: "alloc", Task: "task", Time: time.Unix(1000, 5).UTC(), Message: "hello", Attrs: map[string]string{"k": "v"}}, <-events)
	cancel()
	_, ok := <-events
	require.False(t, ok)
	require.NoError(t, d.Destroy(bounded(t), driver.TaskRef{ID: fullTask.ID, Cgroup: fullTask.Cgroup}, true))
}

// Each of the contract's errors is the same one on the other side, and no other.
func TestLiveErrors(t *testing.T) {
	p, _, _ := launchRich(t)
	d := p.Driver().(whole)
	for _, want := range contractErrors {
		err := d.Signal(bounded(t), strings.TrimPrefix(want.Error(), "driver: "), "KINDS")
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "because of")
		require.False(t, driver.IsRecoverable(err))
		for _, other := range contractErrors {
			require.Equal(t, other == want, errors.Is(err, other), "%v is %v", want, other)
		}
	}
	bad, busy := fullTask, fullTask
	bad.Config, busy.Config = json.RawMessage(`{"do":"bad"}`), json.RawMessage(`{"do":"busy"}`)
	_, err := d.Start(bounded(t), bad)
	require.EqualError(t, err, "no such command")
	require.False(t, driver.IsRecoverable(err))
	_, err = d.Start(bounded(t), busy)
	require.EqualError(t, err, "out of something")
	require.True(t, driver.IsRecoverable(err))

	why := errors.New("the caller's reason")
	ctx, cancel := context.WithCancelCause(bounded(t))
	cancel(why)
	require.ErrorIs(t, d.Signal(ctx, "x", "TELL"), why)

	large := fullTask
	large.Env = []string{"X=" + strings.Repeat("x", 5<<20)}
	_, err = d.Start(bounded(t), large)
	require.ErrorContains(t, err, "larger than max")

	// A process that dies takes its calls along, and says so.
	_, err = d.Start(bounded(t), fullTask)
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := d.Wait(bounded(t), fullTask.ID)
		waited <- err
	}()
	kill(t, p)
	require.ErrorIs(t, <-waited, driver.ErrPluginGone)
	require.ErrorIs(t, d.Signal(bounded(t), "x", "TELL"), driver.ErrPluginGone)
	_, err = d.Wait(bounded(t), fullTask.ID)
	require.ErrorIs(t, err, driver.ErrPluginGone)
	_, err = d.Events(bounded(t))
	if err == nil {
		_, err = d.Stats(bounded(t), "x", time.Second)
	}
	require.ErrorIs(t, err, driver.ErrPluginGone)
	closePlugin(t, p)
	closePlugin(t, p)
}

// A driver of the contract's core alone: the rest is "not implemented".
func TestLiveBare(t *testing.T) {
	p, _ := start(t, "bare")
	d, ctx := p.Driver().(whole), bounded(t)
	require.NoError(t, d.Prepare(ctx, fullTask, nil))
	_, err := d.Inspect(ctx, "x")
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	require.ErrorIs(t, d.Signal(ctx, "x", "SIGHUP"), driver.ErrNotImplemented)
	_, err = d.Exec(ctx, "x", driver.ExecRequest{Command: []string{"x"}})
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	_, err = d.Stats(ctx, "x", time.Second)
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	_, err = d.Events(ctx)
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	_, _, err = d.CreateNetwork(ctx, "x", "")
	require.ErrorIs(t, err, driver.ErrNotImplemented)
	require.ErrorIs(t, d.DestroyNetwork(ctx, "x", nil), driver.ErrNotImplemented)
	h, err := d.Start(ctx, fullTask)
	require.NoError(t, err)
	require.NoError(t, d.Destroy(ctx, driver.TaskRef{ID: fullTask.ID, Handle: h}, true))
}

// What an operator may configure is checked before the driver is used.
func TestLiveConfig(t *testing.T) {
	for config, want := range map[string]string{
		``:                                  `endpoint`,
		`{"endpoint":"x","wrokers":1}`:      `config.wrokers: is unknown; allowed: endpoint, labels, mirror, ratio, workers`,
		`{"endpoint":"x","workers":"many"}`: `config.workers`,
		`{"endpoint":"refuse"}`:             `the plugin refuses its configuration: endpoint cannot be reached`,
	} {
		l, _ := launch(t, "rich")
		l.Config = json.RawMessage(config)
		_, err := driverplugin.Launch(bounded(t), self(t), l)
		require.ErrorIs(t, err, driverplugin.ErrLaunch)
		require.ErrorContains(t, err, want)
		require.NoDirExists(t, l.Dir)
		require.Empty(t, alive(l))
	}
	l, _ := launch(t, "fake")
	l.Config = json.RawMessage(`{"x":1}`)
	_, err := driverplugin.Launch(bounded(t), self(t), l)
	require.ErrorContains(t, err, "config.x: is unknown; nothing is allowed here")
}

// Whoever waits for a task when the plugin goes hears that it is gone, or out of
// reach, whichever end of the connection was quicker: never that somebody had
// cancelled the wait.
func TestWaitingWhenThePluginGoes(t *testing.T) {
	for name, end := range map[string]func(*driverplugin.Plugin){
		"let go": func(p *driverplugin.Plugin) { p.Detach() },
		"killed": func(p *driverplugin.Plugin) { _ = syscall.Kill(p.PID(), syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := begin(t, "fake")
			rec := p.Record()
			d := p.Driver()
			_, err := d.Start(bounded(t), driver.TaskConfig{ID: "a/t/0", Name: "t", Config: json.RawMessage(`{"do":"sleep"}`)})
			require.NoError(t, err)
			waits := make(chan error, 3)
			for range cap(waits) {
				go func() { _, err := d.Wait(bounded(t), "a/t/0"); waits <- err }()
			}
			end(p)
			for range cap(waits) {
				err := <-waits
				require.True(t, errors.Is(err, driver.ErrPluginGone) || name == "let go" && errors.Is(err, driver.ErrUnavailable), "%v", err)
			}
			if name == "let go" {
				l, _ := launch(t, "fake")
				p, err = driverplugin.Reattach(bounded(t), rec, l)
				require.NoError(t, err)
			}
			closePlugin(t, p)
		})
	}
}
