// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// RefusedError says why an alloc cannot run on this node. Its status is failed.
type RefusedError struct {
	AllocID string
	Err     error
}

func (e *RefusedError) Error() string { return fmt.Sprintf("nodekeep: alloc %s: %v", e.AllocID, e.Err) }
func (e *RefusedError) Unwrap() error { return e.Err }

// Apply carries out a list of desired allocs, the whole set. It waits until Run
// has loaded what the state holds and returns once everything is on disk and
// under way. The first call is the first contact.
//
// A stale list is ErrStale and changes nothing. Otherwise all of it counts, and
// the error joins what single allocs met: RefusedError (not valid, no such driver,
// or something nobody here does: UnmetError; their status is failed), allocrunner.ReplaceError (an update that needs
// a new alloc). When the state cannot be written nothing is started, but stops
// are carried out, and the error is the store's: apply again.
//
// To change an alloc that is here already raise its ModifyIndex, and Index with it:
// other content under the same one is passed over, with a warning in the log. What
// cannot change in place (spec.Diff tells) needs an alloc with another id.
func (a *Agent) Apply(ctx context.Context, d Desired) error {
	r := &a.runnerOf
	select {
	case <-a.loaded:
	case <-a.ended:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case r.applying <- struct{}{}:
		defer func() { <-r.applying }()
	case <-a.ended:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	allocs, errs := a.admit(d.Allocs)
	d.Allocs = allocs

	r.mu.Lock()
	have := a.knownLocked(d.Epoch)
	p, act, err := reconcile(r.progress, d, have, a.now(), a.cfg.EpochTTL)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	a.warnSameIndex(d)
	created, refused := a.prepare(act.create, d.Epoch)
	saveErr := a.store.Update(func(tx state.Tx) error { return a.saveList(tx, p, act, created, a.news(refused)) })
	if saveErr != nil {
		saveErr = fmt.Errorf("nodekeep: desired allocs cannot be written, nothing new was started: %w", saveErr)
		created = nil
	}
	a.publish(p, d, act, created, refused, saveErr == nil)
	select {
	case r.starting <- created:
	case <-r.leaving: // on disk: the next agent starts them
		return ErrClosed
	}
	errs = append(errs, saveErr, a.change(ctx, act))
	for _, e := range refused {
		errs = append(errs, &RefusedError{e.id, errors.New(e.fixed.Description)})
	}
	if saveErr == nil {
		a.contacted()
	}
	a.changed.ring()
	a.nudge()
	return errors.Join(errs...)
}

// admit drops allocs that have no usable id, which no status could name, and all
// but the first of those that share one.
func (a *Agent) admit(in []*spec.Alloc) (out []*spec.Alloc, errs []error) {
	seen := map[string]bool{}
	for i, al := range in {
		switch {
		case al == nil:
			errs = append(errs, fmt.Errorf("nodekeep: Desired.Allocs[%d] is nil", i))
		case spec.CheckName(al.ID) != nil:
			errs = append(errs, &RefusedError{al.ID, spec.CheckName(al.ID)})
		case seen[al.ID]:
			errs = append(errs, &RefusedError{al.ID, errors.New("is in the list twice")})
		default:
			seen[al.ID] = true
			out = append(out, al)
		}
	}
	return out, errs
}

// knownLocked is what reconcile has to know. Indexes of another epoch are not
// comparable: such an alloc counts as never changed.
func (a *Agent) knownLocked(epoch string) map[string]known {
	r := &a.runnerOf
	have := make(map[string]known, len(r.entries)+len(r.gone))
	for id, t := range r.gone {
		have[id] = known{modify: t.ModifyIndex, gone: true}
	}
	for id, e := range r.entries {
		switch {
		case e.runner == nil && e.fixed.Quarantined == "":
			continue // refused: looked at afresh by every list
		case e.runner == nil:
			have[id] = known{gone: true} // quarantined: until it leaves the list
		case e.place.Epoch == epoch:
			have[id] = known{modify: e.status().ModifyIndex}
		default:
			have[id] = known{}
		}
	}
	return have
}

// prepare makes the runners of new allocs and says which cannot run.
func (a *Agent) prepare(allocs []*spec.Alloc, epoch string) (created, refused []*entry) {
	for _, given := range allocs {
		al := given.WithDefaults()
		err := al.Validate()
		if err == nil {
			err = errors.Join(a.knownDrivers(al), a.unmet(al))
		}
		var e *entry
		if err == nil {
			e, err = a.build(al, place{Scope: a.cfg.Scope, Epoch: epoch})
		}
		if err != nil {
			no := &entry{id: al.ID, fixed: failed(al, err.Error(), a.now())}
			a.lineage(no, al)
			refused = append(refused, no)
			continue
		}
		created = append(created, e)
	}
	return created, refused
}

// UnmetError says that an alloc asks for what this agent does not do.
type UnmetError struct{ Need spec.Need }

func (e *UnmetError) Error() string {
	return fmt.Sprintf("%s: this node does nothing about %s; give the agent hooks that do and name them in Config.Features, or take it out of the job",
		e.Need.Field, e.Need.Feature)
}

// unmet lists what an alloc asks for and nobody here does: to run it all the same
// would be to pass it over in silence.
func (a *Agent) unmet(al *spec.Alloc) error {
	var errs []error
	builtin := []string{"payload"}
	if a.cfg.Storage.HostVolumes != nil {
		builtin = append(builtin, "volumes", "mounts")
		errs = append(errs, a.cfg.Storage.HostVolumes.Check(al))
	}
	if a.hasDevices() {
		builtin = append(builtin, "devices")
		errs = append(errs, a.knownDevices(al))
	}
	for _, n := range al.Needs() {
		if !slices.Contains(a.cfg.Features, n.Feature) && !slices.Contains(builtin, n.Feature) {
			errs = append(errs, &UnmetError{n})
		}
	}
	return errors.Join(errs...)
}

// news are those that were not refused for the same reason before.
func (a *Agent) news(refused []*entry) []*entry {
	a.runnerOf.mu.Lock()
	defer a.runnerOf.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(refused), func(e *entry) bool {
		old := a.runnerOf.entries[e.id]
		return old != nil && old.runner == nil && old.fixed.Description == e.fixed.Description && old.fixed.ModifyIndex == e.fixed.ModifyIndex
	})
}

