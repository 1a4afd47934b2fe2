// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package statetest tests stores and those who use them: a suite that every
// store passes, and stores that crash, fail or run functions twice.
package statetest

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/nodekeep/nodekeep/state"
)

// ErrCrash is what a crashed store returns. It is no state.ErrCommit: nothing
// is left that could try again.
var ErrCrash = errors.New("statetest: crashed")

// Crash is a store that ends at a chosen Update, as if the process had been
// killed there. The store below stays usable for the next process.
type Crash struct {
	state.Store
	at      int64
	written bool
	calls   atomic.Int64
	once    sync.Once
	crashed chan struct{}
}

// CrashAt returns store with a crash before the nth Update, counted from 1: that
// one and all after fail with ErrCrash and write nothing. With n < 1 it never
// crashes. A sweep runs n = 1, 2, … until a run ends without a crash.
func CrashAt(store state.Store, n int) *Crash {
	return &Crash{Store: store, at: int64(n), crashed: make(chan struct{})}
}

// CrashAfter is like CrashAt, but the nth Update is still written: its caller
// never learns of it and does not go on.
func CrashAfter(store state.Store, n int) *Crash {
	c := CrashAt(store, n)
	c.written = true
	return c
}

// Update implements state.Store.
func (c *Crash) Update(fn func(state.Tx) error) error {
	n := c.calls.Add(1)
	if c.at < 1 || n < c.at {
		return c.Store.Update(fn)
	}
	var err error
	if n == c.at && c.written {
		err = c.Store.Update(fn)
	}
	c.once.Do(func() { close(c.crashed) })
	return errors.Join(ErrCrash, err)
}

// Crashed is closed at the crash.
func (c *Crash) Crashed() <-chan struct{} { return c.crashed }

// Updates returns how often Update was called.
func (c *Crash) Updates() int { return int(c.calls.Load()) }

// Commits implements state.Stats, if the store below does.
func (c *Crash) Commits() int64 { return commits(c.Store) }
