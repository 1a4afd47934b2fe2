// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"cmp"
	"errors"
	"slices"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// head is what is known of the statuses as a whole.
type head struct {
	Seq   uint64 `json:"seq"`             // of the latest news
	Acked uint64 `json:"acked,omitempty"` // news up to here were told, whether they are still there or not
	On    bool   `json:"on,omitempty"`    // somebody takes them
	Kept  int    `json:"kept,omitempty"`  // of allocs that are gone
}

// news says that an alloc's status is to be told.
type news struct {
	Seq  uint64  `json:"seq"`
	Last *Status `json:"last,omitempty"` // of an alloc that has no record of its own
}

func headSlot() state.Slot[head] { return state.Slot[head]{Key: "head", Version: 1} }

func newsSlot(id string) state.Slot[news] { return state.Slot[news]{Key: id, Version: 1} }

func (b *Box) newsPath() state.Path { return b.cfg.Path.Join("news") }

// head reads the head. One that is damaged is made anew from the news: it must
// not keep every later transition from being written.
func (b *Box) head(tx state.Tx) (head, error) {
	h, _, err := headSlot().Load(tx, b.cfg.Path)
	if !errors.Is(err, state.ErrCorrupt) {
		return h, err
	}
	h = head{On: true}
	for _, id := range tx.Keys(b.newsPath()) {
		n, _, _ := newsSlot(id).Load(tx, b.newsPath())
		if h.Seq = max(h.Seq, n.Seq); n.Last != nil {
			h.Kept++
		}
	}
	h.Seq = max(h.Seq, b.acked.Load().Statuses, micros()) + 1<<20 // beyond whatever was given out
	return h, nil
}

// add notes news of an alloc; last is its status if it has no record to read it
// from. It runs inside the transaction that makes them news.
func (b *Box) add(tx state.Tx, id string, last *Status) error {
	h, err := b.head(tx)
	if err != nil || !h.On {
		return err
	}
	// Also beyond what was given out by a life that a copy knows nothing of, if the
	// state was put back: the consumer would take later news for older ones.
	h.Seq = max(h.Seq, b.start) + 1
	h.Acked = max(h.Acked, b.acked.Load().Statuses)
	if h.Kept > 0 {
		if old, _, _ := newsSlot(id).Load(tx, b.newsPath()); old.Last != nil {
			h.Kept--
		}
	}
	if last != nil {
		h.Kept++
		if last.Seq = h.Seq; h.Kept > b.keep {
			if err := b.thin(tx, &h, id); err != nil {
				return err
			}
		}
	}
	return errors.Join(headSlot().Save(tx, b.cfg.Path, h), newsSlot(id).Save(tx, b.newsPath(), news{h.Seq, last}))
}

// thin drops the oldest tenth of the statuses of allocs that are gone: nobody has
// asked for thousands of them, and the file does not grow for ever. The one that is
// being added stays.
func (b *Box) thin(tx state.Tx, h *head, but string) error {
	all := slices.DeleteFunc(b.list(tx, 0), func(p pending) bool { return p.Last == nil || p.id == but })
	gone := all[:min(len(all), b.keep/10)]
	b.cfg.Log.Warn("nobody takes the statuses of allocs that are gone; the oldest are dropped", "dropped", len(gone))
	for _, p := range gone {
		if err := tx.Delete(b.newsPath(), p.id); err != nil {
			return err
		}
	}
	h.Kept = len(all) - len(gone) + 1
	return nil
}

// pending is news and whose.
type pending struct {
	news
	id string
}

// list are the news after seq, oldest first. What cannot be read is news.
func (b *Box) list(tx state.Tx, after uint64) (all []pending) {
	for _, id := range tx.Keys(b.newsPath()) {
		n, _, err := newsSlot(id).Load(tx, b.newsPath())
		if n.Seq > after || err != nil {
			all = append(all, pending{n, id})
		}
	}
	slices.SortFunc(all, func(x, y pending) int { return cmp.Compare(x.Seq, y.Seq) })
	return all
}

// enable notes that there is a consumer; the first one is told of every alloc.
func (b *Box) enable() error {
	if b.on.Load() {
		return nil
	}
	var others []Status
	if b.cfg.Others != nil {
		others = b.cfg.Others()
	}
	err := b.cfg.Store.Update(func(tx state.Tx) error {
		h, err := b.head(tx)
		if err != nil || h.On {
			return err
		}
		h.On = true
		if err := headSlot().Save(tx, b.cfg.Path, h); err != nil {
			return err
		}
		for _, id := range tx.Nodes(allocsPath()) {
			if err := b.add(tx, id, nil); err != nil {
				return err
			}
		}
		for _, s := range others {
			if err := b.add(tx, s.AllocID, &s); err != nil {
				return err
			}
		}
		return nil
	})
	b.on.Store(err == nil)
	return err
}

func allocsPath() state.Path { return state.Path{"v1", "alloc"} }

