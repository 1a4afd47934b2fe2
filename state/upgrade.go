// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// Upgrading without a point of no return: a program of layout N that opens a store
// of N−1 goes on writing what N−1 can read, so that N−1 can be put back at any
// time, with all that happened meanwhile.
//
//	open by N          CommitUpgrade, or 24 h of agent life
//	──────▶ N−1, upgrade pending ──────▶ backup, migrate, N      (N−1 refuses it from here on)
//	           │ open by N−1: the mark is dropped, and it begins anew with the next N
//	           ▼
//	          N−1
//
// An older store is first brought to N−1 at once. A new one begins with N.

// step is how layout n+1 differs from n. Raising the Version of a Slot is a step,
// too; a field that is added is none.
type step struct {
	// older makes what n reads of a value of n+1, or returns it as it is. It is
	// called by Put while the upgrade is pending, and must give the same bytes for
	// the same value. Nil: n reads all that n+1 writes. What is read is not turned
	// back: Slot.Migrate reads both.
	older func(p Path, key string, val []byte) ([]byte, error)
	// migrate brings the tree from n to n+1 when the upgrade is committed. Nil:
	// there is nothing to do. Until then n+1 must find its way about n's tree.
	migrate func(Tx) error
}

// steps are all there have been, in order: the first leads from layout 1, which is
// what this package made first, to 2. A new one is appended here, with a golden
// file of the layout before in testdata.
var steps = []step{}

// newest returns the layout that steps lead to.
func newest(steps []step) int { return 1 + len(steps) }

const (
	upgradeKey  = "upgrade" // in metaNode: the mark of a pending upgrade
	upgradeLife = 24 * time.Hour
	upgradeTick = time.Hour // how often the life so far is written
)

// Upgrade is one that is pending.
type Upgrade struct {
	From, To int
	Since    time.Time     // by the wall clock, for people
	Left     time.Duration // of agent life, until it is committed by itself
}

// Upgrader is implemented by the stores of Open.
type Upgrader interface {
	// Upgrade returns the pending upgrade; false if there is none.
	Upgrade() (Upgrade, bool)
	// CommitUpgrade ends a pending upgrade now: from here on the program of before
	// cannot read the store. A backup is kept. Without one it does nothing. It
	// holds up all transactions while it copies the file.
	CommitUpgrade() error
}

// mark is what is persisted of a pending upgrade. Life is counted by the clock
// that never jumps, while the store is open: neither a wall clock that jumps nor a
// machine that is off for a week shortens the time there is to go back.
type mark struct {
	To    int           `json:"to"`
	Since time.Time     `json:"since"`
	Life  time.Duration `json:"life"`
}

// pending is a mark in this process. It is never changed once others can see it.
type pending struct {
	mark
	opened time.Time
	step   step
}

func (p *pending) life() time.Duration { return p.Life + time.Since(p.opened) }
func (p *pending) left() time.Duration { return max(0, upgradeLife-p.life()) }

// await takes up a pending upgrade or begins one, and drops the mark of one that
// was taken back. The store is open, and nobody else has it yet.
func (s *bolt) await(layout int) error {
	want := newest(s.steps)
	m, err := loadMark(s.db)
	switch {
	case err != nil:
		return err
	case layout == want && m.To != 0:
		return s.saveMark(mark{})
	case layout == want:
		return nil
	case m.To != want:
		m = mark{To: want, Since: time.Now()}
		if err := s.saveMark(m); err != nil {
			return err
		}
		s.cfg.Warn("the state file will be upgraded; until then the version before can still be put back",
			"path", s.cfg.Path, "layout", layout, "to", want, "after", upgradeLife)
	}
	s.upgrading.Store(&pending{m, time.Now(), s.steps[want-2]})
	return nil
}

func loadMark(db *bbolt.DB) (m mark, err error) {
	err = contained(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(metaNode))
			if b == nil || b.Get([]byte(upgradeKey)) == nil {
				return nil
			}
			_, data, err := unseal(b.Get([]byte(upgradeKey)))
			if err != nil || json.Unmarshal(data, &m) != nil {
				m = mark{} // it begins anew
			}
			return nil
		})
	})
	return m, err
}

// saveMark writes the mark; the zero one removes it. mu is held, or nobody else is
// there.
func (s *bolt) saveMark(m mark) error {
	return contained(func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(metaNode))
			if err != nil {
				return err
			}
			if m.To == 0 {
				return b.Delete([]byte(upgradeKey))
			}
			raw, err := json.Marshal(m)
			if err != nil {
				return err
			}
			return b.Put([]byte(upgradeKey), seal(1, raw))
		})
	})
}

// older is what turns values of now into what the layout of before reads; nil
// where that is not needed.
func (s *bolt) older() func(Path, string, []byte) ([]byte, error) {
	if p := s.upgrading.Load(); p != nil {
		return p.step.older
	}
	return nil
}

func (s *bolt) Upgrade() (Upgrade, bool) {
	p := s.upgrading.Load()
	if p == nil {
		return Upgrade{}, false
	}
	return Upgrade{From: p.To - 1, To: p.To, Since: p.Since, Left: p.left()}, true
}

func (s *bolt) CommitUpgrade() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.upgrading.Load()
	switch {
	case s.closed.Load():
		return ErrClosed
	case p == nil:
		return nil
	}
	if s.db != nil {
		if err := s.release(); err != nil {
			s.cfg.Warn("closing the state file failed", "path", s.cfg.Path, "error", err)
		}
	}
	err := s.settle() // what failed before is on disk now, or told
	if err == nil {
		err = s.upgrade(p.To-1, p.To)
	}
	if err == nil {
		s.upgrading.Store(nil)
	}
	err = errors.Join(err, s.open()) // one that fails is tried again by whoever comes next
	if err != nil {
		return fmt.Errorf("%w: upgrade of %s: %w", ErrCommit, s.cfg.Path, err)
	}
	return nil
}

// tick writes how long the upgrade has been pending, or commits it. It is the
// writer's, and never while it runs a transaction.
func (s *bolt) tick() {
	p := s.upgrading.Load()
	if p == nil {
		return
	}
	if p.left() <= 0 {
		if err := s.CommitUpgrade(); err != nil && !errors.Is(err, ErrClosed) {
			s.cfg.Warn("the state file could not be upgraded; it is tried again", "path", s.cfg.Path, "in", upgradeTick, "error", err)
		}
		return
	}
	if s.acquire() != nil {
		return
	}
	defer s.mu.RUnlock()
	s.live(p)
}

// live writes the life of a pending upgrade. A failure costs an hour of it.
func (s *bolt) live(p *pending) {
	m := p.mark
	m.Life = p.life()
	if err := s.saveMark(m); err != nil {
		s.cfg.Warn("how long the upgrade has been pending cannot be written", "path", s.cfg.Path, "error", err)
	}
}

// nextTick is when the writer looks at the upgrade again; never if none is pending.
func (s *bolt) nextTick() <-chan time.Time {
	p := s.upgrading.Load()
	if p == nil {
		return nil
	}
	wait := upgradeTick
	if left := p.left(); left > 0 {
		wait = min(wait, left)
	}
	return time.After(wait)
}
