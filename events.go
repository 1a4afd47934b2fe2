// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// eventPage is how many events one read of the log takes.
const eventPage = 256

// bell wakes any number of waiters without knowing them.
type bell struct{ ch atomic.Pointer[chan struct{}] }

func newBell() *bell {
	b := &bell{}
	ch := make(chan struct{})
	b.ch.Store(&ch)
	return b
}

func (b *bell) wait() <-chan struct{} { return *b.ch.Load() }

func (b *bell) ring() {
	ch := make(chan struct{})
	close(*b.ch.Swap(&ch))
}

// journal writes events into the transition that they tell of and reads them
// back. The log is bounded (see state.Log).
type journal struct {
	store state.Store
	log   state.Log
}

// append adds the events of one task, or of the alloc where task is empty, that
// came after seq. It is called inside a transaction and may be repeated.
func (j journal) append(tx state.Tx, alloc, task string, seq uint64, events []taskrunner.Event) error {
	for _, ev := range events {
		if ev.Seq <= seq {
			continue
		}
		raw, err := json.Marshal(Event{Time: ev.Time, AllocID: alloc, Task: task, Event: ev})
		if err != nil {
			return fmt.Errorf("nodekeep: event of %s/%s: %w", alloc, task, err)
		}
		if _, err := j.log.Append(tx, raw); err != nil {
			return err
		}
	}
	return nil
}

// read returns up to max events after the token; max 0 is one page.
func (j journal) read(after uint64, max int) (out []Event, err error) {
	if max <= 0 {
		max = eventPage
	}
	err = j.store.View(func(tx state.Tx) error {
		out = nil
		records, err := j.log.Read(tx, after, max)
		if err != nil {
			return err
		}
		for _, r := range records {
			var ev Event
			if err := json.Unmarshal(r.Data, &ev); err != nil {
				return fmt.Errorf("%w: event %d: %w", state.ErrCorrupt, r.Token, err)
			}
			ev.Token = r.Token
			out = append(out, ev)
		}
		return nil
	})
	return out, err
}

// EventsSince returns up to max events (0: one page of 256) that came after the
// token, oldest first. A token older than what is kept is state.ErrCompacted:
// read Allocs and go on from EventBounds.
func (a *Agent) EventsSince(after uint64, max int) ([]Event, error) {
	return a.journal.read(after, max)
}

// EventBounds returns the tokens of the oldest event kept and of the newest.
// EventsSince(oldest-1) reads all there is, EventsSince(newest) what comes next.
func (a *Agent) EventBounds() (oldest, newest uint64, err error) {
	err = a.store.View(func(tx state.Tx) error {
		oldest, newest, err = a.journal.log.Bounds(tx)
		return err
	})
	return oldest, newest, err
}

// Events yields the events after the token and then each new one, until ctx or
// the agent ends. An error ends it; state.ErrCompacted as with EventsSince.
func (a *Agent) Events(ctx context.Context, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			changed := a.changed.wait() // before the read, so that nothing falls between
			page, err := a.journal.read(after, 0)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, ev := range page {
				if !yield(ev, nil) {
					return
				}
				after = ev.Token
			}
			if len(page) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-a.ended:
				return
			}
		}
	}
}
