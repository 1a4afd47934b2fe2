// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// kill accepts a kill, in the loop. It counts also if it cannot be written.
func (l *loop) kill(req KillRequest) error {
	tasks := l.views()
	if !slices.ContainsFunc(tasks, func(t view) bool { return !t.dead() }) {
		return ErrTerminal
	}
	next := l.life
	if old := l.life.Kill; old == nil {
		next.Restart = nil
		next.Kill = l.decide(ending{
			Cause: CauseKilled, Reason: req.Reason, Force: req.Force,
			NoDelay: req.NoShutdownDelay, Poststop: req.Poststop, Grace: req.Grace,
		}, tasks)
	} else {
		k := *old
		k.NoDelay = k.NoDelay || req.NoShutdownDelay
		k.Poststop = k.Poststop || req.Poststop
		if req.Grace != 0 && (k.Grace == 0 || req.Grace < k.Grace) {
			k.Grace = req.Grace
		}
		if k.Force == "" {
			k.Force = req.Force
		}
		if k == *old {
			return nil
		}
		next.Kill = &k
	}
	l.gates(nil) // whoever is answered may rely on it: nothing starts any more
	return notDurable(l.commit(next, l.alloc))
}

func notDurable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", taskrunner.ErrNotDurable, err)
}

// restart accepts a restart, in the loop.
func (l *loop) restart(req RestartRequest) error {
	if req.Task != "" && !l.r.known(req.Task) {
		return fmt.Errorf("%w: %q", ErrUnknownTask, req.Task)
	}
	if l.life.Status.Terminal() || l.life.Kill != nil || l.alloc.Stopped() {
		return ErrTerminal
	}
	wish := restart{Tasks: map[string]int{}, Reason: req.Reason, Fresh: req.All && req.Task == ""}
	if old := l.life.Restart; old != nil {
		wish.Fresh = wish.Fresh || old.Fresh
		maps.Copy(wish.Tasks, old.Tasks)
	}
	found := false
	for _, t := range l.r.tasks {
		s, def := t.Snapshot(), l.alloc.Task(t.name)
		var member bool
		switch {
		case req.Task != "":
			member = t.name == req.Task && s.State() == taskrunner.Running
		case def.Hook() == spec.LifecyclePoststop:
		case req.All: // all but those that have not begun anyway
			member = s.Phase != taskrunner.Pending
		default:
			member = s.State() == taskrunner.Running
		}
		if member {
			found = true
			wish.Tasks[t.name] = s.Attempt
		}
	}
	if !found {
		return taskrunner.ErrNotRunning
	}
	next := l.life
	next.Restart = &wish
	return l.try(next, l.alloc)
}

// update accepts a newer version of the alloc, in the loop. A stop counts also if
// it cannot be written.
func (l *loop) update(a *spec.Alloc) error {
	if a.ModifyIndex <= l.alloc.ModifyIndex {
		return fmt.Errorf("%w: modify index %d after %d", ErrStale, a.ModifyIndex, l.alloc.ModifyIndex)
	}
	if fields := replaced(l.alloc, a); len(fields) > 0 {
		if !a.Stopped() {
			return &ReplaceError{Fields: fields}
		}
		stop := l.alloc.Clone()
		stop.DesiredStatus, stop.DesiredReason, stop.ModifyIndex = a.DesiredStatus, a.DesiredReason, a.ModifyIndex
		a = stop
	}
	tasks, next := l.views(), l.born(l.life, a)
	if !a.Stopped() || next.Kill != nil {
		if err := l.try(next, a); err != nil {
			return err
		}
		l.changed = next.Kill == nil && !next.Status.Terminal()
		return nil
	}
	l.alloc = a // decide reads its reason
	if e := end(tasks, next, input{stop: true}); e != nil {
		next.Kill, next.Restart = l.decide(*e, tasks), nil
		l.gates(nil) // as in kill
	}
	return notDurable(l.commit(next, a))
}
