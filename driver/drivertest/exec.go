// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// Exec runs Fake.Command, or else copies Stdin to Stdout. What it is doing ends
// with ctx, with the task and with Break.
func (f *Fake) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	if req.Stdin != nil {
		defer func() { _ = req.Stdin.Close() }()
	}
	if err := f.enter(ctx, Exec); err != nil {
		return driver.ExitResult{}, err
	}
	f.mu.Lock()
	p, err := f.task(id)
	f.init()
	broken := f.broken
	if err == nil && p.ended() {
		err = fmt.Errorf("%w: %s", driver.ErrTaskExited, id)
	}
	if err == nil && len(req.Command) == 0 {
		err = fmt.Errorf("%w: none was named", driver.ErrCommand)
	}
	if err == nil {
		f.commands = append(f.commands, slices.Clone(req.Command))
	}
	f.mu.Unlock()
	if err != nil {
		return driver.ExitResult{}, err
	}
	run := f.Command
	if run == nil {
		run = cat
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		if req.Stdin != nil {
			_ = req.Stdin.Close() // as it is once a command has ended
		}
	})
	defer stop()
	type ending struct {
		res driver.ExitResult
		err error
	}
	ended := make(chan ending, 1)
	go func() {
		res, err := run(ctx, p.cfg, req)
		ended <- ending{res, err}
	}()
	select {
	case e := <-ended:
		return e.res, e.err
	case <-p.done:
		cancel(nil)
		<-ended
		return driver.ExitResult{Code: 137, Signal: 9}, nil
	case <-broken:
		cancel(nil)
		<-ended
		f.mu.Lock()
		defer f.mu.Unlock()
		return driver.ExitResult{Code: -1, Err: "exit not seen"}, f.breakBy
	case <-ctx.Done():
		<-ended
		return driver.ExitResult{Code: 129, Signal: 1}, context.Cause(ctx)
	}
}

//nolint:unparam // a Fake.Command
func cat(_ context.Context, _ driver.TaskConfig, req driver.ExecRequest) (driver.ExitResult, error) {
	if req.Stdin == nil || req.Stdout == nil {
		return driver.ExitResult{}, nil
	}
	if _, err := io.Copy(req.Stdout, req.Stdin); err != nil {
		return driver.ExitResult{Code: 1}, nil
	}
	return driver.ExitResult{}, nil
}

// Stats streams Fake.Usage, or else samples that count up, until ctx or the task
// ends or Break is called.
func (f *Fake) Stats(ctx context.Context, id string, interval time.Duration) (<-chan driver.Usage, error) {
	if err := f.enter(ctx, Stats); err != nil {
		return nil, err
	}
	f.mu.Lock()
	p, err := f.task(id)
	f.init()
	broken := f.broken
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = time.Second
	}
	sample := f.Usage
	if sample == nil {
		sample = func(n int) driver.Usage {
			return driver.Usage{Pids: 1, Threads: 1, CPU: driver.CPUUsage{User: time.Duration(n) * time.Millisecond},
				Memory: driver.MemoryUsage{Usage: 1 << 20, RSS: 1 << 20, Measured: []string{"usage", "rss"}}}
		}
	}
	ch := make(chan driver.Usage, 1)
	go func() {
		defer close(ch)
		t := time.NewTicker(interval)
		defer t.Stop()
		for n := 0; !p.ended() && ctx.Err() == nil; n++ {
			u := sample(n)
			u.Time = time.Now()
			select {
			case ch <- u:
			case <-ctx.Done():
				return
			case <-p.done:
				return
			case <-broken:
				return
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			case <-p.done:
				return
			case <-broken:
				return
			}
		}
	}()
	return ch, nil
}

// Commands returns the commands that were run, in order.
func (f *Fake) Commands() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.commands)
}
