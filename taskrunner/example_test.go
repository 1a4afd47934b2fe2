// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// A task on its own, without an agent: it fails once and is started again. A real
// host has a store of state.Open and a driver such as rawexec.
func ExampleNew() {
	fails := &drivertest.Fake{Script: func(n int, _ driver.TaskConfig) drivertest.Life {
		return drivertest.Life{Exit: driver.ExitResult{Code: 1 - n}} // 1, then 0
	}}
	alloc := &spec.Alloc{ID: "a", JobID: "job", Group: "g", JobType: spec.JobBatch, Tasks: []spec.Task{{
		Name: "web", Driver: "fake",
		Restart: &spec.RestartPolicy{Attempts: 1, Interval: time.Hour, Delay: time.Millisecond, Mode: spec.RestartFail},
	}}}
	r, err := taskrunner.New(taskrunner.Config{Alloc: alloc, Task: "web", Drivers: fails, Store: state.Memory()})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := r.Run(context.TODO()); err != nil {
		fmt.Println(err) // the context ended: the task lives on, and the next New finds it
		return
	}
	s := r.Snapshot()
	fmt.Println(s.Phase, s.Failed, s.Restarts)
	for _, e := range s.Events {
		fmt.Println(e.Kind)
	}
	// Output:
	// dead false 1
	// Received
	// Task Setup
	// Started
	// Terminated
	// Restarting
	// Started
	// Terminated
}

// A hook that leases something for a task: taken and given back by a key that
// survives, so that doing either twice is the same as once. Its state is on disk after
// every callback.
func ExampleHook() {
	type pool interface {
		Take(owner string) (port int, err error)
		Give(owner string) error
	}
	type lease struct{ Port int } // persisted

	hook := func(p pool) taskrunner.HookFunc {
		return func(a *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
			owner := a.ID + "/" + t.Name
			return &taskrunner.Hook[lease]{
				Name: "port",
				Prestart: func(_ context.Context, _ *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
					if l.Port, err = p.Take(owner); err != nil {
						return c, driver.Recoverable(err) // the restart policy decides
					}
					c.Env = map[string]string{"PORT": fmt.Sprint(l.Port)}
					return c, nil
				},
				Stop: func(context.Context, *taskrunner.Request, *lease) error { return p.Give(owner) },
			}, nil
		}
	}
	_ = taskrunner.Config{Hooks: []taskrunner.HookFunc{hook(nil)}}
}

// What would happen if the task ended that way now?
func ExampleSnapshot_IfExited() {
	task := &spec.Task{Name: "web", Restart: &spec.RestartPolicy{Attempts: 2, Interval: time.Hour, Delay: 15 * time.Second, Mode: spec.RestartFail}}
	var s taskrunner.Snapshot // of a runner
	v := s.IfExited(task, spec.JobService, driver.ExitResult{Code: 137, Signal: 9}, time.Now())
	fmt.Println(v.Action, v.Delay)
	// Output: restart 15s
}
