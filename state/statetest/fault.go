// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package statetest

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nodekeep/nodekeep/state"
)

// Faults says when a Faulty store fails.
type Faults struct {
	// Err is the cause, such as syscall.ENOSPC or syscall.EIO.
	Err error
	// At is the first Update that fails, counted from 1. 0: none does.
	At int
	// For is how many Updates fail, one after another, before the disk is well
	// again. 0 means 1, a negative number all.
	For int
	// Written makes the first of them write although it says it did not, as
	// when the last fsync fails.
	Written bool
}

// Fault is a store whose disk fails for a while.
type Fault struct {
	state.Store
	faults Faults
	calls  atomic.Int64
}

// Faulty returns store with faults: the chosen Updates return state.ErrCommit
// wrapping the cause, and View works all the time. Functions run also in an
// Update that fails, as they do before a real disk fails.
func Faulty(store state.Store, f Faults) *Fault { return &Fault{Store: store, faults: f} }

var errRollback = errors.New("statetest: rolled back")

// Update implements state.Store.
func (f *Fault) Update(fn func(state.Tx) error) error {
	n, first := int(f.calls.Add(1)), f.faults.At
	if first < 1 || n < first || f.faults.For >= 0 && n >= first+max(f.faults.For, 1) {
		return f.Store.Update(fn)
	}
	err := f.Store.Update(func(tx state.Tx) error {
		if err := fn(tx); err != nil || f.faults.Written && n == first {
			return err
		}
		return errRollback
	})
	if err != nil && !errors.Is(err, errRollback) {
		return err
	}
	return fmt.Errorf("%w: injected: %w", state.ErrCommit, f.faults.Err)
}

// Updates returns how often Update was called.
func (f *Fault) Updates() int { return int(f.calls.Load()) }

// Commits implements state.Stats, if the store below does.
func (f *Fault) Commits() int64 { return commits(f.Store) }

type twice struct{ state.Store }

// Twice returns store with every function of an Update run two times, the first
// time for nothing. It finds those that are not repeatable.
func Twice(store state.Store) state.Store { return twice{store} }

func (t twice) Update(fn func(state.Tx) error) error {
	err := t.Store.Update(func(tx state.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		return err
	}
	return t.Store.Update(fn)
}

func (t twice) Commits() int64 { return commits(t.Store) }

func commits(s state.Store) int64 {
	if st, ok := s.(state.Stats); ok {
		return st.Commits()
	}
	return 0
}

// Dump returns all that is in store, as lines "path/key = value" in order.
func Dump(store state.Store) (out []string, err error) {
	err = store.View(func(tx state.Tx) error {
		out = dump(tx, nil, nil)
		return nil
	})
	return out, err
}

func dump(tx state.Tx, p state.Path, out []string) []string {
	if len(p) > 0 {
		out = append(out, p.String()+"/")
		for _, k := range tx.Keys(p) {
			out = append(out, fmt.Sprintf("%s = %q", p.Join(k), tx.Get(p, k)))
		}
	}
	for _, n := range tx.Nodes(p) {
		out = dump(tx, p.Join(n), out)
	}
	return out
}
