// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

func (d *scripts) keep(id string, p process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tasks[id] = p
}

func (d *scripts) drop(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tasks, id)
}

// scope is the supervisor of a task that this process knows.
func (d *scripts) scope(id string) (*supervisor.Scope, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.tasks[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", driver.ErrTaskNotFound, id)
	}
	return d.pool.Scope(p.Scope), nil
}

// with asks a supervisor. While it is asked, the end of its last task may release
// it; then the next one is asked, since all that is asked may be repeated.
func (d *scripts) with(scope string, ask func(*supervisor.Scope) error) (err error) {
	for range 5 {
		if err = ask(d.pool.Scope(scope)); !errors.Is(err, supervisor.ErrClosed) {
			break
		}
	}
	return err
}

// Recover makes a task of an earlier process of this driver known again. Only what
// is proved to be gone is not found; every other error leaves it open.
func (d *scripts) Recover(ctx context.Context, h *driver.Handle) error {
	p, err := parse(h)
	if err != nil {
		return err
	}
	if _, err := d.pool.Scope(p.Scope).Adopt(ctx, p.identity(h.TaskID)); err != nil {
		return translate(err)
	}
	d.keep(h.TaskID, p)
	return nil
}

func parse(h *driver.Handle) (p process, err error) {
	if h.Driver != name || h.Version != 1 {
		return p, fmt.Errorf("script: handle of driver %s, version %d is not ours", h.Driver, h.Version)
	}
	if err := json.Unmarshal(h.State, &p); err != nil {
		return p, fmt.Errorf("script: handle of %q: %w", h.TaskID, err)
	}
	return p, nil
}

func (p process) identity(id string) supervisor.Identity {
	return supervisor.Identity{ID: id, PID: p.PID, Start: p.Start, BootID: p.BootID, Cgroup: p.Cgroup, Stdout: p.Stdout, Stderr: p.Stderr}
}

// Wait blocks until the task has exited. Its error never says how it ended.
func (d *scripts) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	sc, err := d.scope(id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	st, err := sc.Wait(ctx, id)
	if err != nil {
		return driver.ExitResult{}, translate(err)
	}
	return driver.ExitResult{Code: st.Code, Signal: st.Signal, OOMKilled: st.OOMKilled, Err: st.Err}, nil
}

// Stop sends the signal, and SIGKILL to all of the task when grace is over. That
// goes on when ctx ends.
func (d *scripts) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	sc, err := d.scope(id)
	if err != nil {
		return err
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	sig, err := signalNamed(signal)
	if err != nil {
		return err
	}
	if err := sc.Stop(ctx, id, sig, grace); err != nil {
		return translate(err)
	}
	_, err = sc.Wait(ctx, id)
	return translate(err)
}

// Signal sends a signal to the task's main process.
func (d *scripts) Signal(ctx context.Context, id, signal string) error {
	sc, err := d.scope(id)
	if err != nil {
		return err
	}
	sig, err := signalNamed(signal)
	if err != nil {
		return err
	}
	return translate(sc.Signal(ctx, id, sig))
}

// Inspect says how the task is doing.
func (d *scripts) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	sc, err := d.scope(id)
	if err != nil {
		return driver.TaskStatus{}, err
	}
	st, err := sc.Lookup(ctx, id)
	if err != nil {
		return driver.TaskStatus{}, translate(err)
	}
	out := driver.TaskStatus{ID: id, State: "running", Attrs: map[string]string{"pid": strconv.Itoa(st.PID)}}
	if st.Exited {
		out.State, out.Exit = "exited", &driver.ExitResult{Code: st.Code, Signal: st.Signal, OOMKilled: st.OOMKilled, Err: st.Err}
	}
	return out, nil
}

func signalNamed(s string) (syscall.Signal, error) {
	known := map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGINT": syscall.SIGINT,
		"SIGHUP": syscall.SIGHUP, "SIGQUIT": syscall.SIGQUIT}
	if sig, ok := known[s]; ok {
		return sig, nil
	}
	return 0, fmt.Errorf("%w %q: known are %s", driver.ErrUnknownSignal, s, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}

// Destroy leaves nothing of the task. One that this process has never seen is
// found by what the caller can prove.
func (d *scripts) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	d.mu.Lock()
	p := d.tasks[ref.ID]
	d.mu.Unlock()
	if p.Scope == "" && ref.Handle != nil {
		var err error
		if p, err = parse(ref.Handle); err != nil {
			return err
		}
	}
	if p.Scope == "" {
		p.Scope = ref.Scope
	}
	if p.Scope == "" {
		return fmt.Errorf("%w: %q, and nothing proves that it is gone", driver.ErrTaskNotFound, ref.ID)
	}
	err := d.with(p.Scope, func(sc *supervisor.Scope) error { return p.destroy(ctx, sc, ref.ID, force) })
	if err == nil {
		d.drop(ref.ID)
	}
	return err
}

func (p process) destroy(ctx context.Context, sc *supervisor.Scope, id string, force bool) error {
	st, err := sc.Lookup(ctx, id)
	if errors.Is(err, supervisor.ErrNotFound) && p.PID != 0 {
		st, err = sc.Adopt(ctx, p.identity(id))
	}
	if err == nil && !st.Exited && !force {
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, id)
	}
	if err == nil {
		err = sc.Destroy(ctx, id)
	}
	if err = translate(err); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		return err
	}
	// The supervisor goes with its last task.
	if err := sc.Release(ctx); err != nil && !errors.Is(err, supervisor.ErrBusy) {
		return translate(err)
	}
	return nil
}

// translate makes the supervisor's errors the contract's: what is gone, what
// cannot be said now and may be asked again, and what no second try mends.
func translate(err error) error {
	switch {
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return fmt.Errorf("%w: %w", driver.ErrTaskNotFound, err)
	case errors.Is(err, supervisor.ErrForeignScope):
		return fmt.Errorf("%w: %w", driver.ErrForeignScope, err)
	case errors.Is(err, supervisor.ErrClosed), errors.Is(err, supervisor.ErrNotAnswering):
		return driver.Recoverable(fmt.Errorf("%w: %w", driver.ErrUnavailable, err))
	case err != nil:
		return fmt.Errorf("script: %w", err)
	}
	return nil
}
