// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskenv"
)

// Config is what a TaskRunner needs. Alloc, Task, Drivers and Store are required.
type Config struct {
	Alloc   *spec.Alloc // the version to begin with; Update brings later ones
	Task    string      // name of the task in Alloc
	Drivers Drivers
	Store   state.Store // below v1/alloc/<id>/task-<name>

	// Hooks make the task's hooks. They run by Stage and, within one, in this
	// order; cleanup runs in reverse.
	Hooks []HookFunc
	// Env makes the environment of a version of the alloc; the runner adds the
	// directories as the driver shows them and what hooks contribute. Nil: of the
	// alloc alone. Called from Run's goroutine and from the operation's.
	Env func(*spec.Alloc) taskenv.Builder
	// Dir is the alloc's directory; nil: the task has none.
	Dir *allocdir.Dir
	// Eval turns the task's config into the driver's (driverconfig.Eval). Nil
	// passes it on as it is.
	Eval func(s *driver.Schema, raw json.RawMessage, origin map[string]spec.Origin, vars map[string]string) (json.RawMessage, error)
	// Cgroups makes and removes the task's cgroup; nil: it has none.
	Cgroups Cgroups
	// Scope names the supervisor scope of the task; "" is one of its own.
	Scope string

	Parent // of a task in an alloc

	// FirstContact is closed once the control plane has spoken. A task that was
	// lost while the agent was away is not started again before that. Nil: it has.
	FirstContact <-chan struct{}
	// MaxKillTimeout caps the tasks' kill timeouts; 0 does not.
	MaxKillTimeout time.Duration
	// MaxEvents is how many events a snapshot keeps; 0 is 10.
	MaxEvents int
	// Clock is for deadlines that survive this process; nil is the system's,
	// under virtual time Go's.
	Clock bootclock.Clock

	// Observe is told each published snapshot, first the one Run begins with. It
	// is called from the loop and must not block nor call the runner.
	Observe func(Snapshot)
	// Record is called inside a transition's transaction with the last snapshot on
	// disk and the new one; its events with a Seq above old.Seq are new, all of
	// them are there. It may be called more than once; an error fails the commit.
	Record func(tx state.Tx, old, new Snapshot) error
	Log    hclog.Logger // nil is silent
	Trace  Trace
}

// Parent is what an alloc's runner wants of its tasks. The zero value is a task
// on its own.
type Parent struct {
	// Gated says that a parent orders this task's life: it starts after
	// SetGate(true), asked again at every restart, and the alloc's desired status
	// is the parent's to carry out, through Kill.
	Gated bool
	// Linger keeps Run going when the task is dead, so that Restart with AlsoDead
	// finds it. Kill ends Run then.
	Linger bool
	// Shared are the keys that alloc hooks publish, each with a func that returns
	// its latest value in encoded form, nil if there is none yet. Hooks name those
	// they read (Hook.Needs). The funcs are called from any goroutine.
	Shared map[string]func() []byte
}

// Drivers finds drivers by name.
type Drivers interface {
	// Driver returns the driver, waiting for one that is just starting until ctx
	// ends. The runner asks again before every operation, so that a driver that
	// was started anew is found.
	Driver(ctx context.Context, name string) (driver.Driver, error)
}

// Cgroups makes the cgroups of tasks. Every method is idempotent.
type Cgroups interface {
	// Path is a pure function of its arguments.
	Path(alloc, task string) string
	// Make makes a fresh, empty one.
	Make(path string) error
	// Remove kills what is inside and removes it.
	Remove(path string) error
}

// Trace is a set of callbacks for metrics and traces, made from the loop. Any may
// be nil; none may block. A panic in one is logged and goes no further.
type Trace struct {
	Transition func(old, new Snapshot)                                    // published
	Hook       func(hook, callback string, took time.Duration, err error) // a callback returned or was abandoned
	Commit     func(took time.Duration, err error)                        // a transaction of the runner ended
}

func (c *Config) validate() error {
	var errs []error
	fault := func(bad bool, field, what string) {
		if bad {
			errs = append(errs, fmt.Errorf("taskrunner: Config.%s: %s", field, what))
		}
	}
	fault(c.Alloc == nil, "Alloc", "is required")
	fault(c.Task == "", "Task", "is required")
	fault(c.Drivers == nil, "Drivers", "is required")
	fault(c.Store == nil, "Store", "is required")
	fault(c.MaxKillTimeout < 0, "MaxKillTimeout", "must not be negative")
	fault(c.MaxEvents < 0, "MaxEvents", "must not be negative")
	if c.Alloc != nil && c.Task != "" {
		fault(c.Alloc.Task(c.Task) == nil, "Task", fmt.Sprintf("alloc %q has no task %q", c.Alloc.ID, c.Task))
		fault(spec.CheckName(c.Alloc.ID) != nil, "Alloc.ID", fmt.Sprint(spec.CheckName(c.Alloc.ID)))
		fault(spec.CheckName(c.Task) != nil, "Task", fmt.Sprint(spec.CheckName(c.Task)))
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.MaxEvents == 0 {
		c.MaxEvents = 10
	}
	if c.Clock == nil {
		c.Clock = bootclock.System()
	}
	if c.Env == nil {
		task := c.Task
		c.Env = func(a *spec.Alloc) taskenv.Builder { return taskenv.New(taskenv.Config{Alloc: a, Task: task}) }
	}
	if c.Scope == "" {
		c.Scope = c.Alloc.ID + "." + c.Task
	}
	if c.FirstContact == nil {
		open := make(chan struct{})
		close(open)
		c.FirstContact = open
	}
}
