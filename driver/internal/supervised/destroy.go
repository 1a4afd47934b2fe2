// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Destroy implements driver.Driver. It always asks the task's supervisor, started
// for that if need be: that there is no connection does not mean that there is no
// task. What that one does not know is ended by what the caller can prove: the
// process by the handle, all else by the cgroup.
func (t *Tasks) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := t.Supported(); err != nil {
		return err
	}
	r, unreadable := t.proof(ref)
	if r.Scope == "" {
		return errors.Join(fmt.Errorf("%w: %q, and neither handle nor scope proves that it is gone", driver.ErrTaskNotFound, ref.ID), unreadable)
	}
	sc := t.pool.Scope(r.Scope)
	st, err := sc.Lookup(ctx, ref.ID)
	if errors.Is(err, supervisor.ErrNotFound) && r.PID != 0 {
		st, err = sc.Adopt(ctx, r.identity(ref.ID))
	}
	switch {
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return t.destroyRest(ref, r, force, unreadable)
	case err != nil:
		return Translate(err)
	case !force && !st.Exited:
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, ref.ID)
	}
	if err := sc.Destroy(ctx, ref.ID); err != nil && !errors.Is(err, supervisor.ErrNotFound) {
		return Translate(err)
	}
	t.drop(ref.ID)
	return t.RemoveCgroups(append(r.groups(), ref.Cgroup)...)
}

// destroyRest ends what is left of a task whose main process is gone, or that
// was never seen to start.
func (t *Tasks) destroyRest(ref driver.TaskRef, r Record, force bool, unreadable error) error {
	if !force && busy(r.groups()) {
		return fmt.Errorf("%w: %q", driver.ErrTaskRunning, ref.ID)
	}
	t.drop(ref.ID)
	if err := t.RemoveCgroups(append(r.groups(), ref.Cgroup)...); err != nil {
		return err
	}
	if r.Isolated {
		if err := os.RemoveAll(filepath.Join(t.pool.Scope(r.Scope).StateRoot(), creator.Name(ref.ID))); err != nil {
			return fmt.Errorf("%s: state of the container: %w", t.prefix, err)
		}
	}
	if r.PID != 0 || r.Cgroup != "" {
		return nil
	}
	if unreadable != nil {
		return unreadable
	}
	return fmt.Errorf("%w: %q", driver.ErrTaskNotFound, ref.ID)
}

func busy(groups []string) bool {
	return slices.ContainsFunc(groups, func(p string) bool { return len(cgroup.Procs(p)) > 0 })
}

// RemoveCgroups ends what is in cgroups and removes them. "" is none.
func (t *Tasks) RemoveCgroups(paths ...string) error {
	for _, p := range paths {
		if p == "" {
			continue
		}
		if err := cgroup.Remove(p); err != nil {
			return fmt.Errorf("%s: %w", t.prefix, err)
		}
	}
	return nil
}

// proof is what the caller or this driver knows of a task, the handle first. A
// handle that cannot be read leaves scope and cgroup, and the error.
func (t *Tasks) proof(ref driver.TaskRef) (Record, error) {
	rest := Record{Scope: ref.Scope, Cgroup: ref.Cgroup, Isolated: t.isolated}
	if ref.Handle != nil {
		r, err := t.Parse(ref.Handle)
		if err == nil && ref.Handle.TaskID != ref.ID {
			err = fmt.Errorf("%s: handle is task %q's, not %q's", t.prefix, ref.Handle.TaskID, ref.ID)
		}
		if err != nil {
			return rest, err
		}
		return r, nil
	}
	if r, err := t.Task(ref.ID); err == nil {
		return r, nil
	}
	return rest, nil
}
