// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// desk is a store with an outbox, and who writes to it.
type desk struct {
	t       *testing.T
	store   state.Store
	limit   uint64
	box     *Box
	changed atomic.Pointer[chan struct{}]
	ended   chan struct{}
	tasks   map[string]taskrunner.Snapshot
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, store: state.Memory(), tasks: map[string]taskrunner.Snapshot{}}
	ch := make(chan struct{})
	d.changed.Store(&ch)
	d.again()
	return d
}

// again is a restart of the agent.
func (d *desk) again() {
	d.ended = make(chan struct{})
	d.box = New(Config{Store: d.store, Events: state.Log{Path: state.Path{"v1", "events"}, MaxRecords: d.limit},
		Path: state.Path{"v1", "outbox"}, Changed: func() <-chan struct{} { return *d.changed.Load() }, Ended: d.ended})
}

func (d *desk) ring() {
	ch := make(chan struct{})
	close(*d.changed.Swap(&ch))
}

func (d *desk) receive(id string) {
	d.t.Helper()
	al := &spec.Alloc{ID: id, JobID: "job", Tasks: []spec.Task{{Name: "t", Driver: "fake"}}}
	require.NoError(d.t, d.store.Update(func(tx state.Tx) error {
		return errors.Join(allocrunner.Save(tx, al), d.box.Received(tx, id))
	}))
	d.ring()
}

// restart is a transition of the alloc's task: an event, and something to see.
func (d *desk) restart(id string) {
	d.t.Helper()
	old := d.tasks[id]
	now := old
	now.Phase, now.Restarts, now.Seq = taskrunner.Pending, old.Restarts+1, old.Seq+1
	now.Events = []taskrunner.Event{{Seq: now.Seq, Time: time.Now(), Kind: taskrunner.Restarting}}
	require.NoError(d.t, d.store.Update(func(tx state.Tx) error {
		slot := state.Slot[taskrunner.Snapshot]{Key: "task", Version: 1}
		return errors.Join(slot.Save(tx, state.Path{"v1", "alloc", id, "task-t"}, now), d.box.Task(tx, id, "t", old, now))
	}))
	d.tasks[id] = now
	d.ring()
}

func (d *desk) next() Batch {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	b, err := d.box.Next(ctx)
	require.NoError(d.t, err)
	return b
}

func (d *desk) nothing() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Millisecond)
	defer cancel()
	b, err := d.box.Next(ctx)
	require.ErrorIs(d.t, err, context.DeadlineExceeded, "%+v", b)
}

func ids(b Batch) (out []string) {
	for _, s := range b.Statuses {
		out = append(out, fmt.Sprintf("%s:%d", s.AllocID, s.Tasks["t"].Restarts))
	}
	return out
}

func TestUntilAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.receive("a")
		d.restart("a")
		var h head
		require.NoError(t, d.store.View(func(tx state.Tx) (err error) { h, err = d.box.head(tx); return err }))
		require.Zero(t, h, "nobody asks: nothing is kept but events")
		b := d.next()
		require.Equal(t, []string{"a:1"}, ids(b), "the first consumer is told of what was there before")
		require.Len(t, b.Events, 1)
		require.Equal(t, allocrunner.Pending, b.Statuses[0].Status)
		require.Equal(t, b, d.next(), "it comes again until it is acknowledged")
		d.again()
		require.ErrorIs(t, d.box.Ack(b.Token), ErrToken)
		again := d.next()
		require.NotEqual(t, b.Token.Epoch, again.Token.Epoch)
		b.Token = again.Token
		require.Equal(t, b, again, "also after a crash")
		d.restart("a")
		d.receive("b")
		c := d.next()
		require.Equal(t, []string{"a:2", "b:0"}, ids(c), "of each alloc the latest")
		require.Len(t, c.Events, 2)
		require.NoError(t, d.box.Ack(b.Token))
		c = d.next()
		require.Equal(t, []string{"a:2", "b:0"}, ids(c))
		require.Len(t, c.Events, 1)
		require.NoError(t, d.box.Ack(c.Token))
		require.NoError(t, d.box.Ack(b.Token), "older: nothing")
		d.nothing()
		require.True(t, d.box.flush())
		d.again()
		d.nothing()
		require.Error(t, d.box.Ack(Token{Epoch: d.box.epoch, Events: 99}))
		require.Error(t, d.box.Ack(Token{Epoch: d.box.epoch, Statuses: 1 << 62}))
		require.NoError(t, d.store.View(func(tx state.Tx) error {
			require.Empty(t, tx.Keys(d.box.newsPath()), "deleted on acknowledge")
			return nil
		}))
		d.restart("b")
		require.Equal(t, []string{"b:1"}, ids(d.next()))
	})
}

