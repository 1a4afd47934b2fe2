// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package outbox is what a node has to tell, kept on disk until it was told:
// events, which are a sequence, and statuses, of which only the latest of each
// alloc matters.
//
//	a transition of a task or an alloc                    ┌─▶ Next, Ack   one consumer: the control plane
//	  │  one transaction, one fsync                       │
//	  ├─▶ v1/alloc/<id>      the state itself ────────┐   │
//	  ├─▶ v1/events          one record per event ────┼───┼─▶ Read, Snapshot   any number of readers,
//	  └─▶ v1/outbox          "alloc <id> has news" ───┘   │                    each with a token of its own
//	                                 one View ────────────┘
//
//	v1/outbox        head: {seq, acked, on, …}; run, runs: who wrote which events (cursor.go)
//	└── news         one value per alloc, its name the id: {seq}, and the last
//	                 status of one whose record is gone
//
// What is promised to the consumer:
//
//   - At least once: what was not acknowledged comes again, also after a crash of
//     the agent or of the consumer. Nothing is lost, but for events beyond the
//     bounds of the log, and that is told (Batch.Dropped).
//   - Never backwards: a status is read from the state in the transaction that
//     reads the news of it, so it is on disk and as new as anything acknowledged.
//     An alloc that is collected takes its news with it if they were told, or
//     leaves its last status behind, both in one transaction.
//   - No token outlives the agent. Where the consumer goes on is kept here, not
//     by it: after a restart Next repeats what was not acknowledged. A token of
//     before is refused (ErrToken), because the state may since have been put back
//     from a copy, and then the same numbers stand for other news.
//   - No polling: Next sleeps until something is written.
//   - No fsync of its own for a transition. Acknowledgements ride in the next
//     transition's transaction, or go to disk together after a second; a crash
//     before that only repeats what was told.
//
// Statuses are kept from the first call of Next on: a node that nobody asks keeps
// none. That first call brings the status of every alloc there is.
package outbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/state"
)

const (
	// page is how many events, and how many statuses, one batch has at most.
	page = 256
	// ackPause is how long an acknowledgement waits for company.
	ackPause = time.Second
	// maxKept is how many statuses of allocs that are gone wait for a consumer.
	maxKept = 10_000
)

// ErrToken says that a token was not given out since the agent started. Nothing is
// lost or acknowledged: go on with Next, which repeats what is still to be told.
var ErrToken = errors.New("outbox: a token of another run of the agent; go on with Next")

// Outbox is the side of the one consumer. It may be used from any goroutine, but
// two that take batches take the same ones.
//
//	for {
//		batch, err := box.Next(ctx)
//		if err != nil { return err }
//		if err := send(batch); err != nil { wait; continue } // it comes again
//		if err := box.Ack(batch.Token); err != nil && !errors.Is(err, ErrToken) { return err }
//	}
type Outbox interface {
	// Next returns what is not acknowledged, oldest first, a few hundred of each at
	// most. It blocks until there is something, ctx ends, or the agent ends
	// (state.ErrClosed).
	Next(ctx context.Context) (Batch, error)
	// Ack says that everything up to the token has been taken over. It never
	// blocks on the disk and is idempotent; an older token changes nothing. One
	// from before a restart of the agent is ErrToken, whatever its numbers.
	Ack(t Token) error
}

// Token is how far the consumer has come. It is good until the agent ends, and is
// given back as it is.
type Token struct {
	Epoch    string `json:"epoch"` // of the run of the agent that gave it out
	Events   uint64 `json:"events"`
	Statuses uint64 `json:"statuses"`
}

// Batch is what Next returns. An event and the status it led to may come in one
// batch or in two.
type Batch struct {
	Statuses []Status `json:"statuses,omitempty"`
	Events   []Event  `json:"events,omitempty"`
	// Dropped is how many events were dropped before they were acknowledged, since
	// the last acknowledgement: those right before Events.
	Dropped uint64 `json:"dropped,omitempty"`
	Token   Token  `json:"token"` // for Ack
}

func (b *Batch) empty() bool { return len(b.Statuses) == 0 && len(b.Events) == 0 && b.Dropped == 0 }

