// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import "github.com/nodekeep/nodekeep/state"

// Load makes s what the store holds of a task, for those who read beside its
// runner: it never shows what a crash would lose. ok is false, and s untouched, if
// the task has not been written yet.
func (s *Snapshot) Load(tx state.Tx, alloc, task string) (ok bool, err error) {
	stored, ok, err := taskSlot().Load(tx, path(alloc, task))
	if ok {
		stored.Durable = true
		*s = stored
	}
	return ok, err
}

// path is the task's node in the store.
func path(alloc, task string) state.Path {
	return state.Path{"v1", "alloc", alloc, "task-" + task}
}
