// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/explain"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// patience is how long a loop may take to explain itself: it answers between two
// steps, of which only a write can take its time.
const patience = time.Second

// atWork is the callback of a hook that is at work.
type atWork struct {
	hook  string
	p     phase
	since time.Time
}

// Explain says what the alloc and its tasks wait for, what failed last and what
// will happen next. It asks the loops; of one that does not answer within a second,
// or until ctx ends, what was last published is told, and that.
func (r *AllocRunner) Explain(ctx context.Context) explain.AllocReasons {
	out, shut := r.explainSelf(ctx)
	out.Tasks = make([]explain.TaskReasons, len(r.tasks))
	each(r.tasks, func(t *task) error {
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		i := slices.Index(r.tasks, t)
		out.Tasks[i] = t.Explain(bounded)
		return nil
	})
	for i := range out.Tasks {
		t := &out.Tasks[i]
		at := slices.IndexFunc(t.Waiting, func(w explain.Reason) bool { return w.Kind == explain.Gate })
		if why := shut[t.Name]; at >= 0 && len(why) > 0 {
			t.Waiting = slices.Replace(t.Waiting, at, at+1, why...)
		}
	}
	out.Link()
	return out
}

// explainSelf is the alloc's own part, and why the gates of its tasks are shut.
func (r *AllocRunner) explainSelf(ctx context.Context) (out explain.AllocReasons, shut map[string][]explain.Reason) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.begun.Load() {
		err := r.do(ctx, func(l *loop) error { out, shut = l.explain(); return nil })
		if err == nil {
			return out, shut
		}
	}
	s := r.Snapshot()
	out = s.Explain()
	switch {
	case s.Done:
		out.Next = []explain.Reason{explain.Of(explain.Nothing, "", "reason", s.Description)}
	case ctx.Err() != nil:
		out.Waiting = []explain.Reason{explain.Of(explain.Busy, "")}
	default:
		out.Waiting = []explain.Reason{explain.Of(explain.Step, "its runner has not begun, or has let go of it")}
	}
	return out, nil
}

// Explain is what a snapshot alone tells: not what its tasks wait for.
func (s Snapshot) Explain() explain.AllocReasons {
	al := s.Alloc
	out := explain.AllocReasons{ID: al.ID, Job: al.JobID, Group: al.Group, Index: al.Index,
		Status: string(s.Status), Desired: string(s.Desired), Description: s.Description}
	if out.Desired == "" {
		out.Desired = string(spec.DesiredRun)
	}
	fail := func(what, why string, at time.Time) {
		r := explain.Of(explain.Failure, what, "error", why).From(at)
		out.Failed = &r
	}
	switch {
	case s.Leftover != "":
		fail("postrun hooks", s.Leftover, s.FinishedAt)
	case s.Status == Failed:
		fail("failed", s.Description, s.FinishedAt)
	case s.Health != nil && !s.Health.Healthy:
		fail("unhealthy", s.Health.Reason, s.Health.Time)
	}
	return out
}

func (l *loop) explain() (explain.AllocReasons, map[string][]explain.Reason) {
	l.at = turn{time.Now(), l.r.clock.Now()}
	tasks, in := l.views(), l.input()
	out := l.r.snapshot(l.alloc, l.life, l.health.Found, 0).Explain()
	out.Waiting, out.Next = l.waiting(tasks), l.upcoming()
	shut := map[string][]explain.Reason{}
	for _, t := range tasks {
		shut[t.name] = closed(t, tasks, l.life, in)
	}
	if l.life.Kill == nil {
		waits, next := l.healthReasons(tasks)
		out.Waiting, out.Next = append(out.Waiting, waits...), append(out.Next, next...)
	}
	return out, shut
}

// waiting is what the alloc itself waits for.
func (l *loop) waiting(tasks []view) (out []explain.Reason) {
	if !l.durable {
		out = append(out, explain.Of(explain.Disk, "").To(l.commits.until))
	}
	if at := l.r.hooks.at.Load(); at != nil {
		out = append(out, explain.Of(explain.Hook, at.hook, "callback", at.p.String()).From(at.since))
	} else if l.work.op != opNone {
		out = append(out, explain.Of(explain.Step, string(l.work.op)))
	}
	if !l.ready && l.preruns.left(l.at.wall) > 0 {
		out = append(out, explain.Of(explain.Retry, "prerun hooks", "error", l.preruns.why).To(l.preruns.until))
	}
	switch k, r := l.life.Kill, l.life.Restart; {
	case k != nil && !k.NoDelay && k.Hold.Left(l.at.boot) > 0:
		out = append(out, explain.Of(explain.Delay, "").To(l.at.wall.Add(k.Hold.Left(l.at.boot))))
	case k != nil:
		for _, t := range tasks {
			if !t.dead() {
				out = append(out, explain.Of(explain.Task, t.name, "condition", "ended"))
			}
		}
	case r != nil:
		for _, t := range tasks {
			if r.has(t) && !t.moved {
				out = append(out, explain.Of(explain.Restarting, t.name, "reason", r.Reason))
			}
		}
	}
	return out
}

