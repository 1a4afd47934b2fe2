// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Status is how an alloc stands, as its control plane sees it.
type Status string

// The statuses, in the only order in which they follow each other. Complete and
// failed are terminal: no task is started any more, though some may still be on
// their way out (see Snapshot.FinishedAt).
const (
	Pending  Status = "pending"  // no task has run yet
	Running  Status = "running"  // a task has run and some are not dead
	Complete Status = "complete" // all tasks are dead and none failed
	Failed   Status = "failed"   // a task failed, or the alloc could not be set up
)

// Terminal says that the status will not change any more.
func (s Status) Terminal() bool { return s == Complete || s == Failed }

// Cause says why an alloc is brought to its end.
type Cause string

// The causes. When several hold at once the first of this list is told.
const (
	CauseKilled  Cause = "killed"  // somebody called Kill
	CauseStopped Cause = "stopped" // the control plane wants it stopped
	CauseMaxRun  Cause = "max run" // its maximum run time has passed
	CauseSetup   Cause = "setup"   // a prerun hook failed: every task is failed
	CauseLeader  Cause = "leader"  // the leader ended
	CauseSibling Cause = "sibling" // a task failed
	CauseMains   Cause = "mains"   // only sidecars are left
)

// Snapshot is an alloc at one moment. It is never changed once published; what it
// points to must not be changed either.
type Snapshot struct {
	Rev         uint64      `json:"rev"` // grows with every publication of this runner
	Alloc       *spec.Alloc `json:"-"`   // as last accepted
	Status      Status      `json:"status"`
	Description string      `json:"description"`
	// Desired and ModifyIndex are those of Alloc.
	Desired     spec.DesiredStatus `json:"desired"`
	ModifyIndex uint64             `json:"modify_index"`
	// Ending says why the alloc is being brought to its end; "" while it is not.
	Ending Cause                          `json:"ending,omitempty"`
	Tasks  map[string]taskrunner.Snapshot `json:"tasks"`
	// FinishedAt is when all tasks were dead; zero before. A terminal status may
	// be known earlier.
	FinishedAt time.Time `json:"finished_at,omitzero"`
	// Health is what was found out last, nil before. It may be of an earlier
	// deployment than the alloc's.
	Health *spec.Health `json:"health,omitempty"`
	// Done says that the alloc is over: postrun hooks have run, Run returns nil.
	Done bool `json:"done"`
	// Leftover is what postrun hooks could not give back; Destroy and the next Run
	// try again.
	Leftover string `json:"leftover,omitempty"`
	// Durable is false while the store fails: Status is then what is on disk, and
	// nothing new is started.
	Durable bool `json:"durable"`
}

// life is the alloc's own persisted state: what cannot be told from its tasks.
type life struct {
	Status     Status    `json:"status"`
	Desc       string    `json:"desc,omitempty"`
	FinishedAt time.Time `json:"finished_at,omitzero"` // when all tasks were dead
	Kill       *ending   `json:"kill,omitempty"`       // the decision to end it; never taken back
	Restart    *restart  `json:"restart,omitempty"`    // accepted and not yet carried out
	// Round tells an older start of a task from one since the lifecycle last
	// began: its start time at that moment.
	Round map[string]time.Time `json:"round,omitempty"`
	Scope string               `json:"scope,omitempty"` // of its supervisor
	// Born is when this node took the alloc on, Age how long it had existed then by
	// the wall clock: from there on a clock that jumps changes nothing.
	Born bootclock.Instant `json:"born,omitzero"`
	Age  time.Duration     `json:"age,omitempty"`
	Done bool              `json:"done,omitempty"` // postrun hooks ran; nothing is left but the directory
}

// ending is why and how an alloc is brought to its end.
type ending struct {
	Cause    Cause  `json:"cause"`
	Task     string `json:"task,omitempty"` // the leader or the sibling
	Reason   string `json:"reason,omitempty"`
	Force    Status `json:"force,omitempty"`    // the client status, whatever the tasks say
	NoDelay  bool   `json:"no_delay,omitempty"` // no shutdown delay, of the alloc nor of its tasks
	Poststop bool   `json:"poststop,omitempty"` // poststop tasks end too
	// Grace is the longest kill timeout of a task; 0 leaves it, negative is none.
	Grace time.Duration `json:"grace,omitempty"`
	// Left says that the prekill hooks ran; until Hold no task is killed.
	Left bool               `json:"left,omitempty"`
	Hold bootclock.Deadline `json:"hold,omitzero"`
}

// restart is an accepted wish: every task of it gets a new attempt.
type restart struct {
	Tasks  map[string]int `json:"tasks"`           // the attempt each had
	Fresh  bool           `json:"fresh,omitempty"` // the lifecycle begins anew
	Reason string         `json:"reason,omitempty"`
}

// view is what the plan sees of one task.
type view struct {
	name    string
	hook    spec.LifecycleHook
	sidecar bool
	leader  bool
	deps    []spec.Dependency

	state   taskrunner.Phase // as reported: pending, running, dead
	ran     bool             // was ever started
	up      bool             // was started since the lifecycle last began
	failed  bool
	healthy bool // has run for long enough, and its checks pass
	gone    bool // its process is, for good: the next in kill order may go
	over    bool // dead, and its stop hooks have run
	told    bool // knows of the kill or the restart in progress
	moved   bool // has the new attempt that the restart in progress asks for
}

func (v view) dead() bool     { return v.state == taskrunner.Dead }
func (v view) ok() bool       { return v.dead() && !v.failed }
func (v view) poststop() bool { return v.hook == spec.LifecyclePoststop }

// rank orders kills: what has a lower one is dead before the next is killed.
func (v view) rank() int {
	switch {
	case v.poststop():
		return 3
	case v.leader:
		return 0
	case v.sidecar:
		return 2
	}
	return 1
}

// status is the client status and its description. It never goes back: what was
// terminal stays, and running is a floor.
func status(tasks []view, l life) (Status, string) {
	if l.Status.Terminal() {
		return l.Status, l.Desc
	}
	if l.Kill != nil && l.Kill.Force != "" {
		return l.Kill.Force, l.Kill.Reason
	}
	alive, ran := false, l.Status == Running
	for _, t := range tasks {
		if t.dead() && t.failed {
			return Failed, fmt.Sprintf("task %q failed", t.name)
		}
		alive = alive || !t.dead()
		ran = ran || t.ran || t.state == taskrunner.Running
	}
	switch {
	case alive && ran:
		return Running, "tasks are running"
	case alive:
		return Pending, "no task has started"
	case l.Kill != nil && l.Kill.Reason != "":
		return Complete, l.Kill.Reason
	}
	return Complete, "all tasks have completed"
}
