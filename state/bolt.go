// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// maxGroup bounds how many calls share a transaction, and so how long the first
// of them waits for the others.
const maxGroup = 512

// bolt is the store in a file. The writer goroutine runs all updates.
type bolt struct {
	cfg       OpenConfig
	steps     []step
	lock      *os.File
	commits   atomic.Int64
	upgrading atomic.Pointer[pending] // nil: no upgrade is pending

	// mu is read-locked as long as a transaction uses db, and locked to replace
	// or close it.
	mu     sync.RWMutex
	db     *bbolt.DB // nil: to be opened again
	file   *os.File  // db's own
	closed atomic.Bool

	// Set by a transaction, with mu, and cleared when db is replaced.
	broken atomic.Pointer[fault] // why db must be opened again
	stuck  atomic.Bool           // bbolt's own locks may be held for ever

	reqs    chan *request
	closing chan struct{}
	stopped chan struct{}

	// The writer's own: what is to be run, and what has failed and is to be
	// answered when the transaction it saw is on disk.
	group, failed []*request
}

// request is one Update. The writer sets the result, then closes done.
type request struct {
	fn     func(Tx) error
	done   chan struct{}
	err    error
	panic  *panicked
	goexit bool
	after  bool // it ran after writes of others in its transaction
}

// panicked is the value with which Update panics after its function did: the
// function ran on another goroutine, whose stack it keeps.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string {
	return fmt.Sprintf("%v\n\nin a transaction:\n%s", p.value, p.stack)
}
func (p *panicked) Unwrap() error { err, _ := p.value.(error); return err }

func (s *bolt) Commits() int64 { return s.commits.Load() }

func (s *bolt) Update(fn func(Tx) error) error {
	r := &request{fn: fn, done: make(chan struct{})}
	select {
	case s.reqs <- r:
		<-r.done
	case <-s.closing:
		return ErrClosed
	}
	switch {
	case r.panic != nil:
		panic(r.panic)
	case r.goexit:
		runtime.Goexit()
	}
	return r.err
}

func (s *bolt) View(fn func(Tx) error) error {
	if err := s.acquire(); err != nil {
		return err
	}
	err := s.view(fn)
	if f := (*fault)(nil); errors.As(err, &f) {
		return s.diagnose(f)
	}
	return err
}

// view runs fn on the database that acquire locked, and unlocks it. A *fault is
// one of the file.
func (s *bolt) view(fn func(Tx) error) (err error) {
	defer s.mu.RUnlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	bt, err := s.begin(false)
	if err != nil {
		return err
	}
	defer func() {
		if f := s.finish(bt); f != nil {
			err = f
		}
		if bt.fault == nil {
			return
		}
		if r := recover(); r != nil && r != any(bt.fault) {
			panic(r)
		}
	}()
	return fn(bt)
}

// begin starts a transaction on the database that acquire locked. After a panic
// in there, or in a rollback, bbolt's own locks stay held.
func (s *bolt) begin(writable bool) (*boltTx, error) {
	bt := &boltTx{sealer: s.cfg.Sealer, older: s.older()}
	err := contained(func() (err error) { bt.tx, err = s.db.Begin(writable); return err })
	if err != nil {
		f := &fault{reason: err}
		s.stuck.Store(true)
		s.broken.Store(f)
		return nil, f
	}
	return bt, nil
}

// finish rolls back, unless the transaction was committed, and returns what was
// wrong with the file.
func (s *bolt) finish(bt *boltTx) *fault {
	tx, f := bt.tx, bt.fault
	bt.tx = nil
	if err := contained(tx.Rollback); errors.As(err, &f) {
		s.stuck.Store(true)
	}
	if f != nil {
		s.broken.Store(f)
	}
	return f
}

// contained turns a panic into a *fault, a failed read of the mapped file too.
func contained(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &fault{reason: r}
		}
	}()
	return f()
}

