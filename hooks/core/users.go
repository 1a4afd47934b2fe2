// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// UserRange are the uids, both ends included, of which a node gives each task one of
// its own. The gid is the same number. The zero value is none. Nobody else on the
// host may use them, another agent included; uids that a user of the host has are
// passed over.
type UserRange struct{ Min, Max int }

// Validate says what is wrong with the range.
func (r UserRange) Validate() error {
	const most = 1<<32 - 2 // the last one means "leave it as it is"
	if r != (UserRange{}) && (r.Min < 1 || r.Max < r.Min || int64(r.Max) > most) {
		return fmt.Errorf("core: uids %d to %d: must be a range from 1 to %d", r.Min, r.Max, int64(most))
	}
	return nil
}

// Users gives uids to tasks that name no user and whose driver takes such
// (Capabilities.DynamicUsers). What is given is in the store before it is used:
//
//	v1/users   one value per uid, its name the number: the alloc and the task
//
// A task keeps its uid over restarts of its own, of the agent and of the range in
// its configuration, until its alloc is destroyed: as long as there are files of it,
// nobody else has it. Methods may be called from any goroutine.
type Users struct {
	store   state.Store
	span    UserRange
	host    account.Book
	allowed bool // to become another user

	mu   sync.Mutex
	by   map[int]holder
	last int // the uid given last: each comes again as late as can be
}

// holder is who has a uid; the zero value is somebody whose record cannot be read.
type holder struct {
	Alloc string `json:"alloc"`
	Task  string `json:"task"`
}

func usersPath() state.Path { return state.Path{"v1", "users"} }

func holderSlot(uid int) state.Slot[holder] {
	return state.Slot[holder]{Key: strconv.Itoa(uid), Version: 1}
}

// NewUsers loads what the store says is given. Without root nobody can be given a
// user: none is.
func NewUsers(store state.Store, span UserRange) (*Users, error) {
	if err := span.Validate(); err != nil {
		return nil, err
	}
	u := &Users{store: store, span: span, allowed: os.Geteuid() == 0, by: map[int]holder{}}
	if u.last = span.Max; span.Max > span.Min {
		u.last = span.Min + rand.IntN(span.Max-span.Min) //nolint:gosec // no secret
	}
	err := store.View(func(tx state.Tx) error {
		for _, key := range tx.Keys(usersPath()) {
			uid, err := strconv.Atoi(key)
			if err != nil {
				continue
			}
			h, _, err := holderSlot(uid).Load(tx, usersPath())
			if errors.Is(err, state.ErrTooNew) {
				return err
			}
			u.by[uid] = h // unreadable: whoever it is goes on having it
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("core: load the tasks' users: %w", err)
	}
	return u, nil
}

// Held returns the uid that the task has.
func (u *Users) Held(alloc, task string) (uid int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.heldLocked(holder{alloc, task})
}

func (u *Users) heldLocked(h holder) (int, bool) {
	for uid, o := range u.by {
		if o == h {
			return uid, true
		}
	}
	return 0, false
}

// Take gives the task a uid, the one that it has if it has one. It returns once that
// is on disk. Where none is free, or the disk fails, the error is recoverable.
func (u *Users) Take(alloc, task string) (int, error) {
	h := holder{alloc, task}
	uid, fresh, err := u.choose(h)
	if err != nil || !fresh {
		return uid, err
	}
	err = u.store.Update(func(tx state.Tx) error { return holderSlot(uid).Save(tx, usersPath(), h) })
	if err != nil {
		u.mu.Lock()
		delete(u.by, uid)
		u.mu.Unlock()
		return 0, driver.Recoverable(fmt.Errorf("core: write the user of task %q: %w", task, err))
	}
	return uid, nil
}

// choose keeps a free uid in memory.
func (u *Users) choose(h holder) (uid int, fresh bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if uid, ok := u.heldLocked(h); ok {
		return uid, false, nil
	}
	for range u.span.Max - u.span.Min + 1 {
		if u.last++; u.last > u.span.Max {
			u.last = u.span.Min
		}
		if _, taken := u.by[u.last]; taken {
			continue
		}
		known, err := u.host.Known(u.last)
		if err != nil {
			return 0, false, driver.Recoverable(fmt.Errorf("core: uid %d: %w", u.last, err))
		}
		if !known {
			u.by[u.last] = h
			return u.last, true, nil
		}
	}
	return 0, false, driver.Recoverable(fmt.Errorf("core: all uids from %d to %d are in use: collect allocs that are over, or widen the range", u.span.Min, u.span.Max))
}

// Release takes back what the alloc's tasks have. Idempotent.
func (u *Users) Release(alloc string) error {
	return u.drop(func(h holder) bool { return h.Alloc == alloc })
}

// Retain takes back what tasks have of allocs that wanted does not name: for a start
// of the agent.
func (u *Users) Retain(wanted func(alloc string) bool) error {
	return u.drop(func(h holder) bool { return h.Alloc != "" && !wanted(h.Alloc) })
}

func (u *Users) drop(which func(holder) bool) error {
	u.mu.Lock()
	var uids []int
	for uid, h := range u.by {
		if which(h) {
			uids = append(uids, uid)
		}
	}
	u.mu.Unlock()
	if len(uids) == 0 {
		return nil
	}
	err := u.store.Update(func(tx state.Tx) error {
		for _, uid := range uids {
			if err := tx.Delete(usersPath(), strconv.Itoa(uid)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("core: take users back: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, uid := range uids {
		delete(u.by, uid)
	}
	return nil
}

// of is the uid of the task that is being prepared; false: it has none of these. One
// that runs keeps what it runs as.
func (u *Users) of(r *taskrunner.Request) (int, bool, error) {
	if u == nil || r.Task.User != "" {
		return 0, false, nil
	}
	if uid, ok := u.Held(r.Alloc.ID, r.Task.Name); ok {
		return uid, true, nil
	}
	if r.Restored || !u.allowed || u.span == (UserRange{}) || !r.Driver.Capabilities.DynamicUsers {
		return 0, false, nil
	}
	uid, err := u.Take(r.Alloc.ID, r.Task.Name)
	return uid, err == nil, err
}

// users has a task run as the user that is its own. Its directories and FIFOs, which
// come before, belong to that one already.
func users(u *Users) taskrunner.HookFunc {
	return func(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
		if t.User != "" {
			return nil, nil
		}
		return &taskrunner.Hook[none]{
			Name: "users", Stage: taskrunner.StageUsers,
			Prestart: func(_ context.Context, r *taskrunner.Request, _ *none) (c taskrunner.Contribution, err error) {
				uid, ok, err := u.of(r)
				if ok {
					c.User = strconv.Itoa(uid)
				}
				return c, err
			},
		}, nil
	}
}

// freeUsers gives the uids back with the directories.
func freeUsers(u *Users) allocrunner.HookFunc {
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		return &allocrunner.Hook[none]{
			Name: "users", Stage: allocrunner.StageDirs,
			Destroy: func(_ context.Context, r *allocrunner.Request, _ *none) error { return u.Release(r.Alloc.ID) },
		}, nil
	}
}
