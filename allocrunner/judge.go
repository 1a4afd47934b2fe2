// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// health is what is kept of an alloc's health, under a key of its own.
type health struct {
	Found *spec.Health `json:"found,omitempty"` // the last verdict
	Watch *watch       `json:"watch,omitempty"` // for one that is not found yet
	// Untold are those that the last verdict names, until their events are written.
	Untold []offender `json:"untold,omitempty"`
}

// watch is how far the search for a verdict has come. It is on disk, so that a
// restart of the agent neither begins anew nor flips anything.
type watch struct {
	Deployment string            `json:"deployment,omitempty"`
	Began      bootclock.Instant `json:"began"`
	Passing    bootclock.Instant `json:"passing,omitzero"` // since when all checks have passed; zero: they do not
}

// vital is what judge sees of a task.
type vital struct {
	view
	started bootclock.Instant
}

// offender is a task that keeps the alloc from being healthy.
type offender struct {
	Task   string `json:"task,omitempty"`
	Reason string `json:"reason"`
}

// assessment is what judge finds.
type assessment struct {
	watch     *watch // as it is now; nil: nothing is watched
	healthy   bool   // a verdict
	offenders []offender
	wait      time.Duration // until it may look different by itself

	// For those who ask why there is no verdict yet:
	late          []offender    // tasks that are not as they should be
	left, overdue time.Duration // until it is healthy if it goes on like this; until the deadline
}

func (a assessment) unhealthy() bool { return len(a.offenders) > 0 }

func (a assessment) reason() string {
	var all []string
	for _, o := range a.offenders {
		if o.Task == "" {
			all = append(all, o.Reason)
			continue
		}
		all = append(all, fmt.Sprintf("task %q: %s", o.Task, o.Reason))
	}
	return strings.Join(all, "; ")
}

const never = time.Duration(1<<63 - 1)

// judge finds out whether an alloc is healthy. It is pure. Services only, by the
// group's policy, once per deployment:
//
//  1. A main task that has ended, or any task that failed, is unhealthy at once.
//  2. Healthy: every main and sidecar has run for min_healthy since the latest of
//     their starts, tasks that run once have begun or ended well, and all checks
//     have passed for as long (policy "checks"). A check without a result holds
//     the verdict up; it ends no run of passing results.
//  3. Unhealthy at the deadline, counted from the beginning of the watch; each
//     task and check that was not as it should be is named.
func judge(h health, a *spec.Alloc, tasks []vital, checks []spec.CheckStatus, now bootclock.Instant) assessment {
	p := a.Settings.Health
	if p == nil || a.JobType.Batch() || p.Check == "manual" || settled(a, h.Found) {
		return assessment{wait: never}
	}
	w := h.Watch
	if w == nil || w.Deployment != a.DeploymentID {
		w = &watch{Deployment: a.DeploymentID, Began: now}
	}
	out := assessment{watch: w, wait: never}
	for _, t := range tasks {
		switch {
		case t.poststop() || !t.dead():
		case t.failed:
			out.offenders = append(out.offenders, offender{t.name, "it failed"})
		case t.hook == spec.LifecycleMain:
			out.offenders = append(out.offenders, offender{t.name, "it has ended"})
		}
	}
	if out.unhealthy() {
		return out
	}
	least := cmp.Or(p.MinHealthy, spec.DefaultMinHealthy)
	since, late := latest(tasks, now)
	out.late = late
	if p.Check != "task_states" {
		var failing []offender
		out.watch, failing = passing(w, checks, now)
		if late = append(late, failing...); len(checks) > 0 && now.Since(out.watch.Passing) < now.Since(since) {
			since = out.watch.Passing
		}
	}
	left := least - now.Since(since)
	overdue := cmp.Or(p.Deadline, spec.DefaultHealthDeadline) - now.Since(w.Began)
	out.left, out.overdue = left, overdue
	switch {
	case len(late) == 0 && left <= 0:
		out.healthy = true
		return out
	case len(late) == 0:
		out.wait = left
	}
	if out.wait = min(out.wait, overdue); overdue > 0 {
		return out
	}
	if len(late) == 0 {
		late = []offender{{"", fmt.Sprintf("not healthy for %s within %s", least, cmp.Or(p.Deadline, spec.DefaultHealthDeadline))}}
	}
	out.offenders = late
	return out
}

