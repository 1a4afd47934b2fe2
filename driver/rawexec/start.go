// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Start implements driver.Driver. When ctx ends while the supervisor starts the
// task, it may run all the same: Start again returns it, Destroy ends it.
func (d *rawexec) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := d.supported(); err != nil {
		return nil, err
	}
	r, err := d.task(cfg.ID)
	if err == nil { // whatever the configuration says by now
		return handle(cfg.ID, r)
	}
	if err := d.enabled(); err != nil {
		return nil, err
	}
	sp, err := d.spec(cfg)
	if err != nil || sp.Cgroup == "" {
		err = errors.Join(err, removeEmpty(cfg.Cgroup))
	}
	if err != nil {
		return nil, err
	}
	st, err := d.pool.Scope(cfg.Scope).Start(ctx, sp)
	if err != nil {
		return nil, startError(sp, err)
	}
	r = record{PID: st.PID, Start: st.Start, BootID: st.BootID, Scope: cfg.Scope,
		Cgroup: sp.Cgroup, Stdout: sp.Stdout, Stderr: sp.Stderr, ExitDir: sp.ExitDir}
	d.keep(cfg.ID, r)
	return handle(cfg.ID, r)
}

func handle(id string, r record) (*driver.Handle, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("rawexec: handle: %w", err)
	}
	return &driver.Handle{Driver: Name, TaskID: id, Version: recordVersion, PID: r.PID, State: raw}, nil
}

// removeEmpty removes a cgroup that was made for a task and is not used after
// all. What is in it, if anything, an earlier agent started: Destroy's to end.
func removeEmpty(path string) error {
	if len(cgroup.Procs(path)) > 0 {
		return nil
	}
	return removeCgroups(path)
}

// spec is the process to start. It touches nothing but the mode of a program in
// the task's own directory.
func (d *rawexec) spec(cfg driver.TaskConfig) (supervisor.Spec, error) {
	tc, err := decode(cfg.Config)
	if cfg.Scope == "" {
		err = errors.Join(err, errors.New("rawexec: TaskConfig.Scope is empty: name the supervisor scope of the task"))
	}
	if len(cfg.Mounts) > 0 || len(cfg.Devices) > 0 {
		err = errors.Join(err, errors.New("rawexec: mounts and devices need a driver with a file system of its own: use their paths on the host"))
	}
	if cfg.Network != nil && cfg.Network.Path != "" {
		err = errors.Join(err, fmt.Errorf("rawexec: network mode %q: tasks run in the host's network", cfg.Network.Mode))
	}
	env, eerr := environment(cfg.Env, d.cfg.DeniedEnv, tc.DeniedEnv)
	if err = errors.Join(err, eerr); err != nil {
		return supervisor.Spec{}, err
	}
	sp := supervisor.Spec{ID: cfg.ID, Stdout: cfg.Stdio.Stdout, Stderr: cfg.Stdio.Stderr, Env: env, Cgroup: cfg.Cgroup,
		OOMScoreAdj: tc.OOMScore, Args: append([]string{tc.Command}, tc.Args...)}
	if cfg.Dirs.Alloc != "" {
		// The parent of the shared directory: on disk and not the task's to write.
		sp.ExitDir = filepath.Dir(cfg.Dirs.Alloc)
	}
	if sp.Dir, err = workDir(cfg.Dirs, tc.WorkDir); err != nil {
		return sp, err
	}
	if err := d.user(cfg.User, &sp); err != nil {
		return sp, err
	}
	if sp.Path, err = program(cfg.Dirs.Task, tc.Command, env); err != nil {
		return sp, err
	}
	if d.cfg.NoCgroups || tc.NoCgroups {
		sp.Cgroup = ""
	}
	return sp, nil
}

// passing are the errors that may go away by themselves.
var passing = []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC,
	syscall.EBUSY, syscall.EIO, syscall.EINTR, syscall.ETXTBSY}

// startError tells what the task's author did (final) from what passes by itself.
func startError(sp supervisor.Spec, err error) error {
	if t := translate(err); errors.Is(t, driver.ErrForeignScope) || driver.IsRecoverable(t) {
		return t
	}
	cause := err
	err = fmt.Errorf("rawexec: start %s: %w", sp.Path, err)
	if slices.ContainsFunc(passing, func(e error) bool { return errors.Is(cause, e) }) {
		return driver.Recoverable(err)
	}
	return err
}
