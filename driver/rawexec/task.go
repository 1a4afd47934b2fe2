// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

// record is the handle's state: enough to find the process again, or to end it.
type record struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks since boot
	BootID  string `json:"boot_id"`
	Scope   string `json:"scope"`
	Cgroup  string `json:"cgroup,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	Stderr  string `json:"stderr,omitempty"`
	ExitDir string `json:"exit_dir,omitempty"`
}

const recordVersion = 1

func (r record) identity(id string) supervisor.Identity {
	return supervisor.Identity{ID: id, PID: r.PID, Start: r.Start, BootID: r.BootID,
		Cgroup: r.Cgroup, Stdout: r.Stdout, Stderr: r.Stderr, ExitDir: r.ExitDir}
}

// parse reads a handle. What it returns names one process beyond doubt.
func parse(h *driver.Handle) (record, error) {
	var r record
	if h == nil || h.Driver != Name || h.Version > recordVersion {
		return r, fmt.Errorf("rawexec: handle %+v is not ours (%s, version at most %d)", h, Name, recordVersion)
	}
	if err := json.Unmarshal(h.State, &r); err != nil {
		return r, fmt.Errorf("rawexec: handle of task %q: %w", h.TaskID, err)
	}
	if r.PID <= 0 || r.Start == 0 || r.BootID == "" || r.Scope == "" {
		return r, fmt.Errorf("rawexec: handle of task %q lacks pid, start, boot_id or scope: %s", h.TaskID, h.State)
	}
	return r, nil
}

// Recover implements driver.Driver. A handle that cannot be read is another
// error than ErrTaskNotFound: it proves nothing.
func (d *rawexec) Recover(ctx context.Context, h *driver.Handle) error {
	if err := d.supported(); err != nil {
		return err
	}
	r, err := parse(h)
	if err != nil {
		return err
	}
	if _, err := d.pool.Scope(r.Scope).Adopt(ctx, r.identity(h.TaskID)); err != nil {
		return translate(err)
	}
	d.keep(h.TaskID, r)
	return nil
}

// Wait implements driver.Driver.
func (d *rawexec) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	r, err := d.task(id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	st, err := d.pool.Scope(r.Scope).Wait(ctx, id)
	if err != nil {
		return driver.ExitResult{}, translate(err)
	}
	return exit(st), nil
}

func exit(st supervisor.Status) driver.ExitResult {
	return driver.ExitResult{Code: st.Code, Signal: st.Signal, OOMKilled: st.OOMKilled, Err: st.Err}
}

// Stop implements driver.Driver. No signal is SIGTERM.
func (d *rawexec) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	r, err := d.task(id)
	if err != nil {
		return err
	}
	if signal == "" {
		signal = "SIGTERM"
	}
	sig, err := signalByName(signal)
	if err != nil {
		return err
	}
	sc := d.pool.Scope(r.Scope)
	if err := sc.Stop(ctx, id, sig, grace); err != nil {
		return translate(err)
	}
	_, err = sc.Wait(ctx, id)
	return translate(err)
}

// Signal implements driver.Signaler. Names are those of kill -l, with or without
// SIG. When it fails with ErrUnavailable the signal was sent or was not.
func (d *rawexec) Signal(ctx context.Context, id, signal string) error {
	r, err := d.task(id)
	if err != nil {
		return err
	}
	sig, err := signalByName(signal)
	if err != nil {
		return err
	}
	return translate(d.pool.Scope(r.Scope).Signal(ctx, id, sig))
}

// Inspect implements driver.Inspector. ExitedAt is not known.
func (d *rawexec) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	r, err := d.task(id)
	if err != nil {
		return driver.TaskStatus{}, err
	}
	st, err := d.pool.Scope(r.Scope).Lookup(ctx, id)
	if err != nil {
		return driver.TaskStatus{}, translate(err)
	}
	out := driver.TaskStatus{ID: id, State: "running", StartedAt: startedAt(st), Attrs: map[string]string{
		"pid": strconv.Itoa(st.PID), "scope": r.Scope, "cgroup": r.Cgroup, "adopted": strconv.FormatBool(st.Adopted)}}
	if st.OutputLost {
		out.Attrs["output_lost"] = "true"
	}
	if st.Exited {
		res := exit(st)
		out.State, out.Exit = "exited", &res
	}
	return out, nil
}

// translate makes the supervisor's errors the contract's.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return fmt.Errorf("%w: %w", driver.ErrTaskNotFound, err)
	case errors.Is(err, supervisor.ErrForeignScope):
		return fmt.Errorf("%w: %w", driver.ErrForeignScope, err)
	case errors.Is(err, supervisor.ErrClosed), errors.Is(err, supervisor.ErrNotAnswering):
		return driver.Recoverable(fmt.Errorf("%w: %w", driver.ErrUnavailable, err))
	}
	return err
}