// latest is the latest start of what must run, and who does not run as it must.
func latest(tasks []vital, now bootclock.Instant) (since bootclock.Instant, late []offender) {
	for _, t := range tasks {
		running := t.state == taskrunner.Running
		switch {
		case t.poststop():
		case t.sidecar || t.hook == spec.LifecycleMain:
			if !running && !t.ok() {
				late = append(late, offender{t.name, "it does not run"})
			}
			if running && (since.IsZero() || now.Since(t.started) < now.Since(since)) {
				since = t.started
			}
		case !running && !t.ok():
			late = append(late, offender{t.name, "it has not run"})
		case t.hook == spec.LifecyclePrestart && running:
			late = append(late, offender{t.name, "it has not ended"})
		}
	}
	return since, late
}

// passing carries on since when all checks have passed, and names those that do
// not.
func passing(w *watch, checks []spec.CheckStatus, now bootclock.Instant) (*watch, []offender) {
	var late []offender
	failing := false
	for _, c := range checks {
		switch c.State {
		case spec.CheckPassing:
		case spec.CheckFailing:
			failing = true
			late = append(late, offender{c.Task, strings.TrimSuffix(fmt.Sprintf("check %q fails: %s", c.Name, c.Output), ": ")})
		default:
			late = append(late, offender{c.Task, fmt.Sprintf("check %q has no result", c.Name)})
		}
	}
	next := *w
	switch {
	case failing:
		next.Passing = bootclock.Instant{}
	case len(late) == 0 && len(checks) > 0 && w.Passing.IsZero():
		next.Passing = now
	}
	if next == *w {
		return w, late
	}
	return &next, late
}

// assess judges the alloc as it is now and says whether that is news. An end that
// somebody outside asked for says nothing about its health.
func (l *loop) assess(tasks []view) bool {
	l.judgeIn = never
	if l.alloc.Settings.Health == nil {
		return false
	}
	if k := l.life.Kill; k != nil && (k.Cause == CauseKilled || k.Cause == CauseStopped || k.Cause == CauseMaxRun) {
		return false
	}
	now := l.r.clock.Now()
	a := judge(*l.health, l.alloc, l.vitals(tasks), l.checkStates(), now)
	l.judgeIn = a.wait
	switch {
	case a.healthy || a.unhealthy():
		l.health = &health{Untold: a.offenders, Found: &spec.Health{Healthy: a.healthy, Time: now.Wall,
			Reason: a.reason(), Deployment: l.alloc.DeploymentID}}
	case a.watch != l.health.Watch:
		next := *l.health
		next.Watch = a.watch
		l.health = &next
	default:
		return false
	}
	return true
}

func (l *loop) vitals(tasks []view) []vital {
	vs := make([]vital, len(tasks))
	for i, t := range l.r.tasks {
		vs[i] = vital{tasks[i], t.Snapshot().Resume.Started}
	}
	return vs
}

// tell is the work of telling tasks why the alloc is not healthy. What concerns
// no task of its own is told the first main task.
func (l *loop) tell() func(context.Context) result {
	untold, tasks := l.health.Untold, l.r.tasks
	first := slices.IndexFunc(l.alloc.Tasks, func(t spec.Task) bool { return t.IsMain() })
	return func(ctx context.Context) result {
		var errs []error
		for _, o := range untold {
			i := slices.IndexFunc(tasks, func(t *task) bool { return t.name == o.Task })
			if i < 0 {
				i = max(0, first)
			}
			errs = append(errs, join(tasks[i:i+1], []error{tasks[i].Emit(ctx, taskrunner.AllocUnhealthy, map[string]string{"reason": o.Reason})}))
		}
		return result{err: errors.Join(errs...)}
	}
}
