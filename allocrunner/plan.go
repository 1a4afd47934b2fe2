// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"slices"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// op is what the alloc does next on its own account. At most one runs at a time.
type op string

const (
	opNone    op = ""
	opPrerun  op = "prerun"  // prerun hooks; interrupted by a kill
	opUpdate  op = "update"  // update hooks, then the tasks; interrupted by a kill
	opPrekill op = "prekill" // prekill hooks: services leave
	opKill    op = "kill"    // targets are told to die
	opRestart op = "restart" // targets are told to begin a new attempt
	opPostrun op = "postrun" // postrun hooks; all tasks are dead
	opTell    op = "tell"    // tasks learn why the alloc is not healthy
)

// input is what the plan knows beside tasks and life: facts of this Run only.
type input struct {
	stop    bool // the control plane wants the alloc stopped
	expired bool // its maximum run time has passed
	ready   bool // prerun hooks have succeeded in this Run
	retry   bool // a failed prerun waits for its next try
	left    bool // prekill hooks have run, or there are none
	held    bool // the shutdown delay is not over
	changed bool // an update was accepted that hooks and tasks have not seen
	asking  bool // opRestart is at work: it may still reach a task
	untold  bool // the alloc was found unhealthy, and the tasks do not know
	durable bool // everything known is on disk
}

// decision is the plan's answer. A non-nil end, and restarted, are transitions
// that must be on disk before anything else is decided.
type decision struct {
	end       *ending
	restarted bool     // the restart in progress has reached all its tasks
	open      []string // tasks that may start
	op        op
	targets   []string // of kill and restart
}

// plan decides who may start, who is killed and what the alloc does next. It is
// pure: no clock, no I/O. It is asked again after every event.
func plan(tasks []view, l life, in input) decision {
	if l.Done {
		return decision{}
	}
	if e := expiry(tasks, l, in); e != nil {
		return decision{end: e}
	}
	if l.Kill == nil {
		if e := end(tasks, l, in); e != nil {
			return decision{end: e}
		}
		if l.Restart != nil && !in.asking && !slices.ContainsFunc(tasks, func(t view) bool { return l.Restart.has(t) && !t.moved }) {
			return decision{restarted: true}
		}
	}
	d := decision{}
	for _, t := range tasks {
		if open(t, tasks, l, in) {
			d.open = append(d.open, t.name)
		}
	}
	d.op, d.targets = next(tasks, l, in)
	return d
}

// next is the alloc's own next operation.
func next(tasks []view, l life, in input) (op, []string) {
	others := !slices.ContainsFunc(tasks, func(t view) bool { return !t.dead() && !t.poststop() })
	ending := l.Kill != nil || others
	switch {
	case in.untold && in.durable:
		return opTell, nil
	case ending && !in.left:
		return opPrekill, nil
	case !slices.ContainsFunc(tasks, func(t view) bool { return !t.over }):
		return opPostrun, nil
	case l.Kill != nil && in.held && !others:
		return opNone, nil
	}
	if ending {
		if t := kills(tasks, l); len(t) > 0 {
			return opKill, t
		}
	}
	switch {
	case ending && (!others || !spares(tasks, l)):
	case !in.ready: // also for poststop tasks that are still to come
		if !in.retry && in.durable {
			return opPrerun, nil
		}
	case ending:
	case l.Restart != nil:
		if t := moves(tasks, l.Restart); len(t) > 0 && in.durable {
			return opRestart, t
		}
	case in.changed:
		return opUpdate, nil
	}
	return opNone, nil
}

// end decides whether the alloc must be brought to its end: never, while no
// task but poststop ones is alive, for they come to their end by themselves.
func end(tasks []view, l life, in input) *ending {
	if !slices.ContainsFunc(tasks, func(t view) bool { return !t.dead() && !t.poststop() }) {
		return nil
	}
	if in.stop {
		return &ending{Cause: CauseStopped}
	}
	var leader, failed, main string
	working := false // a task lives that is more than company for others
	for _, t := range tasks {
		switch {
		case t.poststop():
			continue
		case t.dead() && t.leader && leader == "":
			leader = t.name
		}
		if t.dead() && t.failed && failed == "" {
			failed = t.name
		}
		if t.hook == spec.LifecycleMain {
			main = t.name
		}
		working = working || !t.dead() && !t.sidecar
	}
	// A task that was dead when a restart was accepted is about to live again.
	again := l.Restart != nil
	switch {
	case leader != "" && !again:
		return &ending{Cause: CauseLeader, Task: leader}
	case failed != "":
		return &ending{Cause: CauseSibling, Task: failed}
	case !working && main != "" && !again:
		return &ending{Cause: CauseMains}
	}
	return nil
}

