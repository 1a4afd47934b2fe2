// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// Exec runs a command beside a task of the alloc (see taskrunner.TaskRunner.Exec).
// Once the alloc has ended it is ErrTerminal, and nothing is run.
func (r *AllocRunner) Exec(ctx context.Context, task string, req driver.ExecRequest) (driver.ExitResult, error) {
	t, err := r.living(task)
	if err != nil {
		if req.Stdin != nil {
			_ = req.Stdin.Close()
		}
		return driver.ExitResult{}, err
	}
	return t.Exec(ctx, req)
}

// Stats yields what a task uses (see taskrunner.TaskRunner.Stats). Once the alloc
// has ended it is ErrTerminal.
func (r *AllocRunner) Stats(ctx context.Context, task string, interval time.Duration) (iter.Seq2[driver.Usage, error], error) {
	t, err := r.living(task)
	if err != nil {
		return nil, err
	}
	return t.Stats(ctx, interval), nil
}

// living finds a task of an alloc that has not ended.
func (r *AllocRunner) living(name string) (*task, error) {
	if r.Snapshot().Status.Terminal() {
		return nil, ErrTerminal
	}
	for _, t := range r.tasks {
		if t.name == name {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownTask, name)
}
