// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"fmt"
	"io"

	"github.com/nodekeep/nodekeep/state"
)

// Upgrade says whether the state file is to be upgraded: until that is committed,
// by CommitUpgrade or after 24 h of agent life, the version of before can be put
// back and goes on with all that happened meanwhile.
func (a *Agent) Upgrade() (state.Upgrade, bool) {
	if s, ok := a.store.(state.Upgrader); ok {
		return s.Upgrade()
	}
	return state.Upgrade{}, false
}

// CommitUpgrade ends a pending upgrade now, as a host does that is content with
// the new version; without one it does nothing. See state.Upgrader.
func (a *Agent) CommitUpgrade() error {
	if s, ok := a.store.(state.Upgrader); ok {
		return s.CommitUpgrade()
	}
	return nil
}

// Backup writes a consistent copy of the state file to w, while the agent runs.
// What w takes its time for holds nobody up. To go back to it, stop the agent, put
// the copy in the place of state.db and start it: it finds its tasks again, ends
// those that it does not know, and waits for its control plane before it starts
// what has been lost. The copy holds the agent's identity: in another data
// directory it is the same agent, and only one of the two may run (RuntimeDirError).
func (a *Agent) Backup(w io.Writer) (n int64, err error) {
	s, ok := a.store.(state.Backuper)
	if !ok {
		return 0, fmt.Errorf("nodekeep: backup: %T cannot be copied", a.store)
	}
	return s.Backup(w)
}
