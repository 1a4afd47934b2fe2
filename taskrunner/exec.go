// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

// Pauses before a stream of samples that ended is asked for again.
const (
	firstReopen = time.Second
	lastReopen  = 5 * time.Second
)

// workload is the driver and its id of the attempt that runs. Both are asked for
// anew at each use: a plugin that was started again is another driver, and a
// restart another attempt.
func (r *TaskRunner) workload(ctx context.Context) (driver.Driver, string, error) {
	s := r.Snapshot()
	if s.Handle == nil || s.Phase != Running && s.Phase != Stopping {
		return nil, "", ErrNotRunning
	}
	name := r.cfg.Alloc.Task(r.cfg.Task).Driver
	drv, err := r.cfg.Drivers.Driver(ctx, name)
	if err == nil && drv == nil {
		err = fmt.Errorf("taskrunner: no driver %q", name)
	}
	if err != nil {
		return nil, "", fmt.Errorf("driver %q: %w", name, err)
	}
	return drv, s.Handle.TaskID, nil
}

// Exec runs a command beside the task (see driver.Execer, also for the errors) in
// the caller's goroutine and returns when it has ended. It asks nothing of the
// loop, so it waits for no operation. Where nothing runs it is ErrNotRunning,
// driver.ErrNotImplemented where the driver cannot.
func (r *TaskRunner) Exec(ctx context.Context, req driver.ExecRequest) (res driver.ExitResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			res, err = driver.ExitResult{Code: -1, Err: "exit not seen"}, fmt.Errorf("taskrunner: the driver panicked: %v", p)
		}
		if err != nil && req.Stdin != nil {
			_ = req.Stdin.Close() // nobody else may have
		}
	}()
	drv, id, err := r.workload(ctx)
	if err != nil {
		return driver.ExitResult{}, err
	}
	x, ok := drv.(driver.Execer)
	if !ok || !drv.Info().Capabilities.Exec {
		return driver.ExitResult{}, fmt.Errorf("driver %q: exec: %w", drv.Info().Name, driver.ErrNotImplemented)
	}
	res, err = x.Exec(ctx, id, req)
	if errors.Is(err, driver.ErrTaskExited) {
		err = fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return res, err
}

// Stats yields what the task uses, at the interval (0 is a second), until ctx
// ends, the task is dead, or the driver says driver.ErrNotImplemented, which is
// the only error it yields. It measures only while somebody reads. Restarts of the
// task and of its driver interrupt it: it asks again after 1 s, doubling to 5 s,
// and while the task does not run it waits.
func (r *TaskRunner) Stats(ctx context.Context, interval time.Duration) iter.Seq2[driver.Usage, error] {
	return func(yield func(driver.Usage, error) bool) {
		for pause := firstReopen; r.awaitRunning(ctx); pause = min(2*pause, lastReopen) {
			got, err := r.samples(ctx, interval, func(u driver.Usage) bool { return yield(u, nil) })
			if errors.Is(err, driver.ErrNotImplemented) {
				yield(driver.Usage{}, err)
				return
			}
			if errors.Is(err, errEnough) {
				return
			}
			if got {
				pause = firstReopen
			}
			if sleep(ctx, pause) != nil {
				return
			}
		}
	}
}

// errEnough says that whoever reads samples wants no more.
var errEnough = errors.New("taskrunner: no more samples wanted")

// samples reads one stream of the driver to its end. got says that one came.
func (r *TaskRunner) samples(ctx context.Context, interval time.Duration, yield func(driver.Usage) bool) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	drv, id, err := r.workload(ctx)
	if err != nil {
		return false, err
	}
	m, ok := drv.(driver.Meter)
	if !ok {
		return false, fmt.Errorf("driver %q: stats: %w", drv.Info().Name, driver.ErrNotImplemented)
	}
	ch, err := m.Stats(ctx, id, interval)
	if err != nil {
		return false, err
	}
	for {
		select {
		case u, ok := <-ch:
			if !ok {
				return got, nil
			}
			got = true
			r.complete(&u)
			if !yield(u) {
				return got, errEnough
			}
		case <-ctx.Done():
			return got, context.Cause(ctx)
		}
	}
}

// complete adds what the job says, and drops what is no number.
func (r *TaskRunner) complete(u *driver.Usage) {
	res := r.cfg.Alloc.Task(r.cfg.Task).Resources
	m := &u.Memory
	m.Allocated = cmp.Or(m.Allocated, uint64(max(0, cmp.Or(res.MemoryMB, spec.DefaultMemoryMB)))<<20)
	m.AllocatedMax = cmp.Or(m.AllocatedMax, uint64(max(0, res.MemoryMaxMB))<<20, m.Allocated)
	for _, f := range []*float64{&u.CPU.Percent, &u.CPU.UserPercent, &u.CPU.SystemPercent, &u.CPU.Ticks} {
		if math.IsNaN(*f) || math.IsInf(*f, 0) {
			*f = 0
		}
	}
}

// awaitRunning waits for the task to run; false if it will not, or ctx ended.
func (r *TaskRunner) awaitRunning(ctx context.Context) bool {
	for ctx.Err() == nil {
		p := r.pub.Load()
		switch p.State() {
		case Running:
			return true
		case Dead:
			return false
		}
		select {
		case <-p.changed:
		case <-ctx.Done():
		case <-r.done:
			if r.pub.Load() == p {
				return false
			}
		}
	}
	return false
}
