// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Status is an alloc as its control plane should see it, as it is on disk.
type Status struct {
	// Seq grows with every change of any alloc of the node: of two statuses of one
	// alloc the higher is the later one. 0 in a Snapshot.
	Seq         uint64             `json:"seq,omitempty"`
	AllocID     string             `json:"alloc"`
	Namespace   string             `json:"namespace,omitempty"`
	JobID       string             `json:"job,omitempty"`
	Group       string             `json:"group,omitempty"`
	Index       int                `json:"index,omitempty"`
	Desired     spec.DesiredStatus `json:"desired,omitempty"`
	ModifyIndex uint64             `json:"modify_index"` // of the version it speaks of
	Status      allocrunner.Status `json:"status"`
	Description string             `json:"description,omitempty"`
	Ending      allocrunner.Cause  `json:"ending,omitempty"`
	Health      *spec.Health       `json:"health,omitempty"`
	FinishedAt  time.Time          `json:"finished_at,omitzero"`
	Tasks       map[string]Task    `json:"tasks,omitempty"`
}

// Task is a task as its control plane should see it.
type Task struct {
	State       taskrunner.Phase   `json:"state"` // pending, running or dead
	Failed      bool               `json:"failed,omitempty"`
	Restarts    int                `json:"restarts,omitempty"`
	LastRestart time.Time          `json:"last_restart,omitzero"`
	StartedAt   time.Time          `json:"started_at,omitzero"`
	FinishedAt  time.Time          `json:"finished_at,omitzero"`
	Exit        *driver.ExitResult `json:"exit,omitempty"` // of the last attempt that ended
}

// StatusOf is what a snapshot shows.
func StatusOf(s allocrunner.Snapshot) Status {
	al := s.Alloc
	st := Status{
		AllocID: al.ID, Namespace: al.Namespace, JobID: al.JobID, Group: al.Group, Index: al.Index,
		Desired: s.Desired, ModifyIndex: s.ModifyIndex, Status: s.Status, Description: s.Description,
		Ending: s.Ending, Health: s.Health, FinishedAt: s.FinishedAt,
	}
	for name, t := range s.Tasks {
		if st.Tasks == nil {
			st.Tasks = make(map[string]Task, len(s.Tasks))
		}
		st.Tasks[name] = TaskOf(t)
	}
	return st
}

// TaskOf is what a task's snapshot shows.
func TaskOf(s taskrunner.Snapshot) Task {
	return Task{State: s.State(), Failed: s.Failed, Restarts: s.Restarts, LastRestart: s.LastRestart,
		StartedAt: s.StartedAt, FinishedAt: s.FinishedAt, Exit: s.Exit}
}

func (t Task) equal(o Task) bool {
	same := t.Exit == o.Exit || t.Exit != nil && o.Exit != nil && *t.Exit == *o.Exit
	return same && t.State == o.State && t.Failed == o.Failed && t.Restarts == o.Restarts &&
		t.LastRestart.Equal(o.LastRestart) && t.StartedAt.Equal(o.StartedAt) && t.FinishedAt.Equal(o.FinishedAt)
}
