// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Key is a typed value that one alloc hook hands to the hooks of the alloc's
// tasks, such as the network it made. Both sides name it by one function:
//
//	func NetworkKey() allocrunner.Key[spec.Network] { return allocrunner.Key[spec.Network]{Name: "network"} }
//
// Rules:
//
//   - The alloc hook names it in Publishes and calls Publish in Prerun or Update.
//     The value is written in the transaction of the hook's state: after the
//     callback, failed or not, or at its next Checkpoint.
//   - A task hook names it in Needs. New fails if a key that is needed has no
//     publisher, or a key has two.
//   - Tasks see a value once it is on disk. After a restart of the agent the last
//     one is there before any hook is called.
//   - T is stored as JSON. It belongs into package spec where both hooks live in
//     different packages.
type Key[T any] struct {
	Name string // unique within an alloc
	// Version and Migrate are those of state.Slot; 0 is 1.
	Version int
	Migrate func(from int, data []byte) (T, error)
}

func (k Key[T]) slot() state.Slot[T] {
	return state.Slot[T]{Key: sharedKey(k.Name), Version: max(1, k.Version), Migrate: k.Migrate}
}

func sharedKey(name string) string { return "shared." + name }

// Publish makes v the key's value. It is called from the callback of the hook.
func (k Key[T]) Publish(r *Request, v T) error {
	raw, err := k.slot().Encode(v)
	if err != nil {
		return fmt.Errorf("allocrunner: publish key %q: %w", k.Name, err)
	}
	return r.publish(k.Name, raw)
}

// Get reads the key's latest value in a task hook. False: nothing was published
// yet. It does not block.
func (k Key[T]) Get(r *taskrunner.Request) (v T, ok bool, err error) {
	raw, err := r.Shared(k.Name)
	if err != nil || raw == nil {
		return v, false, err
	}
	if v, err = k.slot().Decode(raw); err != nil {
		return v, false, fmt.Errorf("allocrunner: key %q: %w", k.Name, err)
	}
	return v, true, nil
}
