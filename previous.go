// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// An alloc that replaces another (PreviousAlloc) starts when that one is over, and
// one with a sticky or migrating disk takes over its data. Until it has, the
// previous one is not collected:
//
//	previous  running ─▶ over ┈┈┈┈ kept ┈┈┈┈┈┈┈┈┈▶ collected
//	new       prerun: previous ─▶ dirs ─▶ migrate ─▶ tasks
//	                     waits            renames
//
// Allocs form a line: one that never took its predecessor's place, because it was
// refused, failed or was replaced itself before it could, is passed over, and the
// next one waits for all of them and takes what each still has.

// lineage notes what an alloc takes the place of when it comes: later updates do
// not change it. A canary takes nobody's place. A predecessor that has no record
// (it was refused) is gone with the next list, so its own are noted too.
func (a *Agent) lineage(e *entry, al *spec.Alloc) {
	p := &e.place
	if p.Settled {
		return
	}
	p.Settled = true
	if al.PreviousAlloc == "" || al.Canary {
		return
	}
	p.Disk = al.Settings.Disk.Sticky || al.Settings.Disk.Migrate
	p.After = []string{al.PreviousAlloc}
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	if old := a.runnerOf.entries[al.PreviousAlloc]; old != nil && old.runner == nil {
		p.After = append(p.After, old.place.After...)
	}
}

// previous is what the hooks of e are told of the allocs it replaces; nil if it
// replaces none.
func (a *Agent) previous(e *entry, al *spec.Alloc) *core.Previous {
	if a.lineage(e, al); len(e.place.After) == 0 {
		return nil
	}
	return &core.Previous{
		Disk:   e.place.Disk,
		Await:  func(ctx context.Context, al *spec.Alloc) ([]*allocdir.Dir, error) { return a.awaitLine(ctx, e) },
		Stream: a.cfg.Storage.Migrate,
		Limits: a.cfg.Storage.MigrateLimits,
		Moved: func() {
			if !e.moved.Swap(true) {
				a.nudge()
			}
		},
	}
}

// lineLocked are the predecessors of e that this node has, the nearest first. It is
// an error if e is among them.
func (a *Agent) lineLocked(e *entry) (line []*entry, err error) {
	seen := map[string]bool{}
	for todo := slices.Clone(e.place.After); len(todo) > 0; todo = todo[1:] {
		if todo[0] == e.id {
			return nil, fmt.Errorf("nodekeep: alloc %s comes after %s, which comes after it: they would wait for each other", e.id, e.place.After[0])
		}
		old := a.runnerOf.entries[todo[0]]
		if old == nil || seen[old.id] {
			continue
		}
		seen[old.id] = true
		if old.runner != nil {
			line = append(line, old)
		}
		if !old.settledIn() {
			todo = append(todo, old.place.After...)
		}
	}
	return line, nil
}

// settledIn says that the alloc has taken its predecessors' place: what they had of
// use is its own.
func (e *entry) settledIn() bool {
	if len(e.place.After) == 0 || e.moved.Load() {
		return true
	}
	if e.runner == nil {
		return false
	}
	for _, t := range e.runner.Snapshot().Tasks {
		if !t.StartedAt.IsZero() {
			return true
		}
	}
	return false
}

// awaitLine waits until the predecessors of e on this node are over and nobody reads
// their disks, and returns their directories unless they are being removed.
func (a *Agent) awaitLine(ctx context.Context, e *entry) ([]*allocdir.Dir, error) {
	for told := false; ; told = true {
		changed := a.changed.wait()
		a.runnerOf.mu.Lock()
		line, err := a.lineLocked(e)
		var dirs []*allocdir.Dir
		var wait <-chan struct{}
		var of string
		for _, old := range line {
			switch {
			case !old.over():
				wait = old.runner.Done()
			case old.readers > 0 && e.place.Disk:
				wait = changed
			case !old.burying:
				dirs = append(dirs, old.dir)
			}
			if wait != nil {
				of = old.id
				break
			}
		}
		a.runnerOf.mu.Unlock()
		if err != nil || wait == nil {
			return dirs, err
		}
		if !told {
			a.tellWait(ctx, e, of)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		select {
		case <-a.runnerOf.leaving: // a runner that let go is not over
			return nil, ErrClosed
		default:
		}
	}
}

// tellWait says in an event of every task what keeps it from starting.
func (a *Agent) tellWait(ctx context.Context, e *entry, of string) {
	for _, t := range taskNames(e.runner.Snapshot()) {
		err := e.runner.Emit(ctx, t, taskrunner.TaskSetup, map[string]string{"message": "Waiting for the end of alloc " + of + ", which this one replaces"})
		if err != nil && ctx.Err() == nil {
			a.log.Warn("event lost", "alloc_id", e.id, "task", t, "error", err)
		}
	}
}

// keptLocked are the allocs whose disks are still wanted: read, or to be taken over
// by one that is there, also if it is over: it may be replaced itself.
func (a *Agent) keptLocked() map[string]bool {
	kept := map[string]bool{}
	for _, e := range a.runnerOf.entries {
		if e.readers > 0 {
			kept[e.id] = true
		}
		if !e.place.Disk || e.settledIn() {
			continue
		}
		line, _ := a.lineLocked(e)
		for _, old := range line {
			kept[old.id] = true
		}
	}
	return kept
}

// SendDisk writes the data of an alloc that is over (alloc/data, and local of its
// tasks) for the alloc that replaces it on another node: that agent's
// Config.Storage.Migrate returns what was written here. The alloc is not collected
// meanwhile, and one of this node that replaces it waits. ErrNoAlloc says that there is no such alloc (any more), ErrRunning that
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
	for _, next := range a.runnerOf.entries {
		if next.place.Disk && slices.Contains(next.place.After, id) {
			a.runnerOf.mu.Unlock()
			return fmt.Errorf("%w: the disk of %s goes to alloc %s of this node", ErrNoAlloc, id, next.id)
		}
	}
	e.readers++
	a.runnerOf.mu.Unlock()
	defer func() {
		a.runnerOf.mu.Lock()
		e.readers--
		a.runnerOf.mu.Unlock()
		a.changed.ring()
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
