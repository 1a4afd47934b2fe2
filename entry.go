// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskenv"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// entry is one alloc of the agent. runner is nil for one that cannot run
// (refused, quarantined): fixed is its status then.
type entry struct {
	id     string
	place  place
	dir    *allocdir.Dir
	runner *allocrunner.AllocRunner
	fixed  AllocStatus

	usage    sync.Map      // the latest TaskUsage that was read, by task
	unwanted atomic.Bool   // left the desired list: to be collected once it is over
	moved    atomic.Bool   // nothing is wanted any more of the alloc that this one replaces
	warned   atomic.Uint64 // the modify index, plus one, under which other content was told of

	// Guarded by runners.mu:
	burying bool // its collection has begun: its disk is no more to be had
	readers int  // of its disk; it is not collected meanwhile
}

// over says that nothing of the alloc runs any more and nothing will.
func (e *entry) over() bool { return e.runner == nil || e.runner.Snapshot().Done }

func (e *entry) status() AllocStatus {
	if e.runner == nil {
		return e.fixed
	}
	s := e.runner.Snapshot()
	return AllocStatus{Alloc: s.Alloc, Snapshot: s}
}

// tombstone is what is kept of a collected alloc that is still wanted, so that
// it never runs a second time.
type tombstone struct {
	ID          string             `json:"id"`
	Name        string             `json:"name,omitempty"`
	JobID       string             `json:"job_id,omitempty"`
	Group       string             `json:"group,omitempty"`
	Index       int                `json:"index,omitempty"`
	Desired     spec.DesiredStatus `json:"desired,omitempty"`
	ModifyIndex uint64             `json:"modify_index,omitempty"`
	CreateTime  time.Time          `json:"create_time,omitzero"`
	Status      allocrunner.Status `json:"status"`
	Description string             `json:"description,omitempty"`
	Ending      allocrunner.Cause  `json:"ending,omitempty"`
	FinishedAt  time.Time          `json:"finished_at,omitzero"`
}

func buried(s AllocStatus) tombstone {
	al := s.Alloc
	return tombstone{ID: al.ID, Name: al.Name, JobID: al.JobID, Group: al.Group, Index: al.Index,
		Desired: al.DesiredStatus, ModifyIndex: al.ModifyIndex, CreateTime: al.CreateTime,
		Status: s.Status, Description: s.Description, Ending: s.Ending, FinishedAt: s.FinishedAt}
}

func (t tombstone) status() AllocStatus {
	return AllocStatus{
		Alloc: &spec.Alloc{ID: t.ID, Name: t.Name, JobID: t.JobID, Group: t.Group, Index: t.Index,
			DesiredStatus: t.Desired, ModifyIndex: t.ModifyIndex, CreateTime: t.CreateTime},
		Snapshot: allocrunner.Snapshot{Status: t.Status, Description: t.Description, Ending: t.Ending, FinishedAt: t.FinishedAt,
			Desired: t.Desired, ModifyIndex: t.ModifyIndex, Done: true, Durable: true},
		Gone: true,
	}
}

// failed is the status of an alloc that cannot run.
func failed(al *spec.Alloc, reason string, at time.Time) AllocStatus {
	return AllocStatus{Alloc: al, Snapshot: allocrunner.Snapshot{Status: allocrunner.Failed, Description: reason,
		Desired: al.DesiredStatus, ModifyIndex: al.ModifyIndex, FinishedAt: at, Done: true, Durable: true}}
}

// scopeName is the supervisor scope of an alloc, and whether it is its own.
func scopeName(p place, allocID string) (name string, own bool) {
	switch p.Scope {
	case ScopeNode:
		return "node", false
	case ScopeTask:
		return "task/" + allocID, false
	}
	return "alloc/" + allocID, true
}

// build makes the entry of an alloc with its runner; it starts nothing.
func (a *Agent) build(al *spec.Alloc, p place) (*entry, error) {
	e := &entry{id: al.ID, place: p}
	var err error
	e.dir, err = allocdir.New(allocdir.Config{Root: a.allocRoot(), AllocID: al.ID, Private: a.private, Log: a.log})
	if err != nil {
		return nil, err
	}
	scope, own := scopeName(p, al.ID)
	hooks := core.Config{
		Supervisors: a.pool,
		Dir:         func(string) (*allocdir.Dir, error) { return e.dir, nil },
		TaskScopes:  func(string) bool { return p.Scope == ScopeTask },
		Validate:    driverconfig.Validate,
		Previous:    a.previous(e, al),
		HostVolumes: a.cfg.Storage.HostVolumes,
		Users:       a.users,
	}
	if every := a.cfg.StatsEvery; every > 0 {
		hooks.Stats = &core.Stats{Interval: every, Sample: func(_, task string, u driver.Usage) {
			e.usage.Store(task, TaskUsage{AllocID: e.id, Task: task, Usage: u})
		}}
	}
	if a.hasDevices() {
		hooks.Devices = a.devices
	}
	if own {
		hooks.AllocScope = func(string) string { return scope }
	}
	taskHooks, allocHooks := append(core.TaskHooks(hooks), a.drivers.events), core.AllocHooks(hooks)
	if f := a.cfg.TaskHooks; f != nil {
		taskHooks = f(taskHooks)
	}
	if f := a.cfg.AllocHooks; f != nil {
		allocHooks = f(allocHooks)
	}
	cfg := allocrunner.Config{
		Alloc: al, Store: a.store, Hooks: allocHooks, Dir: e.dir, Checks: a.cfg.Checks, Log: a.log,
		Env: taskenv.Config{Node: a.cfg.Node, Host: a.host},
		Tasks: taskrunner.Config{
			Drivers: a.drivers, Hooks: taskHooks, Eval: driverconfig.Eval, Scope: scope,
			FirstContact: a.contactFor(al), MaxKillTimeout: a.cfg.MaxKillTimeout,
		},
		ScopePerTask: p.Scope == ScopeTask,
		Observe:      func(allocrunner.Snapshot) { a.changed.ring() },
		Record:       a.box.Alloc,
		RecordTask: func(tx state.Tx, task string, old, now taskrunner.Snapshot) error {
			return a.box.Task(tx, al.ID, task, old, now)
		},
	}
	if a.tree != nil {
		cfg.Tasks.Cgroups = a.tree
	}
	e.runner, err = allocrunner.New(cfg)
	return e, err
}

func (a *Agent) allocRoot() string { return filepath.Join(a.cfg.DataDir, "alloc") }

// contactFor is what a task that was lost waits for before it starts again.
// System jobs do not wait: nobody places them elsewhere.
func (a *Agent) contactFor(al *spec.Alloc) <-chan struct{} {
	if al.JobType == spec.JobSystem || al.JobType == spec.JobSysbatch {
		return nil
	}
	return a.runnerOf.contact
}

// launch runs the entry's runner until it is over or the agent lets go.
func (a *Agent) launch(ctx context.Context, e *entry) {
	a.runnerOf.wg.Go(func() {
		err := e.runner.Run(ctx)
		switch {
		case err == nil:
			a.changed.ring()
			a.nudge()
		case ctx.Err() == nil:
			a.log.Error("alloc runner ended", "alloc_id", e.id, "error", err)
		}
	})
}
