// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"errors"
	"fmt"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Destroy implements driver.Driver. It always asks the task's supervisor, started
// for that if need be: that there is no connection does not mean that there is no
// task. What that one does not know is ended by what the caller can prove: the
// process by the handle, all else by the cgroup.
func (d *rawexec) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := d.supported(); err != nil {
		return err
	}
	r, unreadable := d.proof(ref)
	if r.Scope == "" {
		return errors.Join(fmt.Errorf("%w: %q, and neither handle nor scope proves that it is gone", driver.ErrTaskNotFound, ref.ID), unreadable)
	}
	sc := d.pool.Scope(r.Scope)
	st, err := sc.Lookup(ctx, ref.ID)
	if errors.Is(err, supervisor.ErrNotFound) && r.PID != 0 {
		st, err = sc.Adopt(ctx, r.identity(ref.ID))
	}
	switch {
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return d.destroyRest(ref, r, force, unreadable)
	case err != nil:
		return translate(err)
	case !force && !st.Exited:
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, ref.ID)
	}
	if err := sc.Destroy(ctx, ref.ID); err != nil && !errors.Is(err, supervisor.ErrNotFound) {
		return translate(err)
	}
	d.drop(ref.ID)
	return removeCgroups(r.Cgroup, ref.Cgroup)
}

// destroyRest ends what is left of a task whose main process is gone, or that
// was never seen to start.
func (d *rawexec) destroyRest(ref driver.TaskRef, r record, force bool, unreadable error) error {
	if !force && len(cgroup.Procs(r.Cgroup)) > 0 {
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, ref.ID)
	}
	d.drop(ref.ID)
	if err := removeCgroups(r.Cgroup, ref.Cgroup); err != nil {
		return err
	}
	if r.PID != 0 || r.Cgroup != "" {
		return nil
	}
	if unreadable != nil {
		return unreadable
	}
	return fmt.Errorf("%w: %q", driver.ErrTaskNotFound, ref.ID)
}

func removeCgroups(paths ...string) error {
	for _, p := range paths {
		if p == "" {
			continue
		}
		if err := cgroup.Remove(p); err != nil {
			return fmt.Errorf("rawexec: %w", err)
		}
	}
	return nil
}

// proof is what the caller or this driver knows of a task, the handle first. A
// handle that cannot be read leaves scope and cgroup, and the error.
func (d *rawexec) proof(ref driver.TaskRef) (record, error) {
	rest := record{Scope: ref.Scope, Cgroup: ref.Cgroup}
	if ref.Handle != nil {
		r, err := parse(ref.Handle)
		if err == nil && ref.Handle.TaskID != ref.ID {
			err = fmt.Errorf("rawexec: handle is task %q's, not %q's", ref.Handle.TaskID, ref.ID)
		}
		if err != nil {
			return rest, err
		}
		return r, nil
	}
	if r, err := d.task(ref.ID); err == nil {
		return r, nil
	}
	return rest, nil
}
