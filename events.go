// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/state"
)

// Event is one thing that happened to an alloc or a task (see package outbox).
type Event = outbox.Event

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

// newBox makes the outbox over the agent's store.
func (a *Agent) newBox() *outbox.Box {
	return outbox.New(outbox.Config{
		Store: a.store, Path: outboxPath, Events: state.Log{Path: eventPath, MaxRecords: a.cfg.MaxEvents},
		Changed: a.changed.wait, Ended: a.ended, Log: a.log.Named("outbox"),
		Others: func() (out []outbox.Status) {
			for _, s := range a.Allocs() {
				if s.Gone || s.Done && s.Rev == 0 { // no runner has it
					out = append(out, told(s))
				}
			}
			return out
		},
	})
}

// told is what the control plane is told of an alloc.
func told(s AllocStatus) outbox.Status {
	s.Snapshot.Alloc = s.Alloc
	return outbox.StatusOf(s.Snapshot)
}

// Outbox is what a control plane's adapter takes statuses and events from: at
// least once, across crashes of both sides, never backwards. There is one
// consumer; whoever only wants to look reads Events.
func (a *Agent) Outbox() outbox.Outbox { return a.box }

// Statuses returns every alloc that has a record, as it is on disk, and the token
// of the newest event: Events after that token tell all that comes next. It is
// what to start from, and what to do about state.ErrCompacted.
func (a *Agent) Statuses() (all []outbox.Status, token uint64, err error) { return a.box.Snapshot() }

// EventsSince returns up to max events (0: one page of 256) that came after the
// token, oldest first. Tokens are good until the agent ends: see ResolveEvent. A token older than what is kept is state.ErrCompacted: go
// on from Statuses.
func (a *Agent) EventsSince(after uint64, max int) ([]Event, error) { return a.box.Read(after, max) }

// ResolveEvent returns the token of an event's cursor, for EventsSince and Events: what
// a reader keeps that outlives the agent. It is outbox.ErrPutBack, and
// state.ErrCompacted, if the state was put back from a copy that does not know the
// event: go on from Statuses. A bare token is taken as it is.
func (a *Agent) ResolveEvent(cursor string) (token uint64, err error) { return a.box.Resolve(cursor) }

// EventCursor returns the cursor of a token, such as that of Statuses.
func (a *Agent) EventCursor(token uint64) (string, error) { return a.box.Cursor(token) }

// EventBounds returns the tokens of the oldest event kept and of the newest.
// EventsSince(oldest-1) reads all there is, EventsSince(newest) what comes next.
func (a *Agent) EventBounds() (oldest, newest uint64, err error) { return a.box.Bounds() }

// Events yields the events after the token and then each new one, until ctx or
// the agent ends. An error ends it; state.ErrCompacted as with EventsSince.
func (a *Agent) Events(ctx context.Context, after uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			changed := a.changed.wait() // before the read, so that nothing falls between
			page, err := a.box.Read(after, 0)
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
