// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// saveError is a failure of the store, not of the hook whose state it held up.
type saveError struct{ err error }

func (e *saveError) Error() string { return "save the hook's state: " + e.err.Error() }
func (e *saveError) Unwrap() error { return e.err }

// hooks are those of one alloc with what they need to run. There is never more
// than one call of run at a time.
type hooks struct {
	all   []*bound
	store state.Store
	path  state.Path
	log   hclog.Logger
	trace func(hook string, p phase, took time.Duration, err error)
	// shown are the values of keys that are on disk, for tasks to read. Replaced,
	// never changed.
	shown atomic.Pointer[map[string][]byte]
	at    atomic.Pointer[atWork] // the callback at work; nil: none
}

// bindHooks makes the hooks of one alloc, in order.
func bindHooks(funcs []HookFunc, a *spec.Alloc) ([]*bound, error) {
	var (
		all  []*bound
		errs []error
	)
	for i, f := range funcs {
		if f == nil {
			continue
		}
		h, err := f(a)
		if err != nil {
			errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: %w", i, err))
		}
		if err != nil || h == nil {
			continue
		}
		b := h.bind()
		if b == nil {
			continue
		}
		s, _ := b.open(nil)
		if b.zero, err = s.encode(); err != nil {
			errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: %w", i, err))
		}
		if err := spec.CheckName(b.name); err != nil {
			errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: name: %w", i, err))
		}
		for _, key := range slices.Sorted(maps.Keys(b.shared)) {
			if err := spec.CheckName(key); err != nil {
				errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: key: %w", i, err))
			}
			for _, o := range all {
				if _, twice := o.shared[key]; twice {
					errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: hooks %q and %q both publish key %q", i, o.name, b.name, key))
				}
			}
		}
		if slices.ContainsFunc(all, func(o *bound) bool { return o.name == b.name }) {
			errs = append(errs, fmt.Errorf("allocrunner: Config.Hooks[%d]: a second hook named %q", i, b.name))
		}
		all = append(all, b)
	}
	slices.SortStableFunc(all, func(a, b *bound) int { return cmp.Compare(a.stage, b.stage) })
	return all, errors.Join(errs...)
}

// load reads the hooks' states.
func (h *hooks) load(tx state.Tx) error {
	var errs []error
	for _, b := range h.all {
		b.saved = tx.Get(h.path, b.key)
		_, err := b.open(b.saved)
		errs = append(errs, err)
		for key := range b.shared {
			b.shared[key] = tx.Get(h.path, sharedKey(key))
		}
	}
	h.show()
	return errors.Join(errs...)
}

// show lets tasks see what the hooks have published.
func (h *hooks) show() {
	all := map[string][]byte{}
	for _, b := range h.all {
		maps.Copy(all, b.shared)
	}
	h.shown.Store(&all)
}

// readers are what tasks read the keys with.
func (h *hooks) readers() map[string]func() []byte {
	all := map[string]func() []byte{}
	for _, b := range h.all {
		for key := range b.shared {
			all[key] = func() []byte { return (*h.shown.Load())[key] }
		}
	}
	return all
}

// any says whether some hook has a callback for one of the phases.
func (h *hooks) any(ps ...phase) bool {
	return slices.ContainsFunc(h.all, func(b *bound) bool {
		return slices.ContainsFunc(ps, func(p phase) bool { return b.has[p] })
	})
}