// upcoming is what is decided about the alloc.
func (l *loop) upcoming() (out []explain.Reason) {
	switch k := l.life.Kill; {
	case l.over:
		return []explain.Reason{explain.Of(explain.Nothing, "", "reason", l.life.Desc)}
	case k != nil:
		out = append(out, explain.Of(explain.Ending, string(k.Cause), "reason", k.Reason))
	}
	if left, ok := l.runTime(); ok && (l.life.Kill == nil || !l.life.Kill.Poststop) {
		out = append(out, explain.Of(explain.MaxRun, "").To(l.at.wall.Add(left)))
	}
	return out
}

// healthReasons are what judge finds missing, and what follows from it.
func (l *loop) healthReasons(tasks []view) (waits, next []explain.Reason) {
	if l.alloc.Settings.Health == nil {
		return nil, nil
	}
	checks := l.checkStates()
	a := judge(*l.health, l.alloc, l.vitals(tasks), checks, l.r.clock.Now())
	if a.watch == nil {
		return nil, nil
	}
	for _, o := range a.late {
		waits = append(waits, explain.Of(explain.Task, o.Task, "condition", "healthy", "reason", o.Reason))
	}
	if l.alloc.Settings.Health.Check != "task_states" {
		for _, c := range checks {
			if c.State != spec.CheckPassing {
				waits = append(waits, explain.Of(explain.Check, c.Name, "task", c.Task, "state", string(c.State), "output", c.Output))
			}
		}
	}
	if len(waits) == 0 {
		waits = append(waits, explain.Of(explain.Healthy, "").To(l.at.wall.Add(a.left)))
	}
	return waits, append(next, explain.Of(explain.Deadline, "").To(l.at.wall.Add(a.overdue)))
}

// closed is why open is false: empty for a living task if and only if it is not,
// for the same arguments. TestExplore compares the two in every state that can be
// reached.
func closed(t view, tasks []view, l life, in input) (why []explain.Reason) {
	hold := func(is bool, k explain.Kind, subject string, attrs ...string) {
		if is {
			why = append(why, explain.Of(k, subject, attrs...))
		}
	}
	hold(!in.durable, explain.Disk, "")
	hold(in.durable && !in.ready, explain.Prerun, "")
	if len(why) > 0 {
		return why // of all tasks; it says nothing about this one
	}
	if t.poststop() {
		hold(!in.left, explain.Prekill, "")
		living := false
		for _, o := range tasks {
			hold(!o.poststop() && !o.dead(), explain.Task, o.name, "condition", "ended")
			living = living || !o.poststop() && !o.dead()
		}
		hold(!living && !spares(tasks, l), explain.Ending, "no other task ran")
		hold(living && !spares(tasks, l) && l.Kill != nil, explain.Ending, "killed")
		return append(why, t.missing(tasks)...)
	}
	if k := l.Kill; k != nil {
		hold(true, explain.Ending, string(k.Cause), "reason", k.Reason)
	} else {
		hold(l.Status.Terminal(), explain.Ending, string(l.Status), "reason", l.Desc)
	}
	if r := l.Restart; l.Kill == nil && r != nil {
		hold(r.has(t), explain.Restarting, "", "reason", r.Reason)
	}
	why = append(why, t.missing(tasks)...)
	for _, o := range tasks {
		switch {
		case t.hook == spec.LifecycleMain && o.hook == spec.LifecyclePrestart && o.sidecar:
			hold(!o.ok() && o.state != taskrunner.Running, explain.Task, o.name, "condition", "running", "lifecycle", "prestart")
		case t.hook == spec.LifecycleMain && o.hook == spec.LifecyclePrestart:
			hold(!o.ok(), explain.Task, o.name, "condition", "completed", "lifecycle", "prestart")
		case t.hook == spec.LifecyclePoststart && o.hook == spec.LifecycleMain:
			hold(!o.up, explain.Task, o.name, "condition", "started", "lifecycle", "main")
		}
	}
	return why
}

// missing is what the task depends on and does not hold now.
func (v view) missing(tasks []view) (why []explain.Reason) {
	for _, d := range v.deps {
		one := v
		if one.deps = []spec.Dependency{d}; !one.depends(tasks) {
			why = append(why, explain.Of(explain.Task, d.Task, "condition", string(d.Condition), "depends_on", d.Task))
		}
	}
	return why
}
