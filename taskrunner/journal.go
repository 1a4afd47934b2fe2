// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"bytes"
	"errors"
	"maps"
	"time"

	"github.com/nodekeep/nodekeep/state"
)

const (
	retryFirst = 100 * time.Millisecond // after a commit that failed, doubled up to
	retryLimit = 10 * time.Second
	// eventPause is how far apart commits are that hold nothing but events.
	eventPause = time.Second
	// maxUnwritten bounds the events that wait for a store that fails.
	maxUnwritten = 1000
)

// journal is what the loop knows of the disk.
type journal struct {
	disk    Snapshot          // as it is there
	hooks   map[string][]byte // hooks' states as they are there, as far as this runner wrote them
	unsaved map[string][]byte // … and those that are not there yet
	tries   int               // failed commits in a row
	retryAt time.Time
	flushAt time.Time // events wait until then; zero: none does
	flushed time.Time // the last commit
	durable chan struct{}
}

// durable says that nothing waits for a store that fails.
func (l *loop) isDurable() bool { return l.tries == 0 }

// durableSoon is nil, or closed with the next commit that succeeds.
func (l *loop) durableSoon() <-chan struct{} {
	if l.isDurable() {
		return nil
	}
	if l.journal.durable == nil {
		l.journal.durable = make(chan struct{})
	}
	return l.journal.durable
}

// move makes s the loop's snapshot and shows it, at once if a crash would only
// repeat the step, otherwise when it is on disk. The error is ErrNotDurable.
func (l *loop) move(s Snapshot, eff effect) error {
	if eff == same {
		return nil
	}
	l.setPhase(s)
	if eff == volatile && l.isDurable() {
		l.publish()
		return nil
	}
	return l.commit()
}

// commit writes what is not on disk yet: snapshot, events, hooks' states. What
// Record adds goes with them. Then, and only then, the snapshot is published.
func (l *loop) commit() error {
	began := time.Now()
	l.snap.Rev = l.nextRev()
	err := l.write()
	took := time.Since(began)
	if f := l.r.cfg.Trace.Commit; f != nil {
		l.outside(func() { f(took, err) })
	}
	if err != nil {
		return l.degraded(err)
	}
	if l.tries > 0 {
		l.r.log.Info("state can be written again", "failed_tries", l.tries)
	}
	l.tries, l.retryAt, l.flushAt, l.flushed = 0, time.Time{}, time.Time{}, time.Now()
	maps.Copy(l.journal.hooks, l.unsaved)
	clear(l.unsaved)
	l.snap.Durable = true
	l.snap = l.snap.trim(l.r.cfg.MaxEvents)
	l.disk = l.snap
	l.publish()
	if l.journal.durable != nil {
		close(l.journal.durable)
		l.journal.durable = nil
	}
	return nil
}

func (l *loop) write() error {
	raw, err := taskSlot().Encode(l.snap.trim(l.r.cfg.MaxEvents))
	if err != nil {
		return err
	}
	return l.r.cfg.Store.Update(func(tx state.Tx) error {
		errs := []error{tx.Put(l.r.path, taskSlot().Key, raw)}
		for key, raw := range l.unsaved {
			errs = append(errs, tx.Put(l.r.path, key, raw))
		}
		if l.r.cfg.Record != nil {
			errs = append(errs, l.record(tx))
		}
		return errors.Join(errs...)
	})
}

// degraded: the store fails. What is shown stays what is on disk.
func (l *loop) degraded(err error) error {
	l.tries++
	l.retryAt = time.Now().Add(backoff(l.tries, retryFirst, 2, retryLimit))
	if over := len(l.snap.Events) - maxUnwritten; over > 0 {
		l.snap.Events = l.snap.Events[over:]
	}
	if l.tries == 1 {
		l.r.log.Error("state cannot be written; nothing new is started until it can", "error", err)
		shown := l.r.Snapshot()
		shown.Rev, shown.Durable = l.snap.Rev, false
		l.show(shown)
	}
	return ErrNotDurable
}

// saveHook writes one hook's state, and with it whatever waits.
func (l *loop) saveHook(key string, raw []byte) error {
	if old, ok := l.unsaved[key]; ok && bytes.Equal(old, raw) {
		return ErrNotDurable
	}
	if bytes.Equal(l.journal.hooks[key], raw) && l.unsaved[key] == nil {
		return nil
	}
	l.unsaved[key] = raw
	if l.snap.Seq == l.disk.Seq && l.isDurable() {
		return l.commitHooks()
	}
	return l.commit()
}

// commitHooks writes hooks' states alone: the snapshot has not changed, or in a
// way that a crash repeats.
func (l *loop) commitHooks() error {
	began := time.Now()
	err := l.r.cfg.Store.Update(func(tx state.Tx) error {
		var errs []error
		for key, raw := range l.unsaved {
			errs = append(errs, tx.Put(l.r.path, key, raw))
		}
		return errors.Join(errs...)
	})
	took := time.Since(began)
	if f := l.r.cfg.Trace.Commit; f != nil {
		l.outside(func() { f(took, err) })
	}
	if err != nil {
		l.snap.Rev = l.nextRev()
		return l.degraded(err)
	}
	maps.Copy(l.journal.hooks, l.unsaved)
	clear(l.unsaved)
	return nil
}

// emit adds an event of a hook or a driver. Events that come fast are written
// together.
func (l *loop) emit(kind Kind, attrs map[string]string) {
	l.snap.note(l.r.cfg.Clock.Now().Wall, kind, attrs)
	l.flushBy(l.flushed.Add(eventPause))
}

// flushBy has the events that wait written at that time, or with the next
// transition.
func (l *loop) flushBy(at time.Time) {
	if l.flushAt.IsZero() || at.Before(l.flushAt) {
		l.flushAt = at
	}
}

// publish shows the snapshot, without events that are not on disk.
func (l *loop) publish() {
	s := l.snap
	s.Events, s.Seq = l.disk.Events, l.disk.Seq
	l.show(s)
}

func (l *loop) show(s Snapshot) {
	old := l.r.pub.Swap(&published{s, make(chan struct{})})
	close(old.changed)
	if f := l.r.cfg.Observe; f != nil {
		l.outside(func() { f(s) })
	}
	if f := l.r.cfg.Trace.Transition; f != nil {
		l.outside(func() { f(old.Snapshot, s) })
	}
}
