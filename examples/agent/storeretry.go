// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/api"
)

// A node that finds its tasks again must not fail for want of a few bytes. What
// the store has to write at a start, and cannot, it keeps in memory, says so and
// tries again; so it does with a desired state that the agent could not write.
// A change that a user asks for is refused instead: nothing of it happens.
const (
	lateFirst = time.Second // before the first new try, doubled up to
	lateLimit = 30 * time.Second
)

// late is what is not where it shall be.
type late struct {
	files map[string]any // by name: to be written
	feed  bool           // the agent has not taken all
	why   error
	wake  chan struct{}         // 1-buffered: there is something
	fault atomic.Pointer[error] // why, while there is something, for whoever does not hold the store's lock
}

// note remembers why something is late, and wakes Retry; nil says that something
// is late no more.
func (l *late) note(err error) {
	if err != nil {
		l.why = err
	}
	if len(l.files) == 0 && !l.feed {
		l.fault.Store(nil)
		return
	}
	why := l.why
	l.fault.Store(&why)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// writeOrLater writes a file, or goes on without.
func (s *jobStore) writeOrLater(name string, v any) {
	err := s.write(name, v)
	if err == nil {
		delete(s.late.files, name)
		s.late.note(nil)
		return
	}
	s.late.files[name] = v
	s.late.note(err)
	s.log.Warn("the node serves all the same, and tries to write this again; jobs cannot be applied until it is written", "file", name, "error", err)
}

// writeLate writes what is late, before anything else is.
func (s *jobStore) writeLate() error {
	for _, name := range slices.Sorted(maps.Keys(s.late.files)) {
		if err := s.write(name, s.late.files[name]); err != nil {
			s.late.note(err)
			return err
		}
		delete(s.late.files, name)
	}
	s.late.note(nil)
	return nil
}

// feed hands all that is wanted to the agent, and notes if it must be told again.
func (s *jobStore) feed(ctx context.Context) error {
	err := s.agent.Apply(ctx, s.desired())
	s.late.feed = false
	var late error
	for _, err := range parts(err) {
		var refused *nodekeep.RefusedError
		var replace *allocrunner.ReplaceError
		final := errors.As(err, &refused) || errors.As(err, &replace) || errors.Is(err, nodekeep.ErrStale) || errors.Is(err, nodekeep.ErrClosed)
		if !final && ctx.Err() == nil {
			s.late.feed, late = true, err
		}
	}
	s.late.note(late)
	return err
}

// Fault is why something is not on disk or the agent has not taken it; nil while
// all is well.
func (s *jobStore) Fault() error {
	if why := s.late.fault.Load(); why != nil {
		return *why
	}
	return nil
}

// Retry tries again what is late, until ctx ends. It sleeps while nothing is.
func (s *jobStore) Retry(ctx context.Context) {
	delay := lateFirst
	for {
		var again <-chan time.Time
		if s.Fault() != nil {
			again = time.After(delay)
		}
		select {
		case <-again:
			delay = min(2*delay, lateLimit)
			s.retry(ctx)
		case <-s.late.wake:
		case <-ctx.Done():
			return
		}
		if s.Fault() == nil {
			delay = lateFirst
		}
	}
}

func (s *jobStore) retry(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fault() == nil || s.writeLate() != nil {
		return
	}
	if s.late.feed {
		_ = s.feed(ctx) // its refusals were told the first time
	}
	if s.Fault() == nil {
		s.log.Info("all is written again")
	}
}

// unwritten is the one kind of error of a disk that does not take what the store
// has to write.
func unwritten(err error) error {
	if err == nil {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the job store cannot be written: %v", err), Hint: diskAdvice(err) + " and try again"}
}

// diskAdvice says what helps against an error of the file system.
func diskAdvice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the disk"
	case errors.Is(err, syscall.EROFS):
		return "the file system is read-only: make it writable, or name another directory with --data,"
	case errors.Is(err, fs.ErrPermission):
		return "give this user the right to write there, or name another directory with --data,"
	}
	return "see that the disk works"
}
