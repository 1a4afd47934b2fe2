// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// callback is one of a hook's funcs.
type callback uint8

const (
	cbPrestart callback = iota
	cbPoststart
	cbUpdate
	cbPrekill
	cbExited
	cbStop
	callbacks // how many there are
)

func (c callback) String() string {
	return [...]string{"prestart", "poststart", "update", "prekill", "exited", "stop"}[c]
}

// bound is how long the callback may take where the hook does not say; 0 is for
// ever.
func (c callback) bound() time.Duration {
	return [...]time.Duration{cbUpdate: 30 * time.Second, cbPrekill: 10 * time.Second,
		cbExited: 10 * time.Second, cbStop: 30 * time.Second}[c]
}

// bound is a hook without its type. Its state is owned by the operation that is
// under way.
type bound struct {
	name    string
	stage   Stage
	timeout time.Duration
	key     string // of its state
	needs   []string
	has     [callbacks]bool
	saved   []byte      // the state as it is, or is to be, in the store
	zero    []byte      // what stands for no state
	late    *guard.Call // an abandoned callback
	open    func(saved []byte) (session, error)
}

// session is one callback's copy of a hook's state.
type session struct {
	call   func(ctx context.Context, cb callback, req *Request) (Contribution, error)
	encode func() ([]byte, error)
}

func (h *bound) boundOf(cb callback) time.Duration {
	if h.timeout > 0 && cb != cbPrestart {
		return h.timeout
	}
	return cb.bound()
}

func (h *Hook[S]) bind() *bound {
	if h == nil {
		return nil
	}
	slot := state.Slot[S]{Key: "hook." + h.Name, Version: max(1, h.Version), Migrate: h.Migrate}
	plain := [callbacks]func(context.Context, *Request, *S) error{
		cbPoststart: h.Poststart, cbUpdate: h.Update, cbPrekill: h.Prekill, cbExited: h.Exited, cbStop: h.Stop}
	b := &bound{name: h.Name, stage: h.Stage, timeout: h.Timeout, key: slot.Key, needs: h.Needs}
	for cb, f := range plain {
		b.has[cb] = f != nil
	}
	b.has[cbPrestart] = h.Prestart != nil
	b.open = func(saved []byte) (session, error) {
		st := new(S)
		if saved != nil {
			v, err := slot.Decode(saved)
			if err != nil {
				return session{}, fmt.Errorf("hook %q: %w", h.Name, err)
			}
			*st = v
		}
		return session{
			call: func(ctx context.Context, cb callback, req *Request) (c Contribution, err error) {
				if cb == cbPrestart {
					return h.Prestart(ctx, req, st)
				}
				return c, plain[cb](ctx, req, st)
			},
			encode: func() ([]byte, error) { return slot.Encode(*st) },
		}, nil
	}
	return b
}

// bindHooks makes the hooks of one task, in order.
func bindHooks(cfg Config) ([]*bound, error) {
	var (
		hooks []*bound
		errs  []error
	)
	for i, f := range cfg.Hooks {
		if f == nil {
			continue
		}
		h, err := f(cfg.Alloc, cfg.Alloc.Task(cfg.Task))
		if err != nil {
			errs = append(errs, fmt.Errorf("taskrunner: Config.Hooks[%d]: %w", i, err))
		}
		if err != nil || h == nil {
			continue
		}
		b := h.bind()
		if b == nil {
			continue
		}
		if err := spec.CheckName(b.name); err != nil {
			errs = append(errs, fmt.Errorf("taskrunner: Config.Hooks[%d]: name: %w", i, err))
		}
		if slices.ContainsFunc(hooks, func(o *bound) bool { return o.name == b.name }) {
			errs = append(errs, fmt.Errorf("taskrunner: Config.Hooks[%d]: a second hook named %q", i, b.name))
		}
		for _, key := range b.needs {
			if cfg.Shared[key] == nil {
				errs = append(errs, fmt.Errorf("taskrunner: Config.Hooks[%d]: hook %q needs key %q, which no hook of the alloc publishes", i, b.name, key))
			}
		}
		hooks = append(hooks, b)
	}
	slices.SortStableFunc(hooks, func(a, b *bound) int { return cmp.Compare(a.stage, b.stage) })
	return hooks, errors.Join(errs...)
}

// any says whether a hook has the callback.
func (r *TaskRunner) any(cb callback) bool {
	return slices.ContainsFunc(r.hooks, func(h *bound) bool { return h.has[cb] })
}

// taskSlot is where a snapshot is kept.
func taskSlot() state.Slot[Snapshot] { return state.Slot[Snapshot]{Key: "task", Version: 1} }

// load reads the snapshot and the hooks' states.
func (r *TaskRunner) load() (Snapshot, error) {
	snap := Snapshot{Phase: Pending}
	err := r.cfg.Store.View(func(tx state.Tx) error {
		s, ok, err := taskSlot().Load(tx, r.path)
		if ok {
			snap = s
		}
		errs := []error{err}
		for _, h := range r.hooks {
			h.saved = tx.Get(r.path, h.key)
			s, err := h.open(h.saved)
			if err == nil && h.saved == nil {
				h.zero, err = s.encode()
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err == nil {
		err = snap.sound()
	}
	if snap.Phase == Ready {
		snap.Phase = Pending // what the hooks gave is not in memory any more
	}
	snap.Durable = true
	return snap, err
}

// sound refuses a snapshot that no runner writes.
func (s Snapshot) sound() error {
	var what string
	switch s.Phase {
	case Pending, Ready, Starting, Done, Dead:
	case Running, Stopping, Exited:
		if s.Handle == nil {
			what = "no handle"
		}
		if s.Phase == Exited && s.Exit == nil {
			what = "no exit"
		}
	default:
		what = "unknown"
	}
	if what != "" {
		return fmt.Errorf("%w: phase %q: %s", state.ErrCorrupt, s.Phase, what)
	}
	return nil
}

// same says that the state has not changed.
func (h *bound) same(raw []byte) bool {
	if h.saved == nil {
		return bytes.Equal(h.zero, raw)
	}
	return bytes.Equal(h.saved, raw)
}
