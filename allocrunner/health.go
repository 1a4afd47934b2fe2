// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Checks tells how the checks of an alloc's services stand.
type Checks interface {
	// Checks returns all checks of the alloc as they stand, and a channel that is
	// closed with the next change. It must not block and may be called from any
	// goroutine.
	Checks(allocID string) ([]spec.CheckStatus, <-chan struct{})
}

// SetHealth settles the alloc's health in the deployment it belongs to. It returns
// once that is on disk. It is done once per deployment: a second time, or once the
// deployment has ended, it is ErrHealthSettled and changes nothing. Deployment
// and, if it is zero, Time are filled in. The runner does it by itself, unless the
// policy's check is manual.
func (r *AllocRunner) SetHealth(ctx context.Context, h spec.Health) error {
	return r.do(ctx, func(l *loop) error { return l.setHealth(h) })
}

func (l *loop) setHealth(h spec.Health) error {
	if settled(l.alloc, l.health.Found) {
		return ErrHealthSettled
	}
	h.Deployment = l.alloc.DeploymentID
	if h.Time.IsZero() {
		h.Time = l.r.clock.Now().Wall
	}
	old := l.health
	l.health = &health{Found: &h}
	err := l.try(l.life, l.alloc)
	if err != nil {
		l.health = old
	}
	return err
}

// HealthSettled says that the alloc's health is not asked for any more: it was
// found out in its deployment, or that has ended.
func (s Snapshot) HealthSettled() bool { return settled(s.Alloc, s.Health) }

func settled(a *spec.Alloc, h *spec.Health) bool {
	return a.DeploymentStatus == spec.DeploymentSuccessful || a.DeploymentStatus == spec.DeploymentFailed ||
		h != nil && h.Deployment == a.DeploymentID
}

// Emit adds an event to a task's, as if the task had met it.
func (r *AllocRunner) Emit(ctx context.Context, name string, kind taskrunner.Kind, attrs map[string]string) error {
	i := slices.IndexFunc(r.tasks, func(t *task) bool { return t.name == name })
	if i < 0 {
		return ErrUnknownTask
	}
	return r.tasks[i].Emit(ctx, kind, attrs)
}

// born notes in next when this node took on an alloc that may not run for ever.
func (l *loop) born(next life, a *spec.Alloc) life {
	if !next.Born.IsZero() || a.Settings.MaxRun <= 0 {
		return next
	}
	next.Born = l.r.clock.Now()
	if c := a.CreateTime; !c.IsZero() {
		next.Age = max(0, next.Born.Wall.Sub(c))
	}
	return next
}

// runTime is what is left of the maximum run time; false: it has none.
func (l *loop) runTime() (time.Duration, bool) {
	limit := l.alloc.Settings.MaxRun
	if limit <= 0 {
		return 0, false
	}
	b := l.born(l.life, l.alloc)
	return limit - b.Age - l.at.boot.Since(b.Born), true
}

// The condition "healthy" of depends_on. It is looked at for those tasks only
// that another waits for.

func (l *loop) awaited() []string {
	var names []string
	for i := range l.alloc.Tasks {
		for _, d := range l.alloc.Tasks[i].DependsOn {
			if d.Condition == spec.DependHealthy {
				names = append(names, d.Task)
			}
		}
	}
	return names
}

// healthyTasks are the awaited tasks that run for long enough and whose checks pass.
func (l *loop) healthyTasks() map[string]bool {
	names := l.awaited()
	if len(names) == 0 {
		return nil
	}
	failing := map[string]bool{}
	for _, s := range l.checkStates() {
		failing[s.Task] = failing[s.Task] || s.State != spec.CheckPassing
	}
	out := map[string]bool{}
	for _, t := range l.r.tasks {
		if slices.Contains(names, t.name) {
			left, runs := l.untilHealthy(t.Snapshot())
			out[t.name] = runs && left <= 0 && !failing[t.name]
		}
	}
	return out
}

// checkStates are the alloc's checks; the loop looks again when they change.
func (l *loop) checkStates() (all []spec.CheckStatus) {
	c := l.r.cfg.Checks
	if c == nil {
		return nil
	}
	l.r.contain("Checks", func() { all, l.checks = c.Checks(l.alloc.ID) })
	return all
}

// untilHealthy is how long a task must still run.
func (l *loop) untilHealthy(s taskrunner.Snapshot) (time.Duration, bool) {
	need := spec.DefaultMinHealthy
	if h := l.alloc.Settings.Health; h != nil {
		need = cmp.Or(h.MinHealthy, need)
	}
	return need - l.at.boot.Since(s.Resume.Started), s.Phase == taskrunner.Running
}

// healthyIn is how long nothing changes in the health of awaited tasks by itself.
func (l *loop) healthyIn() time.Duration {
	wait := never
	names := l.awaited()
	for _, t := range l.r.tasks {
		if left, runs := l.untilHealthy(t.Snapshot()); slices.Contains(names, t.name) && runs && left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}