// run calls the phase of every hook that has it. What gives back is called
// reversed and whatever fails; any other chain ends with ctx, and that of prerun
// with the first error.
func (h *hooks) run(ctx context.Context, p phase, req Request) error {
	order := slices.Clone(h.all)
	if p.givesBack() {
		slices.Reverse(order)
	}
	order = slices.DeleteFunc(order, func(b *bound) bool { return !b.wants(p) })
	var total time.Duration
	for _, b := range order {
		total = max(total, b.boundOf(p))
	}
	end := time.Now().Add(total)
	var errs []error
	for _, b := range order {
		if !p.givesBack() && ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		limit := b.boundOf(p)
		if p.together() {
			limit = min(limit, time.Until(end))
		}
		err := h.call(ctx, b, p, limit, req)
		if err != nil {
			errs = append(errs, err)
			if p == prerun {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// call calls one callback on a copy of the hook's state and saves what became of
// it. Within a bound for all hooks, lateness is included in the limit.
func (h *hooks) call(ctx context.Context, b *bound, p phase, limit time.Duration, req Request) error {
	began, late := time.Now(), guard.Late
	if p.together() {
		late = min(late, max(0, limit/10))
		limit -= late
	}
	if p.bound() > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
		defer cancel()
	}
	req.Log = h.log.With("hook", b.name)
	h.at.Store(&atWork{b.name, p, began})
	defer h.at.Store(nil)
	err := h.guarded(ctx, b, p, late, req)
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		h.log.Error("hook panicked", "hook", b.name, "callback", p.String(), "panic", panicked.Value, "stack", panicked.Stack)
	}
	h.trace(b.name, p, time.Since(began), err)
	if err != nil {
		return &hookError{b.name, p, err}
	}
	return nil
}

// hookError is a callback that failed.
type hookError struct {
	hook string
	p    phase
	err  error
}

func (e *hookError) Error() string { return fmt.Sprintf("hook %q: %s: %v", e.hook, e.p, e.err) }
func (e *hookError) Unwrap() error { return e.err }

// hookErrors are those that err joins.
func hookErrors(err error) (all []*hookError) {
	if he := new(hookError); err != nil {
		joined, ok := err.(interface{ Unwrap() []error })
		switch {
		case ok:
			for _, e := range joined.Unwrap() {
				all = append(all, hookErrors(e)...)
			}
		case errors.As(err, &he):
			all = append(all, he)
		}
	}
	return all
}

// desk is where a callback hands in what is to be kept. All writes are made on the
// other side of it: what was abandoned cannot write any more.
type desk struct {
	wishes chan wish
	over   chan struct{} // closed: nobody serves it
}

type wish struct {
	raw    []byte // the hook's state; nil: only publish
	key    string
	value  []byte
	answer chan error
}

func (d desk) ask(w wish) error {
	w.answer = make(chan error, 1)
	select {
	case d.wishes <- w:
		return <-w.answer
	case <-d.over:
		return taskrunner.ErrClosed
	}
}

// save is Request.Checkpoint.
func (d desk) save(s session) func() error {
	return func() error {
		raw, err := s.encode()
		if err != nil {
			return err
		}
		return d.ask(wish{raw: raw})
	}
}

// publish is what Key.Publish asks for.
func (d desk) publish(b *bound, p phase) func(string, []byte) error {
	declared := b.shared // replaced, never changed
	return func(key string, value []byte) error {
		if _, ok := declared[key]; !ok || p != prerun && p != update {
			return fmt.Errorf("allocrunner: hook %q publishes key %q in %s: it must name it in Publishes and do so in Prerun or Update", b.name, key, p)
		}
		return d.ask(wish{key: key, value: value})
	}
}

// guarded serves the callback's wishes until it is back or abandoned.
func (h *hooks) guarded(ctx context.Context, b *bound, p phase, late time.Duration, req Request) error {
	s, err := b.open(b.saved)
	if err != nil {
		return err
	}
	d := desk{make(chan wish), make(chan struct{})}
	defer close(d.over)
	req.save, req.publish = d.save(s), d.publish(b, p)
	news := map[string][]byte{}
	c := guard.Spawn(func() error { return s.call(ctx, p, &req) })
	ended, patience := ctx.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case w := <-d.wishes:
			if w.raw == nil {
				news[w.key] = w.value
				w.answer <- nil
				continue
			}
			w.answer <- h.keep(b, w.raw, news)
		case <-c.Done():
			raw, err := s.encode()
			if err == nil {
				err = h.keep(b, raw, news)
			}
			return errors.Join(c.Err(), err)
		case <-ended:
			ended = nil
			t := time.NewTimer(late)
			defer t.Stop()
			patience = t.C
		case <-patience:
			b.lost = true
			h.log.Error("hook does not return and is abandoned", "hook", b.name, "callback", p.String(), "stack", c.Stack())
			return guard.ErrAbandoned
		}
	}
}

// keep saves the hook's state, and with it what it has published, if they changed.
// What the store does not take is kept in memory; the loop writes it with its next
// commit. Tasks see nothing before it is on disk.
func (h *hooks) keep(b *bound, raw []byte, news map[string][]byte) error {
	old := b.saved
	if old == nil {
		old = b.zero
	}
	changed := b.dirty || !bytes.Equal(raw, old)
	for key, value := range news {
		if !bytes.Equal(b.shared[key], value) {
			b.shared = maps.Clone(b.shared) // a callback may be looking for its keys
			b.shared[key], changed = value, true
		}
	}
	if !changed {
		return nil
	}
	b.saved, b.dirty = raw, true
	if err := h.store.Update(func(tx state.Tx) error { return h.putOne(tx, b) }); err != nil {
		return &saveError{err}
	}
	b.dirty = false
	h.show()
	return nil
}

func (h *hooks) putOne(tx state.Tx, b *bound) error {
	errs := []error{tx.Put(h.path, b.key, b.saved)}
	for key, value := range b.shared {
		if value != nil {
			errs = append(errs, tx.Put(h.path, sharedKey(key), value))
		}
	}
	return errors.Join(errs...)
}

// unsaved says whether some state could not be written.
func (h *hooks) unsaved() bool {
	return slices.ContainsFunc(h.all, func(b *bound) bool { return b.dirty })
}

// clean notes that put's writes are on disk.
func (h *hooks) clean() {
	if !h.unsaved() {
		return
	}
	for _, b := range h.all {
		b.dirty = false
	}
	h.show()
}

// put writes what could not be written.
func (h *hooks) put(tx state.Tx) error {
	var errs []error
	for _, b := range h.all {
		if b.dirty {
			errs = append(errs, h.putOne(tx, b))
		}
	}
	return errors.Join(errs...)
}

// notSaved says that the store failed, not the hook.
func notSaved(err error) bool {
	var save *saveError
	return errors.As(err, &save)
}