func (s *bolt) write() {
	clean := false
	defer func() {
		if clean {
			close(s.stopped)
			return
		}
		go s.write() // a function ended this goroutine with runtime.Goexit
	}()
	debug.SetPanicOnFault(true)
	s.flush()
	var busy pace
	due := s.nextTick()
	for {
		select {
		case <-due:
			s.tick()
			due = s.nextTick()
			continue
		case r := <-s.reqs:
			busy.wait()
			s.group = append(s.group, r)
		case <-s.closing:
			clean = true
			return
		}
		// Whoever called while the last fsync ran waits in the channel now. Yielding
		// to those who were just answered would double the groups, but on a busy
		// machine it waits behind all that is runnable.
		for more := true; more && len(s.group) < maxGroup; {
			select {
			case r := <-s.reqs:
				s.group = append(s.group, r)
			default:
				more = false
			}
		}
		busy.begin(len(s.group))
		s.flush()
		busy.end()
	}
}

// maxPace is the longest pause between two commits.
const maxPace = 10 * time.Millisecond

// pace keeps the disk from being asked more often than is any use. While calls
// come in groups, a commit begins no sooner after the last one than three times
// what that one took, and whoever comes meanwhile joins it. A caller that is
// alone never waits.
type pace struct {
	began, ended time.Time
	many         bool
}

func (p *pace) begin(calls int) { p.began, p.many = time.Now(), calls > 1 }
func (p *pace) end()            { p.ended = time.Now() }

func (p *pace) wait() {
	if left := p.left(time.Now()); left > 0 {
		time.Sleep(left)
	}
}

func (p *pace) left(now time.Time) time.Duration {
	if !p.many {
		return 0
	}
	return min(3*p.ended.Sub(p.began), maxPace) - now.Sub(p.ended)
}

// flush runs the group until all of it is answered.
func (s *bolt) flush() {
	for len(s.group) > 0 {
		done, err := false, s.acquire()
		if err == nil {
			done, err = s.attempt()
		}
		if f := (*fault)(nil); errors.As(err, &f) {
			err = s.diagnose(f)
		}
		if done || err != nil {
			s.answer(err)
		}
	}
	s.answer(nil)
}

// attempt runs the group in one transaction on the database that acquire
// locked, and unlocks it. A function that fails is taken out; if it had written,
// it is not done and the rest is to run again. An error concerns them all.
func (s *bolt) attempt() (done bool, err error) {
	defer s.mu.RUnlock()
	bt, err := s.begin(true)
	if err != nil {
		return false, err
	}
	defer func() {
		if f := s.finish(bt); f != nil {
			err = f
		}
	}()
	for i := 0; i < len(s.group); {
		before := bt.writes
		if s.call(i, bt) {
			i++
		} else if bt.fault != nil || bt.writes != before {
			return false, nil
		}
	}
	if bt.writes > 0 {
		if err := contained(bt.tx.Commit); err != nil {
			f := &fault{reason: err}
			s.broken.Store(f)
			if errors.As(err, &f) {
				return false, f
			}
			return false, fmt.Errorf("%w: %s: %w", ErrCommit, s.cfg.Path, err)
		}
		s.commits.Add(1)
	}
	return true, nil
}

// call runs the function of group[i]. If it does not succeed its result is kept
// for answer and it leaves the group; after a fault of the file it stays.
func (s *bolt) call(i int, bt *boltTx) (ok bool) {
	r, returned := s.group[i], false
	r.after = bt.writes > 0
	defer func() {
		p := recover()
		if ok || bt.fault != nil {
			ok = ok && bt.fault == nil
			return
		}
		switch {
		case returned:
		case p != nil:
			r.panic = &panicked{p, debug.Stack()}
		default:
			r.goexit = true
		}
		s.group = slices.Delete(s.group, i, i+1)
		s.failed = append(s.failed, r)
	}()
	r.err = r.fn(bt)
	returned = true
	return r.err == nil
}

// answer gives err to the group. Who failed gets its own result, unless it saw
// writes that came to nothing.
func (s *bolt) answer(err error) {
	for _, r := range s.group {
		r.err = err
		close(r.done)
	}
	for _, r := range s.failed {
		if err != nil && r.after {
			r.err, r.panic, r.goexit = err, nil, false
		}
		close(r.done)
	}
	clear(s.group)
	clear(s.failed)
	s.group, s.failed = s.group[:0], s.failed[:0]
}