func (a *Agent) saveList(tx state.Tx, p progress, act actions, created, refused []*entry) error {
	errs := []error{progressSlot.Save(tx, agentPath, p)}
	for _, e := range created {
		path := allocsPath.Join(e.id)
		errs = append(errs, allocrunner.Save(tx, e.runner.Snapshot().Alloc), placeSlot.Save(tx, path, e.place), a.box.Received(tx, e.id))
	}
	for _, e := range refused {
		errs = append(errs, a.box.Fixed(tx, told(e.fixed)))
	}
	for _, id := range act.forget {
		errs = append(errs, tx.DeleteTree(gonePath.Join(id)), tx.Delete(quarantine.Join(id), faultSlot.Key))
	}
	return errors.Join(errs...)
}

// publish makes the outcome of a list visible.
func (a *Agent) publish(p progress, d Desired, act actions, created, refused []*entry, saved bool) {
	r := &a.runnerOf
	r.mu.Lock()
	defer r.mu.Unlock()
	if saved {
		for _, e := range created {
			e.runner.Saved()
		}
		r.progress = p
		r.listed = make(map[string]bool, len(d.Allocs))
		for _, al := range d.Allocs {
			r.listed[al.ID] = true
		}
		for _, id := range act.forget {
			delete(r.gone, id)
		}
		maps.DeleteFunc(r.entries, func(id string, e *entry) bool {
			return e.runner == nil && !r.listed[id] && (e.fixed.Quarantined == "" || slices.Contains(act.forget, id))
		})
	}
	for _, e := range slices.Concat(created, refused) {
		r.entries[e.id] = e
	}
}

// change carries out updates and removals, side by side: each returns once it is
// on disk, and together they share commits.
func (a *Agent) change(ctx context.Context, act actions) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	each := func(id string, f func(*entry) error) {
		e, err := a.entry(id)
		if err != nil || e.runner == nil {
			return
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(e); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("nodekeep: alloc %s: %w", id, err))
			}
		})
	}
	for _, id := range act.remove {
		if _, err := a.entry(id); err != nil { // it was collected since
			errs = append(errs, a.forget(id))
		}
		each(id, func(e *entry) error {
			e.unwanted.Store(true)
			return ended(e.runner.Kill(ctx, allocrunner.KillRequest{Reason: "no longer wanted on this node"}))
		})
	}
	for _, al := range act.update {
		each(al.ID, func(e *entry) error { return ended(e.runner.Update(ctx, al)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// ended takes what an alloc that is over already answers for no error.
func ended(err error) error {
	if errors.Is(err, allocrunner.ErrTerminal) || errors.Is(err, allocrunner.ErrStale) {
		return nil
	}
	return err
}

// contacted is the first contact: whoever waited for it goes on.
func (a *Agent) contacted() {
	select {
	case <-a.runnerOf.contact:
	default:
		close(a.runnerOf.contact) // one Apply at a time
	}
}
