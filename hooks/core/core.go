// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package core holds the hooks that every node needs. The agent puts them in;
// a host that runs the runners alone picks what it wants.
//
//	alloc hooks   prerun ▼                              postrun ▲ (reverse)
//	  previous    waits for the alloc it replaces       –
//	  dirs        the alloc's directory                 –
//	  migrate     that alloc's data                     –
//	  volumes     the host's directories are there      –
//	  scope       –                                     its supervisor leaves
//	  users       –                                     (destroy) the tasks' users are free again
//	task hooks    prestart ▼                            stop ▲ (reverse)
//	  scope       –                                     its supervisor leaves (one per task)
//	  validate    config against the driver's schema    –
//	  dirs        the task's directories, its owner     –
//	  logs        FIFO pair and log files               pair drained and removed
//	  users       a user of its own, where it names none –
//	  mounts      the task's volumes, for the driver    –
//	  devices     what it asks for is its own           given back
//	  payload     what was dispatched, in a file        –
//	  stats       (poststart) what it uses is measured  –
package core

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Config is what the hooks share. Supervisors is required.
type Config struct {
	Supervisors *supervisor.Pool
	// AllocScope names the supervisor scope that ends with the alloc; "" or nil is
	// none. TaskScopes says that each task has one that ends with it.
	AllocScope func(allocID string) string
	TaskScopes func(allocID string) bool
	// Dir is an alloc's directory; an error fails its tasks. Nil: no directories
	// and no logs.
	Dir func(allocID string) (*allocdir.Dir, error)
	// Previous is nil for an alloc that replaces none.
	Previous *Previous
	// HostVolumes are what allocs may mount. Nil: volumes are left to others.
	HostVolumes HostVolumes
	// Users gives users to tasks that name none. Nil: they run as their driver's.
	Users *Users
	// Stats is told what tasks use, all the time. Nil: it is measured only while
	// somebody reads it (taskrunner.TaskRunner.Stats).
	Stats *Stats
	// Devices gives out the node's devices. Nil: devices are left to others.
	Devices Devices
	// Validate checks a task's config against its driver's schema before anything
	// is made (driverconfig.Validate). Nil: the driver finds out.
	Validate func(*driver.Schema, json.RawMessage, map[string]spec.Origin) error
}

// TaskHooks are the built-in task hooks in their order.
func TaskHooks(cfg Config) []taskrunner.HookFunc {
	book := &account.Book{}
	out := []taskrunner.HookFunc{taskScope(cfg), validate(cfg)}
	if cfg.Dir != nil {
		out = append(out, dirs(cfg, book), logs(cfg, book), payload(cfg, book))
	}
	if cfg.Users != nil {
		out = append(out, users(cfg.Users))
	}
	if cfg.Stats != nil {
		out = append(out, stats(cfg.Stats))
	}
	if cfg.HostVolumes != nil {
		out = append(out, mounts(cfg.HostVolumes))
	}
	if cfg.Devices != nil {
		out = append(out, devices(cfg.Devices))
	}
	return out
}

// AllocHooks are the built-in alloc hooks in their order.
func AllocHooks(cfg Config) []allocrunner.HookFunc {
	var out []allocrunner.HookFunc
	if cfg.Previous != nil {
		out = append(out, awaitPrevious(cfg.Previous))
	}
	if cfg.Dir != nil {
		out = append(out, allocDirs)
	}
	if cfg.Users != nil {
		out = append(out, freeUsers(cfg.Users))
	}
	if cfg.Previous != nil && cfg.Dir != nil {
		out = append(out, migrate(cfg.Previous))
	}
	if cfg.HostVolumes != nil {
		out = append(out, volumes(cfg.HostVolumes))
	}
	if cfg.AllocScope != nil {
		out = append(out, allocScope(cfg))
	}
	return out
}

// none is the state of a hook that has nothing to remember.
type none struct{}

func validate(cfg Config) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[none]{
			Name: "validate", Stage: taskrunner.StageValidate,
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *none) (c taskrunner.Contribution, err error) {
				if r.Driver.Name != "" && cfg.Validate != nil {
					err = cfg.Validate(r.Driver.TaskSchema, r.Task.Config, r.Task.Origin)
				}
				if err != nil {
					r.Emit(taskrunner.FailedValidation, map[string]string{"message": err.Error()})
				}
				return c, err
			},
		}, nil
	}
}

// weaker is the event that tells what this process could not do to keep a task's
// files from others.
const weaker taskrunner.Kind = "Less Isolation"

