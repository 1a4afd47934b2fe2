// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// prepare makes the operation a function of its context alone: it runs beside the
// loop and sees only what is captured here.
func (l *loop) prepare(d decision) func(context.Context) result {
	h, req := l.r.hooks, l.r.request(l.alloc)
	targets := l.targets(d.targets)
	switch d.op {
	case opPrerun:
		req.Restored = l.r.first.restored
		return func(ctx context.Context) result {
			err := h.run(ctx, prerun, req)
			if ctx.Err() != nil { // else it is why the alloc ends, or is tried again
				_ = l.r.told(ctx, err)
			}
			return result{err: err}
		}
	case opUpdate:
		req.Previous = l.seen
		l.changed, l.seen = false, l.alloc
		all, a := l.r.tasks, l.alloc
		return func(ctx context.Context) result {
			err := l.r.told(ctx, h.run(ctx, update, req))
			if ctx.Err() != nil {
				return result{err: err}
			}
			return result{err: errors.Join(err, join(all, each(all, func(t *task) error { return t.Update(ctx, a) })))}
		}
	case opTell:
		return l.tell()
	case opPrekill:
		if l.life.Kill != nil {
			req.Cause = l.life.Kill.Cause
		}
		return func(ctx context.Context) result { return result{err: l.r.told(ctx, h.run(ctx, prekill, req))} }
	case opPostrun:
		work := l.background.Close()
		return func(ctx context.Context) result {
			l.endBackground(work)
			err := h.run(ctx, postrun, req)
			l.r.dropSecrets(ctx, req.Alloc)
			return result{err: err}
		}
	case opKill:
		kill := l.life.Kill.request()
		return func(ctx context.Context) result {
			return result{err: join(targets, each(targets, func(t *task) error { return t.Kill(ctx, kill) }))}
		}
	default: // opRestart
		return l.restartWork(targets, req)
	}
}

// told makes an event of each callback that failed, of every task that is not dead,
// and returns err. One that gave way to the end of ctx has not failed, unless it had
// to be abandoned.
func (r *AllocRunner) told(ctx context.Context, err error) error {
	for _, he := range hookErrors(err) {
		attrs := map[string]string{"hook": he.hook, "callback": he.p.String(), "error": he.err.Error()}
		switch {
		case errors.Is(he.err, guard.ErrAbandoned):
			attrs["abandoned"] = "true"
		case ctx.Err() != nil:
			continue
		}
		living := slices.DeleteFunc(slices.Clone(r.tasks), func(t *task) bool { return t.Snapshot().State() == taskrunner.Dead })
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), guard.Late)
		lost := join(living, each(living, func(t *task) error { return t.Emit(bounded, taskrunner.HookFailed, attrs) }))
		cancel()
		if lost != nil {
			r.log.Warn("an event is lost", "event", attrs, "error", lost)
		}
	}
	return err
}

// givesBack says that something is to be done when all tasks are dead.
func (r *AllocRunner) givesBack() bool { return r.cfg.Dir != nil || r.hooks.any(prekill, postrun) }

// dropSecrets ends what the tasks were trusted with: it does not outlive them. It is
// no hook, so that it costs no write of its own; a Run that finds the alloc over
// does it again.
func (r *AllocRunner) dropSecrets(ctx context.Context, a *spec.Alloc) {
	if r.cfg.Dir == nil {
		return
	}
	names := make([]string, len(a.Tasks))
	for i := range a.Tasks {
		names[i] = a.Tasks[i].Name
	}
	ctx, cancel := context.WithTimeout(ctx, postrun.bound())
	defer cancel()
	if _, err := guard.Run(ctx, guard.Late, func(context.Context) error { return r.cfg.Dir.DropSecrets(names) }); err != nil {
		r.log.Warn("secrets stay mounted until the alloc is collected", "error", err)
	}
}

// restartWork asks targets for a new attempt, after the hooks the first time. A
// task between attempts needs none: its backoff ends.
func (l *loop) restartWork(targets []*task, req Request) func(context.Context) result {
	r, h := l.life.Restart, l.r.hooks
	first := l.hooked != r
	if first {
		l.hooked = r
		for _, t := range l.r.tasks {
			s := t.Snapshot()
			if _, ok := r.Tasks[t.name]; ok {
				req.Tasks = append(req.Tasks, t.name)
			} else if r.Fresh && s.State() == taskrunner.Pending && !s.Backoff.IsZero() {
				targets = append(targets, t)
			}
		}
	}
	return func(ctx context.Context) result {
		var res result
		if first {
			res.err = l.r.told(ctx, h.run(ctx, preTaskRestart, req))
		}
		if ctx.Err() != nil {
			return res
		}
		errs := each(targets, func(t *task) error {
			return t.Restart(ctx, taskrunner.RestartRequest{Reason: r.Reason, AlsoDead: true})
		})
		for i, err := range errs {
			if errors.Is(err, taskrunner.ErrNotRunning) {
				res.dropped = append(res.dropped, targets[i].name)
			}
		}
		res.err = errors.Join(res.err, join(targets, errs))
		return res
	}
}

// targets finds the tasks and notes that they are told now.
func (l *loop) targets(names []string) []*task {
	var ts []*task
	for _, t := range l.r.tasks {
		if slices.Contains(names, t.name) {
			l.told[t.name] = told{t.Snapshot().Rev, l.why()}
			ts = append(ts, t)
		}
	}
	return ts
}

// each calls f for all tasks at once.
func each(ts []*task, f func(*task) error) []error {
	errs := make([]error, len(ts))
	var wg sync.WaitGroup
	for i, t := range ts {
		if len(ts) == 1 {
			errs[i] = f(t)
			continue
		}
		wg.Go(func() { errs[i] = f(t) })
	}
	wg.Wait()
	return errs
}

// join names the tasks. One that has ended meanwhile, or whose disk failed, is
// no error here.
func join(ts []*task, errs []error) error {
	var all []error
	for i, err := range errs {
		if err != nil && !errors.Is(err, taskrunner.ErrClosed) && !errors.Is(err, taskrunner.ErrNotDurable) {
			all = append(all, fmt.Errorf("task %q: %w", ts[i].name, err))
		}
	}
	return errors.Join(all...)
}

// request is what a task is told of the ending. Nil: nothing ever ran that a
// poststop task could clean up after.
func (e *ending) request() taskrunner.KillRequest {
	if e == nil {
		return taskrunner.KillRequest{Reason: "no other task of the alloc ever ran"}
	}
	req := taskrunner.KillRequest{Reason: e.Reason, NoShutdownDelay: e.NoDelay, Grace: e.Grace}
	switch e.Cause {
	case CauseSetup:
		req.Kind, req.Failed = taskrunner.SetupFailure, true
	case CauseLeader:
		req.Kind = taskrunner.LeaderDead
	case CauseSibling:
		req.Kind = taskrunner.SiblingFailed
	case CauseMains:
		req.Kind = taskrunner.MainsDead
	}
	return req
}