// Acknowledgements cost no write of their own while transitions go on, and one
// after a second when they do not.
func TestAckIsLazy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.box.Run(ctx) }()
		d.receive("a")
		require.NoError(t, d.box.Ack(d.next().Token))
		commits := func() int64 { return d.store.(state.Stats).Commits() }
		time.Sleep(2 * ackPause)
		before := commits()
		for range 50 {
			d.restart("a")
			require.NoError(t, d.box.Ack(d.next().Token))
		}
		require.Equal(t, before+50, commits(), "one for each transition")
		time.Sleep(2 * ackPause)
		require.Equal(t, before+51, commits(), "one for all that was acknowledged")
		time.Sleep(time.Hour)
		require.Equal(t, before+51, commits(), "and none when nothing happens")

		// What rides in a transition is known after a crash.
		d.restart("a")
		require.NoError(t, d.box.Ack(d.next().Token))
		d.receive("b")
		d.restart("b")
		d.again()
		b := d.next()
		require.Equal(t, []string{"b:1"}, ids(b))
		require.Len(t, b.Events, 1)
		cancel()
		<-done
	})
}

func TestDroppedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.limit = 10
		d.again()
		d.receive("a")
		for range 4 {
			d.restart("a")
		}
		require.NoError(t, d.box.Ack(d.next().Token))
		for range 10 {
			d.restart("a")
		}
		b := d.next()
		require.Zero(t, b.Dropped, "acknowledged ones go first")
		require.Len(t, b.Events, 10)
		d.restart("a")
		d.restart("a")
		b = d.next()
		require.EqualValues(t, 2, b.Dropped)
		require.Len(t, b.Events, 10)
		require.EqualValues(t, 7, b.Events[0].Token)
		require.Equal(t, []string{"a:16"}, ids(b), "a status is never dropped")
		_, err := d.box.Read(1, 0)
		require.ErrorIs(t, err, state.ErrCompacted)
		all, token, err := d.box.Snapshot()
		require.NoError(t, err)
		require.EqualValues(t, 16, token)
		require.Len(t, all, 1)
		events, err := d.box.Read(token, 0)
		require.NoError(t, err)
		require.Empty(t, events, "the snapshot is as of the token")
		require.NoError(t, d.box.Ack(b.Token))
		d.nothing()
	})
}

// What cannot be read is told as well as it can be, and holds up nothing else.
func TestDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.receive("a")
		d.next()
		for range 3 {
			d.restart("a")
		}
		d.receive("b")
		spoil := func(p state.Path, key string) {
			require.NoError(t, d.store.Update(func(tx state.Tx) error { return tx.Put(p, key, []byte("???")) }))
		}
		spoil(d.box.newsPath(), "a")
		spoil(state.Path{"v1", "events", "records"}, "\x00\x00\x00\x00\x00\x00\x00\x02")
		b := d.next()
		require.ElementsMatch(t, []string{"a:3", "b:0"}, ids(b))
		require.Len(t, b.Events, 1)
		require.NoError(t, d.box.Ack(b.Token))
		b = d.next()
		require.EqualValues(t, 1, b.Dropped)
		require.Len(t, b.Events, 1)
		require.NoError(t, d.box.Ack(b.Token))
		d.nothing()

		d.restart("a")
		spoil(d.box.cfg.Path, "head")
		b = d.next()
		require.Contains(t, ids(b), "a:4")
		d.restart("a")
		require.NoError(t, d.box.Ack(d.next().Token))
		d.nothing()

		d.restart("a")
		spoil(state.Path{"v1", "alloc", "a"}, "alloc")
		b = d.next()
		require.Equal(t, allocrunner.Failed, b.Statuses[0].Status)
		require.Contains(t, b.Statuses[0].Description, "cannot be read")
	})
}

func TestCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.receive("a")
		require.NoError(t, d.box.Ack(d.next().Token))
		leave := func(id string) {
			require.NoError(t, d.store.Update(func(tx state.Tx) error { return d.box.Leave(tx, id) }))
			require.NoError(t, d.store.Update(func(tx state.Tx) error { return tx.DeleteTree(state.Path{"v1", "alloc", id}) }))
			delete(d.tasks, id)
		}
		d.receive("b")
		d.restart("b")
		leave("a")
		leave("b")
		d.again()
		b := d.next()
		require.Equal(t, []string{"b:1"}, ids(b), "what was told is not told again, what was not is kept")
		require.NoError(t, d.box.Ack(b.Token))
		require.True(t, d.box.flush())

		// One that comes back under that name is another.
		fixed := func(id string) {
			require.NoError(t, d.store.Update(func(tx state.Tx) error {
				return d.box.Fixed(tx, Status{AllocID: id, Status: allocrunner.Failed, Description: "refused"})
			}))
		}
		fixed("b")
		d.receive("b")
		require.Equal(t, allocrunner.Pending, d.next().Statuses[0].Status)
		const keep = 600
		d.box.keep = keep
		for i := range keep + 10 {
			fixed(fmt.Sprintf("x%d", i))
		}
		var h head
		require.NoError(t, d.store.View(func(tx state.Tx) (err error) {
			h, err = d.box.head(tx)
			require.Equal(t, h.Kept+1, len(tx.Keys(d.box.newsPath())))
			return err
		}))
		require.LessOrEqual(t, h.Kept, keep)
		told, before := map[string]bool{}, uint64(0)
		for range keep {
			b := d.next()
			for _, s := range b.Statuses {
				require.Greater(t, s.Seq, before)
				before, told[s.AllocID] = s.Seq, true
			}
			require.NoError(t, d.box.Ack(b.Token))
			if len(b.Statuses) < page {
				break
			}
		}
		require.True(t, d.box.flush())
		require.True(t, told["b"] && told[fmt.Sprintf("x%d", keep+9)] && !told["x0"])
		require.NoError(t, d.store.View(func(tx state.Tx) (err error) {
			h, err = d.box.head(tx)
			return err
		}))
		require.Zero(t, h.Kept)
	})
}

// An alloc is collected right after its last status was acknowledged, and the agent
// dies before the acknowledgement is on disk by itself: nothing is made up of the
// record that is gone.
func TestCollectedBeforeAckIsOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, damaged := range []bool{false, true} {
			d := newDesk(t)
			d.receive("a")
			d.receive("b")
			d.restart("a")
			told := d.next()
			require.Equal(t, []string{"a:1", "b:0"}, ids(told))
			require.NoError(t, d.box.Ack(told.Token))
			if damaged { // nobody knows whether it was told: it is kept, and told as it was
				require.NoError(t, d.store.Update(func(tx state.Tx) error { return tx.Put(d.box.newsPath(), "a", []byte("???")) }))
			}
			for range 2 { // a transaction may be repeated
				require.NoError(t, d.store.Update(func(tx state.Tx) error { return d.box.Leave(tx, "a") }))
			}
			require.NoError(t, d.store.Update(func(tx state.Tx) error { return tx.DeleteTree(state.Path{"v1", "alloc", "a"}) }))
			d.again()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			b, err := d.box.Next(ctx)
			cancel()
			if damaged {
				require.NoError(t, err)
				require.Equal(t, []string{"a:1"}, ids(b))
				require.Equal(t, told.Statuses[0].Status, b.Statuses[0].Status)
				require.Greater(t, b.Statuses[0].Seq, told.Statuses[0].Seq)
				continue
			}
			require.NoError(t, err, "events are repeated")
			require.Empty(t, b.Statuses)
		}
	})
}

