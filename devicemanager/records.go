// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/state"
)

var (
	root = state.Path{"v1", "devicemanager"}
	slot = state.Slot[hold]{Key: "reservation", Version: 1}
)

const taskPrefix = "task-"

func at(o Owner) state.Path { return root.Join(o.AllocID, taskPrefix+o.Task) }

// load reads what tasks have. A record that cannot be read keeps no device: its
// task's devices cannot be told, and the others are not harmed.
func (m *Manager) load() error {
	if m.cfg.Store == nil {
		return nil
	}
	err := m.cfg.Store.View(func(tx state.Tx) error {
		for _, id := range tx.Nodes(root) {
			for _, node := range tx.Nodes(root.Join(id)) {
				o := Owner{id, strings.TrimPrefix(node, taskPrefix)}
				h, ok, err := slot.Load(tx, root.Join(id, node))
				if err == nil && ok {
					err = m.unclaimed(o, h.Given)
				}
				if err != nil {
					m.cfg.Log.Error("the record of a task's devices cannot be used", "alloc_id", o.AllocID, "task", o.Task, "error", err)
					if !errors.Is(err, state.ErrTooNew) {
						m.stale[o] = true
					}
					continue
				}
				if ok {
					h.done = true
					m.take(o, &h)
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("devicemanager: read reservations: %w", err)
	}
	return nil
}

// save writes what a task has, and removes what is stale, in one transaction.
func (m *Manager) save(o Owner, h *hold) error {
	if m.cfg.Store == nil {
		return nil
	}
	raw, err := slot.Encode(*h)
	if err == nil {
		err = m.update(o, func(tx state.Tx) error { return tx.Put(at(o), slot.Key, raw) })
	}
	if err != nil {
		return fmt.Errorf("devicemanager: note the devices of task %q: %w", o.Task, err)
	}
	return nil
}

// drop removes a task's record.
func (m *Manager) drop(o Owner) error {
	if m.cfg.Store == nil {
		return nil
	}
	if err := m.update(o, func(tx state.Tx) error { return remove(tx, o) }); err != nil {
		return fmt.Errorf("devicemanager: forget the devices of task %q: %w", o.Task, err)
	}
	return nil
}

// clean removes what is stale.
func (m *Manager) clean() error {
	m.mu.Lock()
	n := len(m.stale)
	m.mu.Unlock()
	if n == 0 || m.cfg.Store == nil {
		return nil
	}
	if err := m.update(Owner{}, func(state.Tx) error { return nil }); err != nil {
		return fmt.Errorf("devicemanager: forget devices: %w", err)
	}
	return nil
}

// update runs f and removes all that is stale but what is about to be written.
func (m *Manager) update(but Owner, f func(state.Tx) error) error {
	m.mu.Lock()
	stale := slices.Collect(maps.Keys(m.stale))
	m.mu.Unlock()
	err := m.cfg.Store.Update(func(tx state.Tx) error {
		for _, o := range stale {
			if o == but {
				continue
			}
			if err := remove(tx, o); err != nil {
				return err
			}
		}
		return f(tx)
	})
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, o := range stale {
			delete(m.stale, o)
		}
	}
	return err
}

func remove(tx state.Tx, o Owner) error {
	if err := tx.DeleteTree(at(o)); err != nil {
		return err
	}
	if len(tx.Nodes(root.Join(o.AllocID))) == 0 {
		return tx.DeleteTree(root.Join(o.AllocID))
	}
	return nil
}
