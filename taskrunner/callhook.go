// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/guard"
)

// call calls one callback of the i-th hook on a copy of its state and saves what
// became of it. Where the callback is bounded, limit is all the time there is,
// lateness excepted; for prekill it is included. The error is a *hookError.
func (o *operation) call(ctx context.Context, i int, cb callback, limit time.Duration) (Contribution, error) {
	h := o.hooks[i]
	fail := func(err error) (Contribution, error) {
		return Contribution{}, &hookError{h.name, cb, err}
	}
	if h.late != nil && cb != cbStop {
		switch {
		case cb != cbPrestart:
			return Contribution{}, nil
		case !h.late.Returned():
			return fail(driver.Recoverable(errors.New("an earlier callback was abandoned and has not returned yet")))
		}
		h.late = nil
	}
	s, err := h.open(h.saved)
	if err != nil {
		return fail(err)
	}
	patience := guard.Late
	if cb == cbPrekill {
		if limit <= 0 {
			return fail(errors.New("no time was left for it"))
		}
		patience = min(patience, limit/10)
		limit -= patience
	}
	if cb.bound() > 0 || limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	req := o.request(i, s)
	began := time.Now()
	o.spot.Store(&spot{h.name, cb, began})
	defer o.spot.Store(nil)
	var c Contribution
	late, err := guard.Run(ctx, patience, func(ctx context.Context) (err error) {
		got, err := s.call(ctx, cb, req)
		if !req.ctl.over.Load() {
			c = got
		}
		return err
	})
	if late != nil {
		req.ctl.over.Store(true)
		o.abandon(h, cb, late)
	} else {
		err = errors.Join(err, o.keep(ctx, cb, h, s))
	}
	o.tell(h, cb, time.Since(began), err)
	if err != nil {
		return fail(err)
	}
	return c, nil
}

// abandon gives up on a callback that does not return. For callbacks whose errors
// are only logged the event is added here.
func (o *operation) abandon(h *bound, cb callback, late *guard.Call) {
	h.late = late
	o.log.Error("hook does not return and is abandoned", "hook", h.name, "callback", cb.String(), "stack", late.Stack())
	if cb == cbExited || cb == cbStop {
		o.note(HookFailed, (&hookError{h.name, cb, guard.ErrAbandoned}).attrs())
	}
}

// tell logs a panic and traces the callback.
func (o *operation) tell(h *bound, cb callback, took time.Duration, err error) {
	if p := new(guard.PanicError); errors.As(err, &p) {
		o.log.Error("hook panicked", "hook", h.name, "callback", cb.String(), "panic", p.Value, "stack", p.Stack)
	}
	if f := o.cfg.Trace.Hook; f != nil {
		o.ask(func(l *loop) { l.outside(func() { f(h.name, cb.String(), took, err) }) })
	}
}

// keep saves a hook's state if it changed. A store that fails is not the hook's
// error: the loop has the state and writes it with its next commit. A chain that
// starts new things waits for that.
func (o *operation) keep(ctx context.Context, cb callback, h *bound, s session) error {
	raw, err := s.encode()
	if err != nil || h.same(raw) {
		return err
	}
	h.saved = raw
	var durable <-chan struct{}
	o.ask(func(l *loop) {
		if l.saveHook(h.key, raw) != nil {
			durable = l.durableSoon()
		}
	})
	if durable != nil && cb <= cbUpdate {
		select {
		case <-durable:
		case <-ctx.Done():
		}
	}
	return nil
}

func (o *operation) request(i int, s session) *Request {
	h := o.hooks[i]
	ctl := &control{r: o.TaskRunner, log: o.log, hook: h.name, bg: o.bg}
	ctl.save = func() error {
		raw, err := s.encode()
		if err != nil {
			return err
		}
		err = ErrClosed
		o.ask(func(l *loop) {
			if !ctl.over.Load() {
				err = l.saveHook(h.key, raw)
			}
		})
		return err
	}
	req := &Request{
		Alloc: o.alloc, Task: o.task, TaskID: o.taskID(), Attempt: o.snap.Attempt,
		Restored: o.recovered || o.op == opPrestart && o.leftover,
		Driver:   o.out.info, Scope: o.cfg.Scope, Cgroup: o.cgroup(), Dir: o.dir(),
		Handle: o.snap.Handle, Exit: o.snap.Exit, Killed: o.snap.Kill,
		env: o.builder(i), ctl: ctl,
	}
	for _, key := range h.needs {
		if req.needs == nil {
			req.needs = map[string]func() []byte{}
		}
		req.needs[key] = o.cfg.Shared[key]
	}
	if o.op == opUpdate {
		req.Previous = o.seen
	}
	if o.op == opPoststart || o.op == opUpdate {
		req.env = o.builder(len(o.hooks))
	}
	return req
}
