// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command minimal runs one task with a TaskRunner alone: no agent, no state file.
//
//	go run ./examples/minimal sh -c 'echo hello >/dev/tty; exit 3'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// one is a source of drivers that has one.
type one struct{ d driver.Driver }

func (o one) Driver(context.Context, string) (driver.Driver, error) { return o.d, nil }

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: minimal COMMAND [ARG…]")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2:]...); err != nil {
		fmt.Fprintln(os.Stderr, "minimal:", err)
		os.Exit(1)
	}
}

// run runs the command as a task and prints every step of its life.
func run(ctx context.Context, out io.Writer, command string, args ...string) error {
	dir, err := os.MkdirTemp("", "minimal-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: dir})
	if err != nil {
		return err
	}
	defer pool.Close()
	raw, err := rawexec.New(rawexec.Config{Enabled: true})(pool)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{"command": command, "args": args})
	if err != nil {
		return err
	}
	alloc := &spec.Alloc{ID: "minimal", JobID: "minimal", Group: "minimal", JobType: spec.JobBatch,
		Tasks: []spec.Task{{Name: "task", Driver: "raw_exec", Config: config, Restart: &spec.RestartPolicy{}}}}
	task, err := taskrunner.New(taskrunner.Config{Alloc: alloc.WithDefaults(), Task: "task", Drivers: one{raw}, Store: state.Memory(), Scope: "minimal"})
	if err != nil {
		return err
	}
	if err := task.Run(ctx); err != nil {
		return err
	}
	for _, e := range task.Snapshot().Events {
		fmt.Fprintf(out, "%-12s %s\n", e.Kind, e.Text())
	}
	return pool.Scope("minimal").Release(ctx)
}