// An older copy of the state is put back, and grows past what the life after it had
// given out: a token of that life acknowledges nothing, and later news have later
// Seqs.
func TestStatePutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.receive("a")
		first := d.next() // there is a consumer
		require.NoError(t, d.box.Ack(first.Token))
		require.True(t, d.box.flush())
		saved := dump(t, d.store)
		for range 3 {
			d.restart("a")
		}
		lost := d.next()
		require.Equal(t, []string{"a:3"}, ids(lost))
		time.Sleep(time.Second)

		d.store, d.tasks = state.Memory(), map[string]taskrunner.Snapshot{}
		require.NoError(t, d.store.Update(saved))
		d.again()
		d.nothing()
		for range 5 {
			d.restart("a")
		}
		d.receive("c")
		require.ErrorIs(t, d.box.Ack(lost.Token), ErrToken)
		require.ErrorIs(t, d.box.Ack(Token{Events: 1, Statuses: 1}), ErrToken, "of nobody")
		b := d.next()
		require.Equal(t, []string{"a:5", "c:0"}, ids(b))
		require.Len(t, b.Events, 5)
		require.Greater(t, b.Statuses[0].Seq, lost.Statuses[0].Seq)
		require.NoError(t, d.box.Ack(b.Token))
		d.nothing()
	})
}

// dump returns what writes all of the store once more.
func dump(t *testing.T, s state.Store) func(state.Tx) error {
	var puts []func(state.Tx) error
	require.NoError(t, s.View(func(tx state.Tx) error {
		var walk func(state.Path)
		walk = func(p state.Path) {
			if len(p) > 0 {
				for _, k := range tx.Keys(p) {
					v := tx.Get(p, k)
					puts = append(puts, func(tx state.Tx) error { return tx.Put(p, k, v) })
				}
			}
			for _, n := range tx.Nodes(p) {
				walk(p.Join(n))
			}
		}
		walk(nil)
		return nil
	}))
	return func(tx state.Tx) (err error) {
		for _, put := range puts {
			err = errors.Join(err, put(tx))
		}
		return err
	}
}

// Next sleeps until something is written, and wakes then; readers too.
func TestWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		got := make(chan Batch)
		go func() { got <- d.next() }()
		synctest.Wait()
		d.receive("a")
		b := <-got
		require.Equal(t, []string{"a:0"}, ids(b))
		require.NoError(t, d.box.Ack(b.Token))
		ended := make(chan error)
		go func() { _, err := d.box.Next(t.Context()); ended <- err }()
		synctest.Wait()
		close(d.ended)
		require.ErrorIs(t, <-ended, state.ErrClosed)
	})
}

// A store that fails keeps an acknowledgement back, no longer.
func TestAckOnBrokenDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.receive("a")
		require.NoError(t, d.box.Ack(d.next().Token))
		good := d.store
		d.store = statetest.Faulty(good, statetest.Faults{Err: syscall.ENOSPC, At: 1, For: 3})
		acked := *d.box.acked.Load()
		d.again()
		acked.Epoch = d.box.epoch
		require.ErrorIs(t, d.box.enable(), syscall.ENOSPC)
		require.NoError(t, d.box.Ack(acked))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.box.Run(ctx) }()
		time.Sleep(time.Minute)
		require.Equal(t, acked, *d.box.flushed.Load())
		cancel()
		<-done
		d.store = good
		d.again()
		d.nothing()
	})
}

func TestEqualTasks(t *testing.T) {
	a := TaskOf(taskrunner.Snapshot{Phase: taskrunner.Running, StartedAt: time.Unix(1, 0)})
	b := TaskOf(taskrunner.Snapshot{Phase: taskrunner.Stopping, StartedAt: time.Unix(1, 0)})
	require.True(t, a.equal(b), "it does not show")
	require.False(t, a.equal(TaskOf(taskrunner.Snapshot{Phase: taskrunner.Running})))
	require.True(t, slices.Equal(ids(Batch{}), nil))
}
