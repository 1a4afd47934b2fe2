// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

func TestTaskLine(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	then, three := now.Add(-time.Minute), 3
	for want, task := range map[string]api.Task{
		"pending (pending), not started yet":                              {State: "pending", Phase: "pending"},
		"pending (ready), never started in 3 tries":                       {State: "pending", Phase: "ready", Attempt: 2, Restarts: 2},
		"dead (dead), never started":                                      {State: "dead", Phase: "dead"},
		"running (running), pid 7, 0 restarts, exit -, for 60s":           {State: "running", Phase: "running", PID: 7, StartedAt: &then},
		"running (running), pid 7, 1 restart, exit 3, for 60s":            {State: "running", Phase: "running", PID: 7, StartedAt: &then, Attempt: 1, Restarts: 1, ExitCode: &three},
		"dead (dead), pid -, 2 restarts, exit 3 (out of memory), for 60s": {State: "dead", Phase: "dead", StartedAt: &then, FinishedAt: &then, Restarts: 2, ExitCode: &three, OOMKilled: true},
	} {
		require.Equal(t, want, taskLine(task, now))
	}
}

// Times have one form for people, whatever zone they come in.
func TestStamp(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	require.Equal(t, at.Local().Format("2006-01-02T15:04:05.000Z07:00"), stamp(at.In(time.FixedZone("X", 3600))))
	_, err := time.Parse(time.RFC3339Nano, stamp(at))
	require.NoError(t, err)
	in := api.Inspection{Alloc: api.Alloc{CreatedAt: at, Tasks: []api.Task{{Name: "t"}}}, Events: map[string][]api.Event{"t": {{Time: at, Kind: "Started"}}}}
	var out bytes.Buffer
	require.NoError(t, printInspection(&out, in, at))
	require.Equal(t, 2, strings.Count(out.String(), stamp(at)), out.String())
}

// What to try next is for a person at a terminal, on stderr, and not with --json.
func TestNext(t *testing.T) {
	for want, set := range map[string]func(a *app){
		"next: try x --data /d\n": func(*app) {},
		"":                        func(a *app) { a.json = true },
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, env: os.Getenv, global: global{data: "/d"}, person: func(io.Writer) bool { return true }}
		set(a)
		a.next("try x%s", a.dataFlag())
		require.Equal(t, want, errs.String())
		require.Empty(t, out.String())
	}
	var errs bytes.Buffer
	(&app{stderr: &errs}).next("nothing")
	require.Empty(t, errs.String(), "a buffer is no terminal")
}

func TestAfterRun(t *testing.T) {
	files := []string{"a.hcl", "b.hcl"}
	for name, tt := range map[string]struct {
		cfg  runConfig
		err  error
		want string
	}{
		"completed": {want: "next: nodekeep serve --data /d --enable-raw-exec is a node that stays; with it: nodekeep apply --data /d a.hcl b.hcl\n"},
		"detached":  {cfg: runConfig{detach: true}, want: "next: nodekeep run --data /d a.hcl b.hcl follows it, Ctrl-C there stops it\n"},
		"failed":    {err: exitCode(1), want: "next: nodekeep run --data /d --keep a.hcl b.hcl leaves its logs and files to look at\n"},
		"kept":      {cfg: runConfig{keep: true}, err: exitCode(1)},
		"stopped":   {err: exitCode(130)},
		"no node":   {err: errBusy},
	} {
		var errs bytes.Buffer
		a := &app{stderr: &errs, env: os.Getenv, global: global{data: "/d"}, person: func(io.Writer) bool { return true }}
		a.afterRun(tt.cfg, files, tt.err)
		require.Equal(t, tt.want, errs.String(), name)
	}
}