// unacknowledged reads the next batch: all of it in one transaction.
func (b *Box) unacknowledged() (batch Batch, err error) {
	var damaged []string
	err = b.cfg.Store.View(func(tx state.Tx) error {
		batch, damaged = Batch{Token: *b.acked.Load()}, nil
		h, err := b.head(tx)
		if err != nil {
			return err
		}
		t := &batch.Token
		t.Statuses = max(t.Statuses, h.Acked)
		all := b.list(tx, t.Statuses)
		for _, p := range all[:min(len(all), page)] {
			if p.Seq == 0 {
				damaged = append(damaged, p.id)
				continue
			}
			batch.Statuses = append(batch.Statuses, b.status(tx, p))
			t.Statuses = max(t.Statuses, p.Seq)
		}
		return b.events(tx, &batch)
	})
	if err != nil || len(damaged) == 0 {
		return batch, err
	}
	err = b.cfg.Store.Update(func(tx state.Tx) error {
		for _, id := range damaged {
			if err := b.add(tx, id, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Batch{}, err
	}
	return b.unacknowledged()
}

// events adds the events after the last acknowledged one, and what was dropped of
// them.
func (b *Box) events(tx state.Tx, batch *Batch) error {
	t, log := &batch.Token, b.cfg.Events
	acked, err := log.Acked(tx)
	if err != nil {
		return err
	}
	first, last, err := log.Bounds(tx)
	if err != nil {
		return err
	}
	t.Events = min(max(t.Events, acked), last)
	skip := func(to uint64) {
		batch.Dropped += to - t.Events
		t.Events = to
	}
	if t.Events+1 < first {
		skip(first - 1)
	}
	for {
		events, err := b.read(tx, t.Events, page)
		if (errors.Is(err, state.ErrCompacted) || errors.Is(err, state.ErrCorrupt)) && t.Events < last {
			skip(t.Events + 1) // this one is damaged
			continue
		}
		if n := len(events); n > 0 {
			t.Events = events[n-1].Token
		}
		batch.Events = events
		return err
	}
}

// status is what is told of an alloc: as its record has it now.
func (b *Box) status(tx state.Tx, p pending) Status {
	if p.Last != nil {
		return *p.Last
	}
	var s allocrunner.Snapshot
	ok, err := s.Load(tx, p.id)
	st := Status{AllocID: p.id, Seq: p.Seq}
	switch {
	case err != nil:
		st.Status, st.Description = allocrunner.Failed, "its record cannot be read: "+err.Error()
	case !ok:
		st.Status, st.Description = allocrunner.Failed, "its record is gone"
	default:
		st = StatusOf(s)
		st.Seq = p.Seq
	}
	return st
}

// told are the ids whose news were told.
func (b *Box) told(seq uint64) (ids []string, err error) {
	err = b.cfg.Store.View(func(tx state.Tx) error {
		ids = nil
		for _, p := range b.list(tx, 0) {
			if p.Seq <= seq {
				ids = append(ids, p.id)
			}
		}
		return nil
	})
	return ids, err
}

// settle writes an acknowledgement and removes what it settles, unless there are
// later news.
func (b *Box) settle(tx state.Tx, t Token, told []string) error {
	h, err := b.head(tx)
	if err != nil {
		return err
	}
	for _, id := range told {
		n, _, err := newsSlot(id).Load(tx, b.newsPath())
		if err == nil && n.Seq > t.Statuses {
			continue
		}
		if n.Last != nil {
			h.Kept = max(0, h.Kept-1)
		}
		if err := tx.Delete(b.newsPath(), id); err != nil {
			return err
		}
	}
	h.Acked = max(h.Acked, t.Statuses)
	return errors.Join(headSlot().Save(tx, b.cfg.Path, h), b.ackEvents(tx, t.Events))
}

func (b *Box) ackEvents(tx state.Tx, token uint64) error {
	_, last, err := b.cfg.Events.Bounds(tx)
	if err != nil {
		return err
	}
	return b.cfg.Events.Ack(tx, min(token, last))
}

// The side of those who write: all of it inside their transactions, which may be
// repeated.

// Task writes the events of a transition of a task, and that its alloc has news
// if it shows.
func (b *Box) Task(tx state.Tx, alloc, task string, old, now taskrunner.Snapshot) error {
	if t := b.acked.Load().Events; t > b.flushed.Load().Events {
		if err := b.ackEvents(tx, t); err != nil {
			return err
		}
	}
	if err := b.appendEvents(tx, alloc, task, old.Seq, now.Events); err != nil {
		return err
	}
	if TaskOf(old).equal(TaskOf(now)) {
		return nil
	}
	return b.add(tx, alloc, nil)
}

// Alloc writes that an alloc has news, if a transition of its own shows.
func (b *Box) Alloc(tx state.Tx, old, now allocrunner.Snapshot) error {
	if old.Alloc != nil && old.Status == now.Status && old.Description == now.Description && old.Ending == now.Ending &&
		old.ModifyIndex == now.ModifyIndex && old.Health == now.Health && old.FinishedAt.Equal(now.FinishedAt) {
		return nil
	}
	return b.add(tx, now.Alloc.ID, nil)
}

// Received writes that an alloc is new here.
func (b *Box) Received(tx state.Tx, id string) error { return b.add(tx, id, nil) }

// Fixed writes the status of an alloc that has no record of its own: one that was
// refused, or could not be read.
func (b *Box) Fixed(tx state.Tx, s Status) error { return b.add(tx, s.AllocID, &s) }

// Leave keeps the status of an alloc whose record is about to go, if it has not
// been told yet. News that were told go with the record: their acknowledgement may
// not be on disk, and without the record nobody could tell them again. It is called
// once nothing of the alloc changes any more.
func (b *Box) Leave(tx state.Tx, id string) error {
	h, err := b.head(tx)
	if err != nil {
		return err
	}
	n, ok, err := newsSlot(id).Load(tx, b.newsPath())
	damaged := errors.Is(err, state.ErrCorrupt)
	if err != nil && !damaged {
		return err
	}
	if !ok && !damaged || n.Last != nil {
		return nil
	}
	if acked := max(h.Acked, b.acked.Load().Statuses); !damaged && n.Seq <= acked {
		h.Acked = acked
		return errors.Join(headSlot().Save(tx, b.cfg.Path, h), tx.Delete(b.newsPath(), id))
	}
	last := b.status(tx, pending{n, id})
	return b.add(tx, id, &last)
}