// expiry ends what still lives when the maximum run time has passed, poststop
// tasks too. An end that was decided before keeps its cause.
func expiry(tasks []view, l life, in input) *ending {
	if !in.expired || !slices.ContainsFunc(tasks, func(t view) bool { return !t.dead() }) {
		return nil
	}
	if l.Kill == nil {
		return &ending{Cause: CauseMaxRun, Force: Complete, Poststop: true}
	}
	if l.Kill.Poststop {
		return nil
	}
	k := *l.Kill
	k.Poststop = true
	return &k
}

// spares says that poststop tasks outlive the end: unless a kill names them, or
// none of the others ever ran, so that there is nothing to clean up.
func spares(tasks []view, l life) bool {
	return (l.Kill == nil || !l.Kill.Poststop) &&
		slices.ContainsFunc(tasks, func(t view) bool { return t.ran && !t.poststop() })
}

// kills are the tasks to be told to die now: those of the lowest rank that has
// a living one, as far as they have not been told.
func kills(tasks []view, l life) []string {
	spare := spares(tasks, l)
	lowest := 4
	for _, t := range tasks {
		if !t.gone && !(t.poststop() && spare) {
			lowest = min(lowest, t.rank())
		}
	}
	var names []string
	for _, t := range tasks {
		if t.rank() == lowest && !t.gone && !t.told {
			names = append(names, t.name)
		}
	}
	return names
}

// moves are the tasks to be told to begin a new attempt now, in kill order:
// what has a lower rank has stopped before the next is told.
func moves(tasks []view, r *restart) []string {
	lowest := 4
	for _, t := range tasks {
		if r.has(t) && !t.moved {
			lowest = min(lowest, t.rank())
		}
	}
	var names []string
	for _, t := range tasks {
		if r.has(t) && !t.moved && !t.told && t.rank() == lowest {
			names = append(names, t.name)
		}
	}
	return names
}

// has says whether the task takes part. A fresh lifecycle is everybody's: what
// has not begun must not begin before its turn either.
func (r *restart) has(t view) bool {
	_, ok := r.Tasks[t.name]
	return ok || r.Fresh && !t.poststop()
}

// open says whether a task may start. It is asked at every start, also at a
// restart of one task: a main waits for its sidecars again. What it looks at is
// persisted with the tasks, so a restored alloc finds the gates as they were.
func open(t view, tasks []view, l life, in input) bool {
	if !in.durable || t.dead() {
		return false
	}
	switch {
	case !in.ready:
		return false
	case t.poststop():
		return in.left && spares(tasks, l) && t.depends(tasks) &&
			!slices.ContainsFunc(tasks, func(o view) bool { return !o.poststop() && !o.dead() })
	case l.Kill != nil || l.Status.Terminal() || l.Restart != nil && l.Restart.has(t):
		return false
	case !t.depends(tasks):
		return false
	}
	switch t.hook {
	case spec.LifecycleMain:
		return !slices.ContainsFunc(tasks, func(o view) bool {
			return o.hook == spec.LifecyclePrestart && !o.ok() && !(o.sidecar && o.state == taskrunner.Running)
		})
	case spec.LifecyclePoststart:
		return !slices.ContainsFunc(tasks, func(o view) bool { return o.hook == spec.LifecycleMain && !o.up })
	}
	return true
}

// depends says that what the task depends on holds now.
func (v view) depends(tasks []view) bool {
	return !slices.ContainsFunc(v.deps, func(d spec.Dependency) bool {
		i := slices.IndexFunc(tasks, func(o view) bool { return o.name == d.Task })
		return i >= 0 && !tasks[i].fulfils(d.Condition) && !(v.poststop() && tasks[i].dead())
	})
}

// fulfils says whether a task that depends on v need not wait any more.
func (v view) fulfils(c spec.Condition) bool {
	switch c {
	case spec.DependCompleted:
		return v.ok()
	case spec.DependHealthy:
		return v.ok() || v.healthy
	}
	return v.up
}
