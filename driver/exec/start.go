// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Start implements driver.Driver. When ctx ends while the container is made, the
// task may run all the same: Start again returns it, Destroy ends it.
func (d *execDriver) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := d.Supported(); err != nil {
		return nil, err
	}
	r, err := d.Task(cfg.ID)
	if err == nil { // whatever the configuration says by now
		return d.Handle(cfg.ID, r)
	}
	sp, applied, err := d.spec(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, d.removeEmpty(cfg.Cgroup))
	}
	select {
	case d.creators <- struct{}{}:
	case <-ctx.Done():
		return nil, driver.Recoverable(context.Cause(ctx))
	}
	st, err := d.Scope(cfg.Scope).Start(ctx, sp)
	<-d.creators
	if err != nil {
		return nil, d.startError(ctx, sp, err)
	}
	r = supervised.Of(cfg.Scope, sp, st)
	r.Attrs = map[string]string{"isolation": text(applied)}
	d.Keep(cfg.ID, r)
	return d.Handle(cfg.ID, r)
}

// removeEmpty removes a cgroup that was made for a task which is not started. What is
// in it, if anything, an earlier agent started: Destroy's to end.
func (d *execDriver) removeEmpty(path string) error {
	if len(cgroup.Procs(path)) > 0 {
		return nil
	}
	return d.RemoveCgroups(path)
}

// spec is the container to have made.
func (d *execDriver) spec(ctx context.Context, cfg driver.TaskConfig) (supervisor.Spec, container.Applied, error) {
	var sp supervisor.Spec
	f := d.probe(ctx, false)
	if err := d.usable(f); err != nil {
		return sp, container.Applied{}, err
	}
	if cfg.Scope == "" {
		return sp, container.Applied{}, errors.New("exec: TaskConfig.Scope is empty: name the supervisor scope of the task")
	}
	opt, err := container.Decode(cfg.Config)
	if err != nil {
		return sp, container.Applied{}, err
	}
	c, applied, err := container.Build(cfg, opt, d.node(f, d.Scope(cfg.Scope).StateRoot(), cgroup.Below(cfg.Cgroup)))
	if err != nil {
		return sp, applied, err
	}
	b, err := c.Encode()
	if err != nil {
		return sp, applied, fmt.Errorf("exec: %w", err)
	}
	sp = supervisor.Spec{ID: cfg.ID, Path: opt.Command, Stdout: cfg.Stdio.Stdout, Stderr: cfg.Stdio.Stderr, Cgroup: cfg.Cgroup,
		OOMScoreAdj: c.Process.OOMScoreAdj, Container: &supervisor.Container{Creator: d.creator(), Spec: b}}
	if cfg.Dirs.Alloc != "" {
		// The parent of the shared directory: on disk and not the task's to write.
		sp.ExitDir = filepath.Dir(cfg.Dirs.Alloc)
	}
	return sp, applied, nil
}

// startError tells what the task's author did from what passes, and has the machine
// looked at again where it was neither.
func (d *execDriver) startError(ctx context.Context, sp supervisor.Spec, err error) error {
	var errno syscall.Errno
	if errors.Is(err, supervisor.ErrProgram) && errors.As(err, &errno) {
		return fmt.Errorf("exec: start: %w", container.ExecError(sp.Path, errno))
	}
	if errors.Is(err, supervisor.ErrUnsupported) {
		return fmt.Errorf("exec: start %s: the supervisor of this alloc is older than this driver; a new alloc gets a new one: %w", sp.Path, err)
	}
	err = d.StartError(sp.Path, err)
	if !driver.IsRecoverable(err) && !errors.Is(err, driver.ErrForeignScope) {
		d.probe(ctx, true)
	}
	return err
}

// Exec implements driver.Execer. A terminal is made in the container and sent here.
func (d *execDriver) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	return d.Run(ctx, id, req, supervised.Command{Console: true, Spec: func(r supervised.Record, env []string) (supervisor.ExecSpec, error) {
		root := d.Scope(r.Scope).StateRoot()
		x := container.Exec{Version: container.SpecVersion, ID: creator.Name(id), StateRoot: root,
			Args: req.Command, Env: env, TTY: req.TTY, Rows: req.Size.Rows, Cols: req.Size.Cols}
		if x.Rows == 0 {
			x.Rows = 24
		}
		if x.Cols == 0 {
			x.Cols = 80
		}
		if _, err := os.Stat(filepath.Join(root, x.ID)); err != nil && os.Geteuid() == 0 {
			return supervisor.ExecSpec{}, fmt.Errorf("%w: what is known of the container is gone, no command can be run in it until it is restarted: %w", driver.ErrUnavailable, err)
		}
		b, err := x.Encode()
		return supervisor.ExecSpec{Container: &supervisor.Container{Creator: d.creator(), Spec: b}}, err
	}})
}
