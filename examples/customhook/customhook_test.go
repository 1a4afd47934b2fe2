// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
	"github.com/nodekeep/nodekeep/taskrunner/taskrunnertest"
)

// The lease through a life, a restore, and a crash before and after every write.
func TestPortLease(t *testing.T) {
	taskrunnertest.HookTest(t, taskrunnertest.HookConfig{
		New: func(t *testing.T) (taskrunner.HookFunc, func() []string) {
			p := &ports{dir: t.TempDir(), first: 8000, last: 8009}
			return portLease(p), p.held
		},
	})
}

// The hook is what the page promises: under 30 lines.
func TestLeaseIsShort(t *testing.T) {
	src, err := os.ReadFile("lease.go")
	require.NoError(t, err)
	_, body, _ := bytes.Cut(src, []byte("// lease is what"))
	require.Less(t, bytes.Count(body, []byte("\n")), 30)
}

func TestPool(t *testing.T) {
	p := &ports{dir: t.TempDir(), first: 1, last: 2}
	a, err := p.take("a")
	require.NoError(t, err)
	again, err := p.take("a")
	require.NoError(t, err)
	require.Equal(t, a, again)
	_, err = p.take("b")
	require.NoError(t, err)
	_, err = p.take("c")
	require.ErrorContains(t, err, "no port from 1 to 2 is free")
	require.NoError(t, p.give("a"))
	require.NoError(t, p.give("a"))
	require.Equal(t, []string{"b"}, p.held())
}

// The script sees every phase, in order, with the environment of its task.
func TestScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script of this test needs a shell")
	}
	log := filepath.Join(t.TempDir(), "phases")
	fake := &drivertest.Fake{Script: func(int, driver.TaskConfig) drivertest.Life {
		return drivertest.Life{Exit: driver.ExitResult{Code: 3}}
	}}
	alloc := &spec.Alloc{ID: "a", JobID: "j", Group: "g", JobType: spec.JobBatch,
		Tasks: []spec.Task{{Name: "t", Driver: "fake", Env: map[string]string{"LOG": log}, Restart: &spec.RestartPolicy{}}}}
	r, err := taskrunner.New(taskrunner.Config{Alloc: alloc, Task: "t", Drivers: fake, Store: state.Memory(),
		Hooks: []taskrunner.HookFunc{script("/bin/sh", "-c", `echo "$HOOK_PHASE $EXIT_CODE" >>"$LOG"; [ "$HOOK_PHASE" != stop ] || { echo no; exit 7; }`)}})
	require.NoError(t, err)
	require.NoError(t, r.Run(t.Context()))
	got, err := os.ReadFile(log)
	require.NoError(t, err)
	phases := strings.Fields(string(got))
	require.Equal(t, "prestart", phases[0])
	require.Equal(t, []string{"exited", "3", "stop"}, phases[len(phases)-3:])
	fake.Check(t)
}

// A script that fails before the start fails the task and tells its output.
func TestScriptFails(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script of this test needs a shell")
	}
	fake := &drivertest.Fake{}
	alloc := &spec.Alloc{ID: "a", JobID: "j", Group: "g", Tasks: []spec.Task{{Name: "t", Driver: "fake"}}}
	r, err := taskrunner.New(taskrunner.Config{Alloc: alloc, Task: "t", Drivers: fake, Store: state.Memory(),
		Hooks: []taskrunner.HookFunc{script("/bin/sh", "-c", `echo the disk is full; exit 7`)}})
	require.NoError(t, err)
	require.NoError(t, r.Run(t.Context()))
	s := r.Snapshot()
	require.True(t, s.Failed)
	require.Contains(t, s.Reason, "the disk is full")
	require.Zero(t, fake.Lives())
}
