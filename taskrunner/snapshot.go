// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

// Phase is where a task is in its life (see the drawing of the package).
type Phase string

// The phases, and the state each is reported as.
const (
	Pending  Phase = "pending"  // not started, or between attempts; pending
	Ready    Phase = "ready"    // prestart hooks done, the driver prepares; pending
	Starting Phase = "starting" // the intent to start this attempt is on disk; pending
	Running  Phase = "running"  // the driver has it; running
	Stopping Phase = "stopping" // stop sent, exit not seen; running
	Exited   Phase = "exited"   // the driver reported an exit; running
	Done     Phase = "done"     // will not run again, stop hooks outstanding; dead
	Dead     Phase = "dead"     // stop hooks done; dead
)

// State is the phase as it is reported: Pending, Running or Dead.
func (p Phase) State() Phase {
	switch p {
	case Running, Stopping, Exited:
		return Running
	case Done, Dead:
		return Dead
	}
	return Pending
}

// Snapshot is the whole state of a runner. It is never changed once published;
// what it points to must not be changed either.
type Snapshot struct {
	Rev     uint64             `json:"rev"` // grows with every transition of this runner
	Phase   Phase              `json:"phase"`
	Attempt int                `json:"attempt"`          // counts the tries to start, from 0; part of the driver's task ID
	Handle  *driver.Handle     `json:"handle,omitempty"` // of the attempt that runs or has just exited
	Exit    *driver.ExitResult `json:"exit,omitempty"`   // of the last attempt that ended
	Final   bool               `json:"final,omitempty"`  // will not be started again, though it may still be on its way out
	Failed  bool               `json:"failed,omitempty"` // ended, and not as it should
	Reason  string             `json:"reason,omitempty"` // why it ended, or why it is to be started again

	Restarts    int       `json:"restarts"` // how often it was started again, for whatever reason
	LastRestart time.Time `json:"last_restart,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"`  // of the latest attempt
	FinishedAt  time.Time `json:"finished_at,omitzero"` // set once Final

	Backoff     bootclock.Deadline `json:"backoff,omitzero"`       // the next attempt begins no earlier
	Kill        *KillRequest       `json:"kill,omitempty"`         // accepted; never taken back
	Restarting  *RestartRequest    `json:"restarting,omitempty"`   // accepted and not yet carried out
	NeedContact bool               `json:"need_contact,omitempty"` // must hear from the control plane before the next start
	Events      []Event            `json:"events,omitempty"`       // the last Config.MaxEvents
	Seq         uint64             `json:"seq"`                    // of the last event
	Durable     bool               `json:"-"`                      // false: the store fails, and what happened since is known to this process only

	Resume Resume `json:"resume"`
}

// State is Phase.State.
func (s Snapshot) State() Phase { return s.Phase.State() }

// Resume is what a runner must know to go on where an earlier one was; of use to
// those who want to explain what happens next.
type Resume struct {
	restart.Window                    // the restart policy's counters
	Boot           string             `json:"boot,omitempty"`      // boot id at the last start intent
	Started        bootclock.Instant  `json:"started,omitzero"`    // StartedAt, for how long the attempt has run
	Leaked         bool               `json:"leaked,omitempty"`    // something of it may still run: it is never started again
	Replaced       bool               `json:"replaced,omitempty"`  // the driver had a task of that ID and it was destroyed, once
	Killing        bool               `json:"killing,omitempty"`   // the kill found something to end
	Prekilled      bool               `json:"prekilled,omitempty"` // prekill hooks of this stop have run
	Delay          bootclock.Deadline `json:"delay,omitzero"`      // the shutdown delay
	Grace          bootclock.Deadline `json:"grace,omitzero"`      // from the stop signal to SIGKILL
}

// KillRequest says why and how a task is ended.
type KillRequest struct {
	Reason string `json:"reason,omitempty"` // for people
	// Kind is an event that goes before, such as LeaderDead; "" is none.
	Kind            Kind `json:"kind,omitempty"`
	NoShutdownDelay bool `json:"no_shutdown_delay,omitempty"`
	// Failed makes the task a failed one. A task ended by a kill is otherwise not,
	// whatever its exit code.
	Failed bool `json:"failed,omitempty"`
	// Grace shortens the task's kill timeout; 0 leaves it, negative is none at all.
	Grace time.Duration `json:"grace,omitempty"`
}

// RestartRequest says why a task is started again.
type RestartRequest struct {
	Reason string `json:"reason,omitempty"` // for people
	// Counted restarts obey the restart policy like an exit does (a failing health
	// check); others are free and immediate.
	Counted bool `json:"counted,omitempty"`
	// AlsoDead starts a dead task afresh too (see Config.Linger), and does nothing
	// but end the backoff of one that is about to start anyway.
	AlsoDead bool `json:"also_dead,omitempty"`
}
