// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// runtimeLock is in the runtime directory, which the state names: a copy of a data
// directory names the same one, and its agent must not take over the tasks of the
// agent that runs.
const (
	runtimeLock     = "agent.lock"
	runtimeLockWait = 2 * time.Second
)

// RuntimeDirError says that another agent that runs uses the runtime directory.
// Usually DataDir is a copy of Owner, and the state in it names the directory of
// the original: give the copy's agent a state of its own.
type RuntimeDirError struct {
	Dir     string // both want it
	DataDir string // of the agent that got this error
	Owner   string // data directory of the one that runs; "" if it is not known
}

func (e *RuntimeDirError) Error() string {
	return fmt.Sprintf("nodekeep: the runtime directory %s is in use by the agent of %q; the state in %s names it too: "+
		"is that a copy? Stop the other agent, or start this one with an empty data directory", e.Dir, e.Owner, e.DataDir)
}

// unlockRuntime lets go of the runtime directory, and removes the lock's name if
// nothing else is in the directory.
func (a *Agent) unlockRuntime() error {
	if a.lock == nil {
		return nil
	}
	if !holdsScopes(a.id.RuntimeDir) {
		_ = os.Remove(filepath.Join(a.id.RuntimeDir, runtimeLock))
		_ = os.Remove(a.id.RuntimeDir) // only an empty one goes
	}
	f := a.lock
	a.lock = nil
	return f.Close()
}