// Config is what a Box needs. All but Log and Others is required.
type Config struct {
	Store state.Store
	// Events is the log of events: nothing else writes to it.
	Events state.Log
	// Path is the node of all else.
	Path state.Path
	// Changed is closed after the next commit. It is got before reading.
	Changed func() <-chan struct{}
	// Ended is closed when nothing is written any more.
	Ended <-chan struct{}
	// Others are the statuses of allocs that have no record of their own, for the
	// first batch of all. Nil: there are none.
	Others func() []Status
	Log    hclog.Logger // nil is silent
}

// Box is the whole of an outbox: the side of those who write, the consumer's and
// the readers'. Make it with New; all methods may be called from any goroutine.
type Box struct {
	cfg Config

	epoch   string                // of the tokens; no other Box has it
	start   uint64                // when it was made, in µs: Seqs of news are beyond it
	acked   atomic.Pointer[Token] // by the consumer
	flushed atomic.Pointer[Token] // … and on disk, as far as this Box wrote it
	on      atomic.Bool           // there is a consumer
	kick    chan struct{}         // 1-buffered: something was acknowledged
	keep    int                   // maxKept
}

// New makes the Box of a store, once for each run of the agent. It reads and
// writes nothing.
func New(cfg Config) *Box {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	var epoch [8]byte
	_, _ = rand.Read(epoch[:]) // never fails (crypto/rand)
	b := &Box{cfg: cfg, epoch: hex.EncodeToString(epoch[:]), start: micros(), kick: make(chan struct{}, 1), keep: maxKept}
	b.acked.Store(&Token{Epoch: b.epoch})
	b.flushed.Store(&Token{Epoch: b.epoch})
	return b
}

func micros() uint64 { return uint64(max(0, time.Now().UnixMicro())) }

// Next implements Outbox.
func (b *Box) Next(ctx context.Context) (Batch, error) {
	for {
		changed := b.cfg.Changed() // before the read, so that nothing falls between
		if err := b.enable(); err != nil {
			return Batch{}, err
		}
		batch, err := b.unacknowledged()
		if err != nil || !batch.empty() {
			return batch, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		case <-b.cfg.Ended:
			return Batch{}, state.ErrClosed
		}
	}
}

// Ack implements Outbox.
func (b *Box) Ack(t Token) error {
	if t.Epoch != b.epoch {
		return fmt.Errorf("%w (%d/%d)", ErrToken, t.Events, t.Statuses)
	}
	err := b.cfg.Store.View(func(tx state.Tx) error {
		h, err := b.head(tx)
		if err != nil {
			return err
		}
		_, last, err := b.cfg.Events.Bounds(tx)
		if err == nil && (t.Statuses > h.Seq || t.Events > last) {
			err = fmt.Errorf("outbox: token %d/%d was never given out; go on with Next", t.Events, t.Statuses)
		}
		return err
	})
	if err != nil {
		return err
	}
	for {
		old := b.acked.Load()
		next := Token{b.epoch, max(old.Events, t.Events), max(old.Statuses, t.Statuses)}
		if next == *old {
			return nil
		}
		if b.acked.CompareAndSwap(old, &next) {
			break
		}
	}
	select {
	case b.kick <- struct{}{}:
	default:
	}
	return nil
}

// Run brings acknowledgements to disk until ctx ends, then the last ones. A store
// that fails is tried again with backoff; whoever has it end is waited for.
func (b *Box) Run(ctx context.Context) {
	for {
		select {
		case <-b.kick:
		case <-ctx.Done():
			b.flush()
			return
		}
		for wait := ackPause; ; wait = min(2*wait, time.Minute) {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				b.flush()
				return
			}
			if b.flush() {
				break
			}
		}
	}
}

// flush writes what was acknowledged and says whether it is on disk.
func (b *Box) flush() bool {
	t := *b.acked.Load()
	if t == *b.flushed.Load() {
		return true
	}
	told, err := b.told(t.Statuses)
	if err == nil {
		err = b.cfg.Store.Update(func(tx state.Tx) error { return b.settle(tx, t, told) })
	}
	if err != nil {
		b.cfg.Log.Warn("what the control plane has taken over cannot be written; it is told again after a crash", "error", err)
		return false
	}
	b.flushed.Store(&t)
	return true
}
