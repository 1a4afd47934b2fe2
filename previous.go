// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
)

// An alloc that replaces another (PreviousAlloc) starts when that one is over, and
// one with a sticky or migrating disk takes over its data. Until it has, the
// previous one is not collected:
//
//	previous  running ─▶ over ┈┈┈┈ kept ┈┈┈┈┈┈┈┈┈▶ collected
//	new       prerun: previous ─▶ dirs ─▶ migrate ─▶ tasks
//	                     waits            renames

// previous is what the hooks of e are told of the alloc it replaces.
func (a *Agent) previous(e *entry) *core.Previous {
	return &core.Previous{
		Await:  a.awaitPrevious,
		Stream: a.cfg.Storage.Migrate,
		Limits: a.cfg.Storage.MigrateLimits,
		Moved: func() {
			if !e.moved.Swap(true) {
				a.nudge()
			}
		},
	}
}

// awaitPrevious waits until the alloc that al replaces is over, if it is on this
// node, and returns its directory unless that is being removed.
func (a *Agent) awaitPrevious(ctx context.Context, al *spec.Alloc) (*allocdir.Dir, error) {
	old, err := a.entry(al.PreviousAlloc)
	if err != nil || old.runner == nil {
		return nil, nil //nolint:nilerr // not on this node, or nothing ever ran
	}
	select {
	case <-old.runner.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if !old.over() { // the agent lets go
		return nil, fmt.Errorf("%w: alloc %s still ran", ErrClosed, old.id)
	}
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	if old.burying {
		return nil, nil
	}
	return old.dir, nil
}

// keptLocked are the allocs whose disks are still wanted.
func (a *Agent) keptLocked() map[string]bool {
	kept := map[string]bool{}
	for _, e := range a.runnerOf.entries {
		if e.runner == nil {
			continue
		}
		if e.readers > 0 {
			kept[e.id] = true
		}
		if al := e.runner.Snapshot().Alloc; al.PreviousAlloc != "" && !al.Canary && (al.Settings.Disk.Sticky || al.Settings.Disk.Migrate) &&
			!e.moved.Load() && !e.over() {
			kept[al.PreviousAlloc] = true
		}
	}
	return kept
}

// SendDisk writes the data of an alloc that is over (alloc/data, and local of its
// tasks) for the alloc that replaces it on another node: that agent's
// Config.Storage.Migrate returns what was written here. The alloc is not collected
// meanwhile. ErrNoAlloc says that there is no such alloc (any more), ErrRunning that
// it is not over. It blocks as long as w does.
func (a *Agent) SendDisk(ctx context.Context, id string, w io.Writer) error {
	e, err := a.entry(id)
	switch {
	case err != nil:
		return err
	case e.runner == nil:
		return fmt.Errorf("%w: %s: %s", ErrNoAlloc, id, e.fixed.Description)
	case !e.over():
		return fmt.Errorf("%w: %s: its data may still change; stop it first", ErrRunning, id)
	}
	a.runnerOf.mu.Lock()
	if e.burying {
		a.runnerOf.mu.Unlock()
		return fmt.Errorf("%w: %s is being removed", ErrNoAlloc, id)
	}
	e.readers++
	a.runnerOf.mu.Unlock()
	defer func() {
		a.runnerOf.mu.Lock()
		e.readers--
		a.runnerOf.mu.Unlock()
		a.nudge()
	}()
	return e.dir.Send(ctx, w, taskNames(e.runner.Snapshot()))
}

// ErrRunning says that an alloc still runs where one that is over is needed.
var ErrRunning = errors.New("nodekeep: the alloc is not over")

func taskNames(s allocrunner.Snapshot) (names []string) {
	for i := range s.Alloc.Tasks {
		names = append(names, s.Alloc.Tasks[i].Name)
	}
	return names
}
