// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Command minimal runs one task with a TaskRunner alone: no agent, no state file.
// It prints the task's output, every step of its life on stderr, and ends with
// its exit code. Ctrl-C stops the task.
//
//	go run ./examples/minimal sh -c 'echo hello; exit 3'
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

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

// outputTo is a hook that says where the task writes: to a plain file here. An
// agent collects logs in rotating files instead: supervisor.Scope.Logs makes the
// FIFOs for that, and hooks/core has the hook.
func outputTo(file string) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[struct{}]{
			Name: "output", Stage: taskrunner.StageLogs,
			Prestart: func(context.Context, *taskrunner.Request, *struct{}) (taskrunner.Contribution, error) {
				return taskrunner.Contribution{Stdio: &driver.Stdio{Stdout: file, Stderr: file}}, nil
			},
		}, nil
	}
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: minimal COMMAND [ARG…]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code, err := run(ctx, os.Stdout, os.Stderr, os.Args[1], os.Args[2:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "minimal:", err)
	}
	os.Exit(code)
}

// run runs the command as a task until it has ended, or kills it when ctx ends,
// and returns its exit code: 1 with the error if it never ran.
func run(ctx context.Context, out, steps io.Writer, command string, args ...string) (code int, err error) {
	dir, err := os.MkdirTemp("", "minimal-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	pool, err := supervisor.NewPool(supervisor.PoolConfig{Dir: dir})
	if err != nil {
		return 1, err
	}
	defer pool.Close()
	raw, err := rawexec.New(rawexec.Config{Enabled: true})(pool)
	if err != nil {
		return 1, err
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return 1, err
	}
	defer output.Close()
	task, err := newTask(one{raw}, output.Name(), command, args)
	if err != nil {
		return 1, err
	}
	last := context.WithoutCancel(ctx)
	cancel := context.AfterFunc(ctx, func() { _ = task.Kill(last, taskrunner.KillRequest{Reason: "interrupted"}) })
	defer cancel()
	if err := task.Run(last); err != nil {
		return 1, err
	}
	if _, err := io.Copy(out, output); err != nil {
		return 1, err
	}
	end := task.Snapshot()
	for _, e := range end.Events {
		fmt.Fprintf(steps, "%-14s %s\n", e.Kind, e.Text())
	}
	if err := pool.Scope("minimal").Release(last); err != nil {
		return 1, err
	}
	switch {
	case end.Exit == nil:
		return 1, fmt.Errorf("%s did not run: %s", command, end.Reason)
	case end.Exit.Signal != 0:
		return 128 + end.Exit.Signal, nil
	case end.Exit.Code < 0:
		return 1, fmt.Errorf("how %s ended is not known: %s", command, end.Reason)
	}
	return end.Exit.Code, nil
}

// newTask makes the runner of a task that runs once.
func newTask(drivers taskrunner.Drivers, output, command string, args []string) (*taskrunner.TaskRunner, error) {
	config, err := json.Marshal(map[string]any{"command": command, "args": args})
	if err != nil {
		return nil, err
	}
	alloc := &spec.Alloc{ID: "minimal", JobID: "minimal", Group: "minimal", JobType: spec.JobBatch,
		Tasks: []spec.Task{{Name: "task", Driver: "raw_exec", Config: config, Restart: &spec.RestartPolicy{}}}}
	return taskrunner.New(taskrunner.Config{
		Alloc: alloc.WithDefaults(), Task: "task", Drivers: drivers, Store: state.Memory(), Scope: "minimal",
		Hooks: []taskrunner.HookFunc{outputTo(output)},
	})
}
