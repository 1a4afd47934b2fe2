// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
)

// execFake is a fake that runs commands.
func execFake() *drivertest.Fake {
	f := fake()
	f.Capabilities.Exec = true
	return f
}

// logged collects a log.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines are the lines about execs.
func (l *logged) lines() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, "exec") {
			out = append(out, line)
		}
	}
	return out
}

func TestExec(t *testing.T) {
	f, log := execFake(), &logged{}
	cfg := config(t, f)
	cfg.Log = hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info})
	n := start(t, cfg)
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	call := ExecCall{AllocID: "a", Task: "t", By: "uid 7"}
	var out bytes.Buffer
	f.Command = func(_ context.Context, _ driver.TaskConfig, req driver.ExecRequest) (driver.ExitResult, error) {
		_, err := io.Copy(req.Stdout, req.Stdin)
		return driver.ExitResult{Code: 3}, err
	}
	res, err := n.Exec(t.Context(), call, driver.ExecRequest{Command: []string{"cat", "x"}, Stdin: io.NopCloser(strings.NewReader("hi")), Stdout: &out})
	require.NoError(t, err)
	require.Equal(t, 3, res.Code)
	require.Equal(t, "hi", out.String())
	lines := log.lines()
	require.Len(t, lines, 2)
	for _, want := range []string{"uid 7", "alloc_id=a", "task=t", "cat"} {
		require.Contains(t, lines[0], want)
	}
	require.Contains(t, lines[1], "exit_code=3")

	closed := &closing{}
	call.AllocID = "nobody"
	_, err = n.Exec(t.Context(), call, driver.ExecRequest{Command: []string{"x"}, Stdin: closed})
	require.ErrorIs(t, err, ErrNoAlloc)
	require.True(t, closed.done)
	call.AllocID, call.Task = "a", "nix"
	_, err = n.Exec(t.Context(), call, driver.ExecRequest{Command: []string{"x"}})
	require.ErrorIs(t, err, allocrunner.ErrUnknownTask)

	n.apply(2, stopped(al, 2))
	n.over("a")
	call.Task = "t"
	_, err = n.Exec(t.Context(), call, driver.ExecRequest{Command: []string{"late"}})
	require.ErrorIs(t, err, allocrunner.ErrTerminal)
	require.Len(t, f.Commands(), 1, "nothing was run in an alloc that has ended")
}

type closing struct{ done bool }

func (c *closing) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closing) Close() error             { c.done = true; return nil }

// A node that runs no commands says so before anything else happens.
func TestExecPolicy(t *testing.T) {
	f := execFake()
	cfg := config(t, f)
	no := errors.New("not you")
	var asked []ExecCall
	cfg.Exec = ExecPolicy{Allow: func(_ context.Context, c ExecCall) error {
		asked = append(asked, c)
		if c.By == "friend" {
			return nil
		}
		return no
	}}
	n := start(t, cfg)
	n.apply(1, alloc("a", 1, spec.JobService))
	n.status("a", allocrunner.Running)
	_, err := n.Exec(t.Context(), ExecCall{AllocID: "a", Task: "t", By: "foe"}, driver.ExecRequest{Command: []string{"rm", "x"}, TTY: true})
	require.ErrorIs(t, err, ErrExecRefused)
	require.ErrorIs(t, err, no)
	require.Equal(t, []ExecCall{{AllocID: "a", Task: "t", By: "foe", Command: []string{"rm", "x"}, TTY: true}}, asked)
	require.Empty(t, f.Commands())
	_, err = n.Exec(t.Context(), ExecCall{AllocID: "a", Task: "t", By: "friend"}, driver.ExecRequest{Command: []string{"ls"}})
	require.NoError(t, err)

	n.cfg.Exec = ExecPolicy{Disabled: true, Allow: func(context.Context, ExecCall) error { panic("not asked") }}
	n = n.again()
	_, err = n.Exec(t.Context(), ExecCall{AllocID: "a", Task: "t", By: "friend"}, driver.ExecRequest{Command: []string{"ls"}})
	require.ErrorIs(t, err, ErrExecRefused)
	require.Len(t, f.Commands(), 1)
}

func TestStats(t *testing.T) {
	f := execFake()
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobService)
	al.Tasks = append(al.Tasks, spec.Task{Name: "u", Driver: "fake", KillTimeout: time.Second})
	n.apply(1, al)
	n.status("a", allocrunner.Running)
	_, ok := n.LastStats("a", "t")
	require.False(t, ok)
	require.Zero(t, f.Count(drivertest.Stats), "nobody wanted any")

	seen := map[string]int{}
	for u, err := range n.Stats(t.Context(), "a", "", time.Millisecond) {
		require.NoError(t, err)
		require.Equal(t, "a", u.AllocID)
		require.NotZero(t, u.Memory.Allocated)
		if seen[u.Task]++; seen["t"] > 2 && seen["u"] > 2 {
			break
		}
	}
	last, ok := n.LastStats("a", "u")
	require.True(t, ok)
	require.Equal(t, "u", last.Task)
	require.False(t, last.Time.IsZero())
	for u, err := range n.Stats(t.Context(), "a", "t", time.Millisecond) {
		require.NoError(t, err)
		require.Equal(t, "t", u.Task)
		break
	}
	fails := func(id, task string, want error) {
		t.Helper()
		n2 := 0
		for _, err := range n.Stats(t.Context(), id, task, 0) {
			require.ErrorIs(t, err, want)
			n2++
		}
		require.Equal(t, 1, n2)
	}
	fails("nobody", "", ErrNoAlloc)
	fails("a", "nix", allocrunner.ErrUnknownTask)
	f.Fail(drivertest.Stats, -1, driver.ErrNotImplemented)
	fails("a", "", driver.ErrNotImplemented)
	f.Fail(drivertest.Stats, 0, nil)

	go func() {
		n.apply(2, stopped(al, 2))
	}()
	for _, err := range n.Stats(t.Context(), "a", "", time.Millisecond) { // ends with the tasks
		if err != nil {
			require.ErrorIs(t, err, allocrunner.ErrTerminal)
		}
	}
	n.over("a")
	fails("a", "", allocrunner.ErrTerminal)
}
