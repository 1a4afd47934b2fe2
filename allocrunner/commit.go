// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// commit makes next and a the state of the alloc and writes them. If that fails
// they hold in memory and are written again with backoff.
func (l *loop) commit(next life, a *spec.Alloc) error {
	l.life, l.alloc = next, a
	return l.write(next, a)
}

// try is commit for what must not hold unless it is on disk.
func (l *loop) try(next life, a *spec.Alloc) error {
	err := l.write(next, a)
	if err == nil {
		l.life, l.alloc = next, a
	}
	return err
}

// write is one transaction. After a failure nobody knows what is on disk.
func (l *loop) write(next life, a *spec.Alloc) error {
	began := time.Now()
	idle := l.work.op == opNone // the hooks' states are the loop's
	now := l.r.snapshot(a, next, l.health.Found, l.r.Snapshot().Rev+1)
	raw, err := lifeSlot().Encode(next)
	var rawAlloc, rawHealth []byte
	if err == nil && a != l.disk.Alloc {
		rawAlloc, err = allocSlot().Encode(a)
	}
	if err == nil && l.health != l.diskHealth {
		rawHealth, err = healthSlot().Encode(*l.health)
	}
	if err == nil {
		err = l.r.cfg.Store.Update(func(tx state.Tx) error {
			if rawAlloc != nil {
				if err := tx.Put(l.r.path, allocSlot().Key, rawAlloc); err != nil {
					return err
				}
			}
			if rawHealth != nil {
				if err := tx.Put(l.r.path, healthSlot().Key, rawHealth); err != nil {
					return err
				}
			}
			if err := tx.Put(l.r.path, lifeSlot().Key, raw); err != nil {
				return err
			}
			if idle {
				if err := l.r.hooks.put(tx); err != nil {
					return err
				}
			}
			if f := l.r.cfg.Record; f != nil {
				return f(tx, l.disk, now)
			}
			return nil
		})
	}
	if f := l.r.cfg.Trace.Commit; f != nil {
		l.r.contain("Trace", func() { f(time.Since(began), err) })
	}
	if err != nil {
		if l.durable {
			l.r.log.Error("cannot write the alloc's state, trying again", "error", err)
		}
		l.durable = false
		l.commits.fail(time.Now())
		return fmt.Errorf("allocrunner: write state of alloc %s: %w", a.ID, err)
	}
	if idle {
		l.r.hooks.clean()
	}
	l.durable, l.disk, l.diskHealth = true, now, l.health
	l.commits.reset()
	return nil
}

// snapshot is the alloc as that life and its tasks have it.
func (r *AllocRunner) snapshot(a *spec.Alloc, l life, h *spec.Health, rev uint64) Snapshot {
	s := Snapshot{
		Health: h,
		Rev:    rev, Alloc: a, Status: l.Status, Description: l.Desc,
		Desired: a.DesiredStatus, ModifyIndex: a.ModifyIndex, FinishedAt: l.FinishedAt, Done: l.Done, Durable: true,
		Tasks: make(map[string]taskrunner.Snapshot, len(r.tasks)),
	}
	if l.Kill != nil {
		s.Ending = l.Kill.Cause
	}
	for _, t := range r.tasks {
		ts := t.Snapshot()
		s.Tasks[t.name] = ts
		s.Durable = s.Durable && ts.Durable
	}
	return s
}

// publish shows what has changed. What is not on disk is not shown, but for the
// fact that it is not.
func (l *loop) publish() {
	old := l.r.pub.Load()
	s := l.r.snapshot(l.alloc, l.life, l.health.Found, old.Rev+1)
	if !l.durable {
		d := l.disk
		if d.Alloc == nil {
			d.Alloc = l.alloc
		}
		s.Alloc, s.Status, s.Description, s.Desired, s.ModifyIndex = d.Alloc, d.Status, d.Description, d.Desired, d.ModifyIndex
		s.Ending, s.FinishedAt, s.Health, s.Done, s.Durable = d.Ending, d.FinishedAt, d.Health, d.Done, false
	}
	if l.over && l.durable {
		s.Done = true
	}
	if l.leftover != nil {
		s.Leftover = l.leftover.Error()
	}
	if !s.news(old.Snapshot) {
		return
	}
	l.r.pub.Store(&published{s, make(chan struct{})})
	close(old.changed)
	l.observe(s)
	if f := l.r.cfg.Trace.Transition; f != nil {
		l.r.contain("Trace", func() { f(old.Snapshot, s) })
	}
}

func (l *loop) observe(s Snapshot) {
	if f := l.r.cfg.Observe; f != nil {
		l.r.contain("Observe", func() { f(s) })
	}
}

// news says whether s tells something that old did not.
func (s Snapshot) news(old Snapshot) bool {
	if s.Alloc != old.Alloc || s.Health != old.Health || s.Status != old.Status || s.Description != old.Description || s.Ending != old.Ending ||
		!s.FinishedAt.Equal(old.FinishedAt) || s.Done != old.Done || s.Leftover != old.Leftover || s.Durable != old.Durable {
		return true
	}
	for name, t := range s.Tasks {
		if o := old.Tasks[name]; t.Rev != o.Rev || t.Seq != o.Seq || t.Durable != o.Durable {
			return true
		}
	}
	return false
}

// contain keeps a panic of the host's functions out of the runner.
func (r *AllocRunner) contain(what string, f func()) {
	if err := guard.Contain(func() error { f(); return nil }); err != nil {
		r.log.Error("a function of the host panicked", "function", what, "error", err)
	}
}

func (r *AllocRunner) traceHook(hook string, p phase, took time.Duration, err error) {
	if f := r.cfg.Trace.Hook; f != nil {
		r.contain("Trace.Hook", func() { f(hook, p.String(), took, err) })
	}
}
