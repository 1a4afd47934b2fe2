// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"strconv"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// lease is what the hook remembers; on disk after every callback.
type lease struct{ Port int }

// portLease gives each task a port of its own in PORT, from its first start until
// it will not run again. The port is taken in the task's name: whoever dies
// between taking it and writing that down finds the same one again.
func portLease(pool *ports) taskrunner.HookFunc {
	return func(a *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		owner := a.ID + "/" + t.Name
		return &taskrunner.Hook[lease]{
			Name: "port",
			Prestart: func(_ context.Context, _ *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
				if l.Port, err = pool.take(owner); err != nil {
					return c, driver.Recoverable(err) // the restart policy decides when to try again
				}
				c.Env = map[string]string{"PORT": strconv.Itoa(l.Port)}
				return c, nil
			},
			Stop: func(context.Context, *taskrunner.Request, *lease) error { return pool.give(owner) },
		}, nil
	}
}
