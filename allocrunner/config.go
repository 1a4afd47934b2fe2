// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskenv"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Config is what an AllocRunner needs. Alloc, Store and Tasks.Drivers are required.
type Config struct {
	// Alloc is what to run. If the store has a later version (a higher
	// ModifyIndex), that one is run.
	Alloc *spec.Alloc
	Store state.Store // below v1/alloc/<id>

	// Hooks make the alloc's hooks, in the order in which they are prepared;
	// cleanup runs in reverse.
	Hooks []HookFunc
	// Tasks is what all task runners of the alloc share: Drivers, Hooks, Eval,
	// Cgroups, Scope, FirstContact, limits, Clock, Trace. Scope "" is the alloc's
	// id: one supervisor for all its tasks. The rest of it is set by the runner.
	Tasks taskrunner.Config
	// ScopePerTask gives each task a supervisor scope of its own, "<scope>/<task>".
	ScopePerTask bool
	// Env is what the environments of all tasks share: Node, Host, Defaults,
	// Prefix. Alloc, Task and Dirs are set by the runner.
	Env taskenv.Config
	// Checks tells how the checks of the alloc's services stand; nil: there are none.
	Checks Checks
	// Dir is the alloc's directory, of which secrets are dropped when all tasks have
	// ended and which Destroy removes; nil: it has none.
	Dir *allocdir.Dir

	// Observe is told each published snapshot, first the one Run begins with. It
	// is called from the loop and must not block nor call the runner.
	Observe func(Snapshot)
	// Record is called inside the transaction of each of the alloc's own
	// transitions with the last snapshot on disk and the new one. It may be called
	// more than once; an error fails the commit.
	Record func(tx state.Tx, old, new Snapshot) error
	// RecordTask is the same for each of its tasks (taskrunner.Config.Record).
	RecordTask func(tx state.Tx, task string, old, new taskrunner.Snapshot) error
	Log        hclog.Logger // nil is silent
	Trace      Trace
}

// Trace is a set of callbacks for metrics and traces. Any may be nil; none may
// block. A panic in one is logged and goes no further.
type Trace struct {
	Transition func(old, new Snapshot)                                  // published; from the loop
	Hook       func(hook, callback string, took time.Duration, e error) // a callback returned or was left behind; from the operation
	Commit     func(took time.Duration, err error)                      // a transaction of the runner ended; from the loop
}

func (c *Config) validate() error {
	var errs []error
	fault := func(bad bool, field, what string) {
		if bad {
			errs = append(errs, fmt.Errorf("allocrunner: Config.%s: %s", field, what))
		}
	}
	fault(c.Alloc == nil, "Alloc", "is required")
	fault(c.Store == nil, "Store", "is required")
	fault(c.Tasks.Drivers == nil, "Tasks.Drivers", "is required")
	if c.Alloc == nil {
		return errors.Join(errs...)
	}
	if err := spec.CheckName(c.Alloc.ID); err != nil {
		fault(true, "Alloc.ID", err.Error())
	}
	fault(len(c.Alloc.Tasks) == 0, "Alloc.Tasks", "an alloc needs a task")
	seen := map[string]bool{}
	for i := range c.Alloc.Tasks {
		name := spec.FoldName(c.Alloc.Tasks[i].Name)
		fault(seen[name], "Alloc.Tasks", fmt.Sprintf("two tasks are named %q", c.Alloc.Tasks[i].Name))
		seen[name] = true
	}
	return errors.Join(errs...)
}
