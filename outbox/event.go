// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Event is one thing that happened to an alloc or a task. Tokens grow; a gap
// in Event.Seq of one task says that events were lost.
type Event struct {
	Token   uint64           `json:"token"`
	Cursor  string           `json:"cursor,omitempty"` // the token for those that outlive the agent: see Box.Resolve
	Time    time.Time        `json:"time"`
	AllocID string           `json:"alloc"`
	Task    string           `json:"task,omitempty"`
	Event   taskrunner.Event `json:"event"`
}

// appendEvents adds the events of a task that came after seq.
func (b *Box) appendEvents(tx state.Tx, alloc, task string, seq uint64, events []taskrunner.Event) error {
	noted := false
	for _, ev := range events {
		if ev.Seq <= seq {
			continue
		}
		if !noted {
			if err := b.noteRun(tx); err != nil {
				return err
			}
			noted = true
		}
		raw, err := json.Marshal(Event{Time: ev.Time, AllocID: alloc, Task: task, Event: ev})
		if err != nil {
			return fmt.Errorf("outbox: event of %s/%s: %w", alloc, task, err)
		}
		if _, err := b.cfg.Events.Append(tx, raw); err != nil {
			return err
		}
	}
	return nil
}

func (b *Box) read(tx state.Tx, after uint64, max int) (out []Event, err error) {
	records, err := b.cfg.Events.Read(tx, after, max)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	runs, err := b.runs(tx)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		var ev Event
		if err := json.Unmarshal(r.Data, &ev); err != nil {
			if len(out) > 0 {
				break
			}
			return nil, fmt.Errorf("%w: event %d: %w", state.ErrCorrupt, r.Token, err)
		}
		ev.Token, ev.Cursor = r.Token, cursor(runs, r.Token)
		out = append(out, ev)
	}
	return out, nil
}

// Read returns up to max events after the token, oldest first; 0 is a page of
// 256. A token older than what is kept, or beyond it, is state.ErrCompacted: go on
// from a Snapshot. A token is good until the agent ends; whoever keeps one for
// longer keeps the cursor, and gets the token of Resolve.
func (b *Box) Read(after uint64, max int) (out []Event, err error) {
	if max <= 0 {
		max = page
	}
	err = b.cfg.Store.View(func(tx state.Tx) error {
		out, err = b.read(tx, after, max)
		return err
	})
	return out, err
}

// Bounds returns the tokens of the oldest event that is kept and of the newest.
func (b *Box) Bounds() (oldest, newest uint64, err error) {
	err = b.cfg.Store.View(func(tx state.Tx) error {
		oldest, newest, err = b.cfg.Events.Bounds(tx)
		return err
	})
	return oldest, newest, err
}

// Snapshot returns every alloc that has a record, and the token of the newest
// event: Read goes on from there, and nothing is between. Allocs of which the
// record cannot be read are left out.
func (b *Box) Snapshot() (all []Status, token uint64, err error) {
	err = b.cfg.Store.View(func(tx state.Tx) error {
		all = nil
		for _, id := range tx.Nodes(allocsPath()) {
			var s allocrunner.Snapshot
			if ok, err := s.Load(tx, id); ok && err == nil {
				all = append(all, StatusOf(s))
			}
		}
		_, token, err = b.cfg.Events.Bounds(tx)
		return err
	})
	return all, token, err
}
