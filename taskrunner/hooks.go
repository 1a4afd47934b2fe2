// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/guard"
)

// hookError is a callback that failed.
type hookError struct {
	hook string
	cb   callback
	err  error
}

func (e *hookError) Error() string { return fmt.Sprintf("hook %q: %s: %v", e.hook, e.cb, e.err) }
func (e *hookError) Unwrap() error { return e.err }

func (e *hookError) attrs() map[string]string {
	m := attrs(nil, "hook", e.hook, "callback", e.cb.String(), "error", e.err.Error())
	if errors.Is(e.err, guard.ErrAbandoned) {
		m["abandoned"] = "true"
	}
	return m
}

func (o *operation) note(k Kind, attrs map[string]string) {
	o.events = append(o.events, Event{Time: time.Now(), Kind: k, Attrs: attrs})
}

// prestart runs the chain before a start. It first ends what an earlier attempt
// may have left in the background.
func (o *operation) prestart(ctx context.Context) result {
	drv, err := o.driver(ctx)
	if err != nil {
		return o.failed(ctx, DriverFailure, nil, err)
	}
	o.out.info = drv.Info()
	o.out.by = make([]Contribution, len(o.hooks))
	for i, h := range o.hooks {
		if !h.has[cbPrestart] {
			continue
		}
		if o.out.by[i], err = o.call(ctx, i, cbPrestart, 0); err != nil {
			var he *hookError
			if errors.As(err, &he) {
				return o.failed(ctx, HookFailed, he.attrs(), err)
			}
			return o.failed(ctx, DriverFailure, nil, err)
		}
		if ctx.Err() != nil {
			return o.failed(ctx, "", nil, context.Cause(ctx))
		}
	}
	return result{}
}

// failed ends an attempt that has not run.
func (o *operation) failed(ctx context.Context, kind Kind, note map[string]string, err error) result {
	o.endBackground()
	if ctx.Err() != nil {
		return result{canceled: true}
	}
	if o.leftover {
		// An earlier agent may have got as far as a process.
		if leaked := o.destroy(ctx); leaked != nil || ctx.Err() != nil {
			return result{err: err, kind: kind, note: note, leaked: leaked, canceled: ctx.Err() != nil}
		}
	}
	return result{err: err, kind: kind, note: note}
}

// rebuild runs prestart hooks of a task that runs already. One that fails stops
// neither the task nor the other hooks; if it may be tried again it is.
func (o *operation) rebuild(ctx context.Context) result {
	todo, first := o.out.redo, o.out.redo == nil
	if first {
		for i, h := range o.hooks {
			if h.has[cbPrestart] {
				todo = append(todo, i)
			}
		}
	}
	redo := []int{}
	for _, i := range todo {
		c, err := o.call(ctx, i, cbPrestart, 0)
		if ctx.Err() != nil {
			return result{canceled: true}
		}
		if err == nil {
			o.out.by = slices.Clone(o.out.by) // somebody may be reading the old one
			o.out.by[i] = c
			continue
		}
		if driver.IsRecoverable(err) {
			redo = append(redo, i)
		}
		if first || !driver.IsRecoverable(err) {
			o.report(err, map[string]string{"restored": "true"})
		}
	}
	o.out.redo = redo
	return result{again: len(redo) > 0}
}

// hooksUntil runs a callback of all hooks in order, as long as ctx allows.
func (o *operation) hooksUntil(ctx context.Context, cb callback) result {
	for i, h := range o.hooks {
		if !h.has[cb] {
			continue
		}
		_, err := o.call(ctx, i, cb, h.boundOf(cb))
		if ctx.Err() != nil {
			return result{canceled: true}
		}
		o.report(err, nil)
	}
	return result{}
}

// poststart runs with an eye on the task: hooks that take long must not hide its exit.
func (o *operation) poststart(ctx context.Context) result {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	drv, err := o.driver(ctx)
	if err != nil {
		return result{err: err}
	}
	var exit driver.ExitResult
	watch := guard.Spawn(func() (err error) {
		if exit, err = drv.Wait(ctx, o.snap.Handle.TaskID); err == nil {
			cancel(errTaskExited)
		}
		return err
	})
	res := o.hooksUntil(ctx, cbPoststart)
	if !watch.Returned() {
		cancel(nil)
		guard.Wait([]guard.Member{{Name: "wait", Call: watch}}, guard.Late, func(guard.Member, error) {})
	}
	if watch.Returned() && watch.Err() == nil {
		return result{exit: &exit}
	}
	return res
}

var errTaskExited = errors.New("taskrunner: the task exited")

// prekill gives all hooks together no longer than the longest of their bounds,
// lateness included: the stop signal waits for no hook. A tenth of it is kept for
// each hook that is still to come, so that one that hangs does not keep the
// others from telling the world.
func (o *operation) prekill(ctx context.Context) result {
	var total time.Duration
	left := 0
	for _, h := range o.hooks {
		if h.has[cbPrekill] {
			total = max(total, h.boundOf(cbPrekill))
			left++
		}
	}
	end := time.Now().Add(total)
	for i, h := range o.hooks {
		if h.has[cbPrekill] {
			left--
			keep := min(total/10*time.Duration(left), total/2)
			_, err := o.call(ctx, i, cbPrekill, min(h.boundOf(cbPrekill), time.Until(end)-keep))
			o.report(err, nil)
		}
	}
	return result{}
}

// exited runs after every exit; then nothing may be left of the attempt.
func (o *operation) exited(ctx context.Context) result {
	o.endBackground()
	for i, h := range o.hooks {
		if h.has[cbExited] {
			_, err := o.call(ctx, i, cbExited, h.boundOf(cbExited))
			o.logOnly(err)
		}
	}
	return o.abort(ctx)
}

// abort leaves nothing of the attempt.
func (o *operation) abort(ctx context.Context) result {
	o.endBackground()
	leaked := o.destroy(ctx)
	return result{leaked: leaked, canceled: leaked == nil && ctx.Err() != nil}
}

// cleanup runs the stop hooks, whatever they return, in reverse.
func (o *operation) cleanup(ctx context.Context) result {
	o.endBackground()
	var errs []error
	for i, h := range slices.Backward(o.hooks) {
		if h.has[cbStop] {
			_, err := o.call(ctx, i, cbStop, h.boundOf(cbStop))
			errs = append(errs, err)
		}
	}
	o.logOnly(errors.Join(errs...))
	return result{canceled: ctx.Err() != nil}
}

// report tells an error of a hook that does not end the attempt.
func (o *operation) report(err error, more map[string]string) {
	var he *hookError
	if !errors.As(err, &he) {
		return
	}
	o.logOnly(err)
	m := he.attrs()
	for k, v := range more {
		m[k] = v
	}
	o.note(HookFailed, m)
}

// logOnly logs what is no event; an abandoned callback always is one.
func (o *operation) logOnly(err error) {
	if err != nil {
		o.log.Warn("hook failed", "error", err)
	}
}

// endBackground ends the attempt's background work and waits for it, bounded.
func (o *operation) endBackground() {
	var members []guard.Member
	o.ask(func(*loop) { members = o.bg.Close() })
	guard.Wait(members, guard.Late, o.reportBackground)
}

func (o *operation) reportBackground(m guard.Member, err error) {
	o.log.Error("background work of a hook ended badly", "work", m.Name, "error", err, "stack", m.Stack())
	o.note(HookFailed, attrs(nil, "hook", m.Name, "callback", "background", "error", err.Error()))
}