func dirs(cfg Config, book *account.Book) taskrunner.HookFunc {
	return func(*spec.Alloc, *spec.Task) (taskrunner.AnyHook, error) {
		return &taskrunner.Hook[none]{
			Name: "dirs", Stage: taskrunner.StageDirs,
			Prestart: func(ctx context.Context, r *taskrunner.Request, _ *none) (c taskrunner.Contribution, err error) {
				dir, err := cfg.Dir(r.Alloc.ID)
				if err != nil {
					return c, err
				}
				owner, err := ownerOf(cfg.Users, book, r)
				if err != nil {
					return c, err
				}
				_, rep, err := dir.BuildTask(ctx, r.Task.Name, allocdir.TaskOptions{
					UID: owner.UID, GID: owner.GID, SecretsMB: int(r.Task.Resources.SecretsMB),
				})
				if rep.Created && len(rep.Weaker) > 0 {
					r.Emit(weaker, map[string]string{"message": strings.Join(rep.Weaker, "; ")})
				}
				return c, err
			},
		}, nil
	}
}

// ownerOf is who owns the task's files: its user, the one it is given, else this
// process's. The user of a task with a file system of its own may be one that only
// that image knows.
func ownerOf(given *Users, book *account.Book, r *taskrunner.Request) (account.Account, error) {
	if uid, ok, err := given.of(r); ok || err != nil {
		return account.Account{UID: uid, GID: uid}, err
	}
	image := r.Driver.Capabilities.FSIsolation == driver.FSImage
	if r.Task.User == "" && !image {
		return account.Account{}, nil
	}
	a, err := book.Lookup(r.Task.User)
	if err != nil && image {
		return account.Account{UID: -1, GID: -1}, nil
	}
	return a, err
}

// collected is what the logs hook remembers: that there is a pair to take down.
type collected struct {
	Scope string `json:"scope,omitempty"`
}

func logs(cfg Config, book *account.Book) taskrunner.HookFunc {
	return func(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		lc := t.LogConfig()
		if lc.Disabled {
			return nil, nil
		}
		return &taskrunner.Hook[collected]{
			Name: "logs", Stage: taskrunner.StageLogs,
			Prestart: func(ctx context.Context, r *taskrunner.Request, s *collected) (c taskrunner.Contribution, err error) {
				if r.Driver.Capabilities.CollectsLogs {
					return c, nil
				}
				owner, err := ownerOf(cfg.Users, book, r)
				if err != nil {
					return c, err
				}
				if s.Scope == "" { // remembered before it is there, so that Stop finds it whatever happens
					s.Scope = r.Scope
				}
				out, errs, err := cfg.Supervisors.Scope(s.Scope).Logs(ctx, supervisor.LogSpec{
					ID: r.Alloc.ID + "/" + r.Task.Name, Task: r.Task.Name, Dir: r.Dir.Logs, MaxSize: lc.MaxSize, MaxFiles: lc.MaxFiles,
					UID: max(owner.UID, 0), GID: max(owner.GID, 0),
				})
				if err != nil {
					return c, driver.Recoverable(fmt.Errorf("core: collect logs of task %q: %w", r.Task.Name, err))
				}
				c.Stdio = &driver.Stdio{Stdout: out, Stderr: errs}
				return c, nil
			},
			Stop: func(ctx context.Context, r *taskrunner.Request, s *collected) error {
				if s.Scope == "" {
					return nil
				}
				return cfg.Supervisors.Scope(s.Scope).EndLogs(ctx, r.Alloc.ID+"/"+r.Task.Name)
			},
		}, nil
	}
}

// taskScope ends the supervisor of a task that has one of its own. It comes
// first, so that its Stop is the last.
func taskScope(cfg Config) taskrunner.HookFunc {
	return func(al *spec.Alloc, _ *spec.Task) (taskrunner.AnyHook, error) {
		if cfg.TaskScopes == nil || !cfg.TaskScopes(al.ID) {
			return nil, nil
		}
		return &taskrunner.Hook[none]{
			Name: "scope", Stage: taskrunner.StageValidate,
			Stop: func(ctx context.Context, r *taskrunner.Request, _ *none) error {
				return cfg.Supervisors.Scope(r.Scope).Release(ctx)
			},
		}, nil
	}
}

func allocDirs(*spec.Alloc) (allocrunner.AnyHook, error) {
	return &allocrunner.Hook[none]{
		Name: "dirs", Stage: allocrunner.StageDirs,
		Prerun: func(ctx context.Context, r *allocrunner.Request, _ *none) error {
			if r.Dir == nil {
				return nil
			}
			return r.Dir.Build(ctx)
		},
	}, nil
}

func allocScope(cfg Config) allocrunner.HookFunc {
	return func(al *spec.Alloc) (allocrunner.AnyHook, error) {
		name := cfg.AllocScope(al.ID)
		if name == "" {
			return nil, nil
		}
		return &allocrunner.Hook[none]{
			Name: "scope",
			Postrun: func(ctx context.Context, _ *allocrunner.Request, _ *none) error {
				return cfg.Supervisors.Scope(name).Release(ctx)
			},
		}, nil
	}
}
