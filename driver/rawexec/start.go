// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Start implements driver.Driver. When ctx ends while the supervisor starts the
// task, it may run all the same: Start again returns it, Destroy ends it.
func (d *rawexec) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := d.Supported(); err != nil {
		return nil, err
	}
	r, err := d.Task(cfg.ID)
	if err == nil { // whatever the configuration says by now
		return d.Handle(cfg.ID, r)
	}
	if err := d.enabled(); err != nil {
		return nil, err
	}
	sp, err := d.spec(cfg)
	if err != nil || sp.Cgroup == "" {
		err = errors.Join(err, d.removeEmpty(cfg.Cgroup))
	}
	if err != nil {
		return nil, err
	}
	st, err := d.Scope(cfg.Scope).Start(ctx, sp)
	if err != nil {
		return nil, d.StartError(sp.Path, err)
	}
	r = supervised.Of(cfg.Scope, sp, st)
	d.Keep(cfg.ID, r)
	return d.Handle(cfg.ID, r)
}

// removeEmpty removes a cgroup that was made for a task and is not used after
// all. What is in it, if anything, an earlier agent started: Destroy's to end.
func (d *rawexec) removeEmpty(path string) error {
	if len(cgroup.Procs(path)) > 0 {
		return nil
	}
	return d.RemoveCgroups(path)
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
	env, eerr := supervised.Environment("rawexec", cfg.Env, func(name string) bool { return denied(name, d.cfg.DeniedEnv, tc.DeniedEnv) })
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

// Exec implements driver.Execer.
func (d *rawexec) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	return d.Run(ctx, id, req, supervised.Command{Spec: func(_ supervised.Record, env []string) (supervisor.ExecSpec, error) {
		return supervisor.ExecSpec{Path: req.Command[0], Args: req.Command, Env: env}, nil
	}})
}
