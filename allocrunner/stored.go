// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Load makes s what the store holds of the alloc of that id, for those who read
// beside its runner: in one transaction, so that alloc, tasks and what else is
// read there fit together, and nothing is shown that a crash would lose. ok is
// false, and s untouched, if the store has none; Rev and Leftover are not kept.
func (s *Snapshot) Load(tx state.Tx, id string) (ok bool, err error) {
	a, err := Load(tx, id)
	if err != nil || a == nil {
		return false, err
	}
	l, _, err := lifeSlot().Load(tx, path(id))
	if err != nil {
		return false, err
	}
	h, _, err := healthSlot().Load(tx, path(id))
	if err != nil {
		return false, err
	}
	l.begin()
	*s = Snapshot{
		Alloc: a, Status: l.Status, Description: l.Desc, Desired: a.DesiredStatus, ModifyIndex: a.ModifyIndex,
		FinishedAt: l.FinishedAt, Health: h.Found, Done: l.Done, Durable: true,
		Tasks: make(map[string]taskrunner.Snapshot, len(a.Tasks)),
	}
	if l.Kill != nil {
		s.Ending = l.Kill.Cause
	}
	for i := range a.Tasks {
		t := taskrunner.Snapshot{Phase: taskrunner.Pending, Durable: true}
		if _, err := t.Load(tx, id, a.Tasks[i].Name); err != nil {
			return false, fmt.Errorf("task %q: %w", a.Tasks[i].Name, err)
		}
		s.Tasks[a.Tasks[i].Name] = t
	}
	return true, nil
}

// begin is how an alloc of which nothing was written stands.
func (l *life) begin() {
	if l.Status == "" {
		l.Status, l.Desc = Pending, "no task has started"
	}
}
