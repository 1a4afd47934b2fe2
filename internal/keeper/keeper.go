// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package keeper is what the managers of drivers and of devices have in common: a
// lock whose holders tell of changes, the restart of programs, and what programs
// may be used and see.
//
//	Keep:  live ──ends──▶ lost ──▶ pause, longer each time ──▶ live …
//	         ▲                              │
//	         └────────── wake ──────────────┘ at once
package keeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

var (
	// ErrTooLong is what Await returns when its limit has passed.
	ErrTooLong = errors.New("waited in vain")
	// ErrReplaced is why live ended a program that is not the newest any more.
	ErrReplaced = errors.New("its program was replaced, the new one is started")
)

// Mutex is a lock whose holders tell of changes to what it guards. The zero value
// is unlocked.
type Mutex struct {
	sync.Mutex
	change chan struct{} // closed and made anew whenever something changes
}

// Notify wakes all who wait for a change; the lock is held.
func (m *Mutex) Notify() {
	if m.change != nil {
		close(m.change)
		m.change = nil
	}
}

// Changed is closed with the next change; the lock is held.
func (m *Mutex) Changed() <-chan struct{} {
	if m.change == nil {
		m.change = make(chan struct{})
	}
	return m.change
}

// Await calls look, with the lock held, now and after every change, until it says
// true or ctx ends; limit bounds it if above 0. It returns what ended it.
func (m *Mutex) Await(ctx context.Context, limit time.Duration, look func() bool) error {
	var over <-chan time.Time
	for {
		m.Lock()
		if look() {
			m.Unlock()
			return nil
		}
		change := m.Changed()
		m.Unlock()
		if limit > 0 && over == nil {
			t := time.NewTimer(limit)
			defer t.Stop()
			over = t.C
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return ErrTooLong
		}
	}
}

// Watch streams what look returns with the lock of m held: at once, then after
// changes; a slow reader gets the newest. The channel is closed when ctx ends, or
// after the value that look says is the last.
func Watch[T any](ctx context.Context, m *Mutex, look func() (now T, last bool)) <-chan T {
	out := make(chan T)
	go func() { // until ctx ends, which the reader of out sees
		defer close(out)
		for {
			m.Lock()
			now, last := look()
			change := m.Changed()
			m.Unlock()
			select {
			case out <- now:
			case <-change:
				continue
			case <-ctx.Done():
				return
			}
			if last {
				return
			}
			select {
			case <-change:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// Each calls f, in a goroutine of its own, for whatever list returns with the lock
// of m held, and for what comes to its end later, until ctx ends or list says that
// this was the last. It returns when all have returned.
func Each[T any](ctx context.Context, m *Mutex, list func() (all []T, last bool), f func(T)) {
	var running sync.WaitGroup
	defer running.Wait()
	for begun, over := 0, false; !over; {
		var all []T
		if m.Await(ctx, 0, func() bool { all, over = list(); return over || len(all) > begun }) != nil {
			return
		}
		for _, v := range all[begun:] {
			running.Go(func() { f(v) })
		}
		begun = len(all)
	}
}

const (
	// FirstPause is the one before the second start in a row; the first comes at
	// once.
	FirstPause = 500 * time.Millisecond
	// steady is how long a program has to live to be a new one.
	steady = time.Minute
)

// Longer is the pause after one of d.
func Longer(d, most time.Duration) time.Duration { return min(max(2*d, FirstPause), most) }

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) { sleep(ctx, d, nil) }

// sleep says whether wake ended it.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-wake:
		return true
	}
	return false
}

// Keep calls live again and again until ctx ends, at once at first, then after
// pauses that grow to most, as long as it does not stay. lost is told why it ended,
// with what is done about it, before each pause; when it says that live is of no
// use there is no more of it until wake. A value from wake ends any pause.
func Keep(ctx context.Context, most time.Duration, wake <-chan struct{}, live func(context.Context) error, lost func(err error, text string) (useless bool)) {
	var wait time.Duration
	for {
		began := time.Now()
		err := live(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady || errors.Is(err, ErrReplaced) {
			wait = 0
		}
		text := err.Error()
		if wait > 0 {
			text += "; it is started again in " + wait.String()
		}
		switch {
		case lost(err, text):
			select {
			case <-wake:
				wait = 0
			case <-ctx.Done():
				return
			}
		case sleep(ctx, wait, wake):
			wait = 0
		default:
			wait = Longer(wait, most)
		}
	}
}

// Allowed says whether a name matches one of allow, if there is any, and none of
// deny: shell patterns.
func Allowed(name string, allow, deny []string) bool {
	match := func(p string) bool { ok, _ := path.Match(p, name); return ok }
	return !slices.ContainsFunc(deny, match) && (len(allow) == 0 || slices.ContainsFunc(allow, match))
}

// Pattern says whether p is one for Allowed.
func Pattern(p string) bool {
	_, err := path.Match(p, "")
	return err == nil && p != ""
}

// Environment is what programs see of ours, "K=V".
func Environment(names []string) (env []string) {
	for _, name := range names {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// LaunchDir is a directory for one process, below base: short, and nobody else's.
func LaunchDir(base string) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return filepath.Join(base, hex.EncodeToString(random[:]))
}
