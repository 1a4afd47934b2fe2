// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"context"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Recover implements driver.Driver. A handle that cannot be read is another
// error than ErrTaskNotFound: it proves nothing.
func (t *Tasks) Recover(ctx context.Context, h *driver.Handle) error {
	if err := t.Supported(); err != nil {
		return err
	}
	r, err := t.Parse(h)
	if err != nil {
		return err
	}
	if _, err := t.pool.Scope(r.Scope).Adopt(ctx, r.identity(h.TaskID)); err != nil {
		return Translate(err)
	}
	t.Keep(h.TaskID, r)
	return nil
}

// Wait implements driver.Driver.
func (t *Tasks) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	r, err := t.Task(id)
	if err != nil {
		return driver.ExitResult{}, err
	}
	st, err := t.pool.Scope(r.Scope).Wait(ctx, id)
	if err != nil {
		return driver.ExitResult{}, Translate(err)
	}
	return exit(st), nil
}

func exit(st supervisor.Status) driver.ExitResult {
	return driver.ExitResult{Code: st.Code, Signal: st.Signal, OOMKilled: st.OOMKilled, Err: st.Err}
}

// Stop implements driver.Driver. No signal is SIGTERM.
func (t *Tasks) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	r, err := t.Task(id)
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
	sc := t.pool.Scope(r.Scope)
	if err := sc.Stop(ctx, id, sig, grace); err != nil {
		return Translate(err)
	}
	_, err = sc.Wait(ctx, id)
	return Translate(err)
}

// Signal implements driver.Signaler. Names are those of kill -l, with or without
// SIG. When it fails with ErrUnavailable the signal was sent or was not.
func (t *Tasks) Signal(ctx context.Context, id, signal string) error {
	r, err := t.Task(id)
	if err != nil {
		return err
	}
	sig, err := signalByName(signal)
	if err != nil {
		return err
	}
	return Translate(t.pool.Scope(r.Scope).Signal(ctx, id, sig))
}

// Inspect implements driver.Inspector. ExitedAt is not known.
func (t *Tasks) Inspect(ctx context.Context, id string) (driver.TaskStatus, error) {
	r, err := t.Task(id)
	if err != nil {
		return driver.TaskStatus{}, err
	}
	st, err := t.pool.Scope(r.Scope).Lookup(ctx, id)
	if err != nil {
		return driver.TaskStatus{}, Translate(err)
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
