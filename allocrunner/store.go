// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

func allocSlot() state.Slot[*spec.Alloc] { return state.Slot[*spec.Alloc]{Key: "alloc", Version: 1} }
func lifeSlot() state.Slot[life]         { return state.Slot[life]{Key: "status", Version: 1} }

func healthSlot() state.Slot[health] { return state.Slot[health]{Key: "health", Version: 1} }

// path is the alloc's node in the store. All of the alloc is below it.
func path(id string) state.Path { return state.Path{"v1", "alloc", id} }

// Save puts an alloc into the store, for a host that persists what it wants in
// one transaction of its own before it makes the runners. New then finds it there
// and need not write it again.
func Save(tx state.Tx, a *spec.Alloc) error {
	return allocSlot().Save(tx, path(a.ID), a.WithDefaults())
}

// Saved says that the host has written the alloc (Save) since New, so that Run need
// not. It is called before Run, by whoever calls Run.
func (r *AllocRunner) Saved() { r.first.stored = true }

// Load reads the alloc of that id as it was last accepted, nil if the store has
// none. An unreadable one is state.ErrCorrupt or state.ErrTooNew.
func Load(tx state.Tx, id string) (*spec.Alloc, error) {
	a, _, err := allocSlot().Load(tx, path(id))
	if err == nil && a != nil && a.ID != id {
		return nil, fmt.Errorf("%w: alloc %q is stored as %q", state.ErrCorrupt, a.ID, id)
	}
	return a, err
}

// load fills r.first and the hooks from the store.
func (r *AllocRunner) load() error {
	given := r.cfg.Alloc.WithDefaults()
	r.first = start{alloc: given}
	err := r.cfg.Store.View(func(tx state.Tx) error {
		stored, err := Load(tx, given.ID)
		if err != nil {
			return err
		}
		if stored != nil {
			if r.first.stored = given.ModifyIndex <= stored.ModifyIndex; r.first.stored {
				r.first.alloc = stored
			} else if fields := replaced(stored, given); len(fields) > 0 {
				return &ReplaceError{Fields: fields}
			}
		}
		if r.first.life, r.first.restored, err = lifeSlot().Load(tx, r.path); err != nil {
			return err
		}
		r.first.health, _, err = healthSlot().Load(tx, r.path)
		return err
	})
	if err != nil {
		return err
	}
	l := &r.first.life
	l.begin()
	// The scope an alloc began with stays its own.
	if l.Scope == "" {
		l.Scope = r.cfg.Tasks.Scope
	}
	if l.Scope == "" {
		l.Scope = given.ID
	}
	r.hooks = &hooks{store: r.cfg.Store, path: r.path, log: r.log, trace: r.traceHook}
	if r.hooks.all, err = bindHooks(r.cfg.Hooks, r.first.alloc); err != nil {
		return err
	}
	return r.cfg.Store.View(r.hooks.load)
}
