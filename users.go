// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"os"
	"slices"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/hooks/core"
)

// loadUsers finds the users that tasks were given; also without a range, for those
// of before.
func (a *Agent) loadUsers() (err error) {
	if a.cfg.DynamicUsers != (core.UserRange{}) && os.Geteuid() != 0 {
		a.log.Warn("tasks get no users of their own: the agent is not root")
	}
	a.users, err = core.NewUsers(a.store, a.cfg.DynamicUsers)
	return err
}

// freeUsers takes back what allocs have that are gone: also from this host's disk.
func (a *Agent) freeUsers() {
	dirs, err := allocdir.List(a.allocRoot())
	if err != nil { // who knows what is there
		a.log.Warn("users of allocs that are gone stay taken", "error", err)
		return
	}
	err = a.users.Retain(func(id string) bool {
		_, err := a.entry(id)
		return err == nil || slices.Contains(dirs, id)
	})
	if err != nil {
		a.log.Warn("users of allocs that are gone stay taken", "error", err)
	}
}
