// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/supervisor"
)

const (
	collectors = 4 // allocs collected at a time
	retryMin   = time.Second
	retryMax   = time.Minute
)

// collect removes allocs that are over and not wanted, and the oldest of those
// that are more than Config.MaxFinished, until ctx ends. What could not be
// removed is tried again with backoff; nothing else waits for it.
func (a *Agent) collect(ctx context.Context) {
	delay := retryMin
	for {
		var retry <-chan time.Time
		if err := a.collectOnce(ctx, a.cfg.MaxFinished); err != nil && ctx.Err() == nil {
			a.log.Warn("alloc could not be collected; trying again", "in", delay, "error", err)
			retry = time.After(delay)
			delay = min(2*delay, retryMax)
		} else {
			delay = retryMin
		}
		select {
		case <-a.wake:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// GC collects every alloc that is over now, whatever Config.MaxFinished says. It
// blocks until they are gone; the error joins those that are not.
func (a *Agent) GC(ctx context.Context) error { return a.collectOnce(ctx, 0) }

func (a *Agent) collectOnce(ctx context.Context, keep int) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, collectors)
	for _, e := range a.victims(keep) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := a.bury(ctx, e); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// victims are the allocs to collect: only those of which no process is left and
// whose disk nobody waits for.
func (a *Agent) victims(keep int) (out []*entry) {
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	kept := a.keptLocked()
	var over []*entry
	for _, e := range a.runnerOf.entries {
		switch {
		case e.runner == nil || !e.over() || kept[e.id]:
		case e.unwanted.Load():
			out = append(out, e)
		default:
			over = append(over, e)
		}
	}
	if len(over) > keep {
		slices.SortFunc(over, func(x, y *entry) int { return x.status().FinishedAt.Compare(y.status().FinishedAt) })
		out = append(out, over[:len(over)-keep]...)
	}
	for _, e := range out {
		e.burying = true
	}
	return out
}

// bury collects one alloc. Unless it is known to be wanted no more its last
// status is kept first, so that no crash in between makes it run again.
func (a *Agent) bury(ctx context.Context, e *entry) error {
	err := a.entomb(ctx, e)
	if err != nil { // all of it is still there
		a.runnerOf.mu.Lock()
		e.burying = false
		a.runnerOf.mu.Unlock()
		a.changed.ring()
		return err
	}
	if err := e.runner.Destroy(ctx); err != nil {
		return err
	}
	r := &a.runnerOf
	r.mu.Lock()
	if r.entries[e.id] == e {
		delete(r.entries, e.id)
	}
	r.mu.Unlock()
	err = a.forget(e.id)
	a.changed.ring()
	a.nudge() // what it kept may go
	return err
}

// forget drops the last status of a collected alloc that left the list while it was
// being collected: for that list it was not collected yet.
func (a *Agent) forget(id string) error {
	r := &a.runnerOf
	r.mu.Lock()
	_, gone := r.gone[id]
	gone = gone && r.entries[id] == nil && r.listed != nil && !r.listed[id]
	r.mu.Unlock()
	if !gone {
		return nil
	}
	if err := a.store.Update(func(tx state.Tx) error { return tx.DeleteTree(gonePath.Join(id)) }); err != nil {
		return fmt.Errorf("nodekeep: forget alloc %s: %w", id, err) // the next list does it
	}
	r.mu.Lock()
	if r.entries[id] == nil && !r.listed[id] {
		delete(r.gone, id)
	}
	r.mu.Unlock()
	return nil
}

// entomb writes what is kept of an alloc that is about to be destroyed.
func (a *Agent) entomb(ctx context.Context, e *entry) error {
	r := &a.runnerOf
	t := buried(e.status())
	if !e.unwanted.Load() {
		err := a.store.Update(func(tx state.Tx) error {
			return errors.Join(a.box.Leave(tx, e.id), goneSlot.Save(tx, gonePath.Join(e.id), t))
		})
		if err != nil {
			return fmt.Errorf("nodekeep: collect alloc %s: %w", e.id, err)
		}
		r.mu.Lock()
		r.gone[e.id] = t
		r.mu.Unlock()
	} else if err := a.store.Update(func(tx state.Tx) error { return a.box.Leave(tx, e.id) }); err != nil {
		return fmt.Errorf("nodekeep: collect alloc %s: %w", e.id, err)
	}
	select {
	case <-e.runner.Done(): // at once: it is over
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sweep removes what carries this agent's mark and belongs to no alloc it knows:
// cgroups, scopes, directories. It runs once, after the first contact, and holds
// back the next list meanwhile, so that no alloc can come into being under it.
func (a *Agent) sweep(ctx context.Context) {
	r := &a.runnerOf
	select {
	case r.applying <- struct{}{}:
		defer func() { <-r.applying }()
	case <-ctx.Done():
		return
	}
	err := errors.Join(
		a.endScopes(ctx, func(scope, task string) bool { return !a.knowsScope(scope, task) }),
		a.sweepCgroups(), a.sweepDirs(ctx))
	if err != nil && ctx.Err() == nil {
		a.log.Warn("left-overs of unknown allocs remain", "error", err)
	}
}

// knowsScope says whether the task (an id of the driver's, "" for the scope as a
// whole) belongs to an alloc of this agent.
func (a *Agent) knowsScope(scope, task string) bool {
	kind, id, _ := strings.Cut(scope, "/")
	switch kind {
	case "node":
		id, _, _ = strings.Cut(task, "/")
	case "task":
		id, _, _ = strings.Cut(id, "/")
	}
	e, err := a.entry(id)
	return err == nil && e.runner != nil
}

// endScopes ends the tasks for which unwanted says so, and the scopes of which
// nothing is left. It asks about a scope as a whole with task "".
func (a *Agent) endScopes(ctx context.Context, unwanted func(scope, task string) bool) error {
	names, err := a.pool.Names()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if name != "node" && !unwanted(name, "") {
			continue
		}
		sc := a.pool.Scope(name)
		list, err := sc.List(ctx)
		errs = append(errs, err)
		left := false
		for _, st := range list {
			if !unwanted(name, st.ID) {
				left = true
				continue
			}
			a.log.Warn("ending a task of no known alloc", "scope", name, "task_id", st.ID, "pid", st.PID)
			errs = append(errs, sc.Destroy(ctx, st.ID))
		}
		if !left && name != "node" {
			if err := sc.Release(ctx); !errors.Is(err, supervisor.ErrBusy) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) sweepCgroups() error {
	if a.tree == nil || a.tree.Mode() == cgroup.None {
		return nil
	}
	paths, err := a.tree.List()
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	a.runnerOf.mu.Lock()
	for id, e := range a.runnerOf.entries {
		if e.runner == nil {
			continue
		}
		al := e.runner.Snapshot().Alloc
		for i := range al.Tasks {
			ours[a.tree.Path(id, al.Tasks[i].Name)] = true
		}
	}
	a.runnerOf.mu.Unlock()
	var errs []error
	for _, p := range paths {
		if !ours[p] {
			errs = append(errs, a.tree.Remove(p))
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) sweepDirs(ctx context.Context) error {
	ids, err := allocdir.List(a.allocRoot())
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if _, err := a.entry(id); err == nil {
			continue
		}
		errs = append(errs, a.killLost(id))
		dir, err := allocdir.New(allocdir.Config{Root: a.allocRoot(), AllocID: id, Private: a.private, Log: a.log})
		if err == nil {
			err = dir.Destroy(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
