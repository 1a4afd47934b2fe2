// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Stats is somebody who always wants to know what tasks use, such as a host that
// feeds a database. Each measurement wakes the agent and the driver up.
type Stats struct {
	Interval time.Duration // 0 is a second
	// Sample is called with each sample of each task, one at a time for one task. It
	// must not block.
	Sample func(allocID, task string, u driver.Usage)
}

// stats measures the attempt that runs until it ends. A driver that cannot tell is
// left alone.
func stats(to *Stats) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[none]{
			Name: "stats", Stage: taskrunner.StageStats,
			Poststart: func(_ context.Context, r *taskrunner.Request, _ *none) error {
				alloc, task := r.Alloc.ID, r.Task.Name
				r.Go("stats", func(ctx context.Context) {
					for u, err := range r.Stats(ctx, to.Interval) {
						if err != nil {
							return
						}
						to.Sample(alloc, task, u)
					}
				})
				return nil
			},
		}, nil
	}
}
