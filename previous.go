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
// Of several that name one predecessor the eldest takes its disk. The others wait
// until it has, start with empty ones, and an event says so (core.DiskTakenError).
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
		Await:  func(ctx context.Context) ([]*allocdir.Dir, error) { return a.awaitLine(ctx, e) },
		Stream: a.cfg.Storage.Migrate,
		Limits: a.cfg.Storage.MigrateLimits,
		Moved: func() {
			if !e.moved.Swap(true) {
				a.changed.ring() // for others that name the same predecessor
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
// their disks, and returns their directories unless they are being removed or are
// another's.
func (a *Agent) awaitLine(ctx context.Context, e *entry) ([]*allocdir.Dir, error) {
	for told := false; ; told = true {
		changed := a.changed.wait()
		a.runnerOf.mu.Lock()
		w, err := a.lookLocked(e, changed)
		a.runnerOf.mu.Unlock()
		if err == nil && w.on == nil {
			for _, taken := range w.taken {
				a.tell(ctx, e, taken.Error())
			}
		}
		if err != nil || w.on == nil {
			return w.dirs, err
		}
		if !told {
			a.tell(ctx, e, w.why)
		}
		select {
		case <-w.on:
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

// wait is what keeps an alloc from taking its predecessors' place, or what it finds
// there.
type wait struct {
	on    <-chan struct{} // nil: nothing keeps it
	why   string
	dirs  []*allocdir.Dir
	taken []*core.DiskTakenError
}

func (a *Agent) lookLocked(e *entry, changed <-chan struct{}) (w wait, err error) {
	line, err := a.lineLocked(e)
	if err != nil {
		return w, err
	}
	for _, old := range line {
		w.why = "Waiting for the end of alloc " + old.id + ", which this one replaces"
		if !old.over() {
			w.on = old.runner.Done()
			return w, nil
		}
		if !e.place.Disk {
			continue
		}
		rival, has := a.rivalLocked(e, old)
		switch {
		case old.readers > 0:
			w.on = changed
			return w, nil
		case has:
			w.taken = append(w.taken, &core.DiskTakenError{AllocID: e.id, Previous: old.id, By: rival.id})
		case rival != nil:
			w.on, w.why = changed, "Waiting for alloc "+rival.id+", which takes the disk of alloc "+old.id
			return w, nil
		case !old.burying:
			w.dirs = append(w.dirs, old.dir)
		}
	}
	return w, nil
}

// rivalLocked is the alloc that has the disk of old, or goes before e for it; nil if
// there is none.
func (a *Agent) rivalLocked(e, old *entry) (rival *entry, has bool) {
	for _, x := range a.runnerOf.entries {
		if x == e || x.runner == nil || !x.place.Disk || !slices.Contains(x.place.After, old.id) {
			continue
		}
		if line, err := a.lineLocked(x); err != nil || slices.Contains(line, e) {
			continue // it waits for e
		}
		if x.settledIn() {
			return x, true
		}
		if !x.over() && elder(x, e) {
			rival = x
		}
	}
	return rival, false
}

func elder(x, y *entry) bool {
	if c := x.runner.Snapshot().Alloc.CreateTime.Compare(y.runner.Snapshot().Alloc.CreateTime); c != 0 {
		return c < 0
	}
	return x.id < y.id
}

// tell says something in an event of every task of an alloc that has not started.
func (a *Agent) tell(ctx context.Context, e *entry, message string) {
	for _, t := range taskNames(e.runner.Snapshot()) {
		err := e.runner.Emit(ctx, t, taskrunner.TaskSetup, map[string]string{"message": message})
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
