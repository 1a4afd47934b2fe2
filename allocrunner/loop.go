// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// loop is the state of Run. Only its goroutine touches it.
type loop struct {
	r     *AllocRunner
	alloc *spec.Alloc
	life  life

	journal
	at turn

	running    bool         // the tasks' runners run
	ready      bool         // prerun hooks have succeeded
	preruns    backoff      // of prerun hooks that fail on a restored alloc
	left       bool         // prekill hooks have run, after the last prerun
	changed    bool         // an accepted update waits for hooks and tasks
	seen       *spec.Alloc  // by the hooks
	hooked     *restart     // whose pretaskrestart hooks have run
	background *guard.Group // of hooks
	told       map[string]told
	over       bool  // postrun hooks have run
	leftover   error // of postrun hooks

	work    operation
	results chan result

	outlook
}

// journal is what the loop knows of the disk.
type journal struct {
	disk       Snapshot // as last written; no Alloc: never
	diskHealth *health  // likewise
	durable    bool     // life, alloc and the hooks' states are on disk
	commits    backoff  // of a store that fails
}

// turn is the time of one turn of the loop. What waits for a deadline and the
// alarm that ends the wait are decided by one look at the clock: were there two,
// a deadline between them would be waited for without end.
type turn struct {
	wall time.Time // of timers
	boot bootclock.Instant
}

// outlook is what the loop knows of the alloc's health.
type outlook struct {
	health  *health         // replaced, never changed
	judgeIn time.Duration   // when it may look different by itself
	checks  <-chan struct{} // closed when the alloc's checks change; nil: nobody waits for them
}

// operation is what runs beside the loop; the zero value is none.
type operation struct {
	op
	cancel      context.CancelCauseFunc
	interrupted bool
}

// told is what a task was last told: again only once it has changed.
type told struct {
	rev uint64
	why any // the ending or the restart
}

// result is what an operation brings back.
type result struct {
	op      op
	err     error
	dropped []string // of a restart: tasks that are being killed
}

var errInterrupted = errors.New("allocrunner: the alloc is being ended")

func newLoop(r *AllocRunner) *loop {
	l := &loop{
		r: r, alloc: r.first.alloc, life: r.first.life,
		seen: r.first.alloc, told: map[string]told{}, results: make(chan result, 1),
		outlook: outlook{health: &r.first.health, judgeIn: never},
		journal: journal{disk: r.Snapshot(), diskHealth: &r.first.health, durable: r.first.stored,
			commits: backoff{first: 100 * time.Millisecond, most: 10 * time.Second}},
		preruns: backoff{first: time.Second, most: time.Minute},
	}
	if !r.first.stored {
		l.disk.Alloc = nil
	}
	return l
}

func (l *loop) run(ctx context.Context) error {
	l.observe(l.r.Snapshot())
	if l.life.Done {
		return nil
	}
	l.background = guard.NewGroup(ctx)
	tctx, letGo := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer letGo()
	if next := l.born(l.life, l.alloc); !l.durable || next.Born != l.life.Born {
		_ = l.commit(next, l.alloc) // told by Durable, tried again by the loop
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if !l.running && (l.durable || l.life.Kill != nil) {
			l.running = true
			for _, t := range l.r.tasks {
				tasks.Go(func() { _ = t.Run(tctx); l.r.wake() })
			}
		}
		l.at = turn{time.Now(), l.r.clock.Now()}
		l.evaluate(ctx)
		if l.over && l.durable {
			l.endBackground(l.background.Close())
			return nil
		}
		timer.Reset(l.nextWake())
		select {
		case f := <-l.r.cmds:
			f(l)
		case res := <-l.results:
			if ctx.Err() != nil { // it may have ended because of that, and says nothing of the alloc
				l.results <- res
				return l.detach(ctx)
			}
			l.finish(res)
		case <-l.r.poke:
		case <-l.checks:
		case <-timer.C:
		case <-ctx.Done():
			return l.detach(ctx)
		}
	}
}

// nextWake is how long nothing happens by itself.
func (l *loop) nextWake() time.Duration {
	wait := l.judgeIn
	now := l.at.wall
	if !l.durable {
		wait = min(wait, l.commits.left(now))
	}
	if left := l.preruns.left(now); left > 0 {
		wait = min(wait, left)
	}
	if k := l.life.Kill; k != nil && !k.NoDelay && !k.Hold.IsZero() {
		if left := k.Hold.Left(l.at.boot); left > 0 {
			wait = min(wait, left)
		}
	}
	if left, ok := l.runTime(); ok && left > 0 {
		wait = min(wait, left)
	}
	return min(wait, l.healthyIn())
}

// evaluate asks the plan until it is quiet, and follows it.
func (l *loop) evaluate(ctx context.Context) {
	for {
		tasks := l.views()
		in := l.input()
		d := plan(tasks, l.life, in)
		next, changed := l.life, d.end != nil || d.restarted
		if d.end != nil {
			next.Kill, next.Restart = l.decide(*d.end, tasks), nil
		}
		if d.restarted {
			next.Restart, next.Round = nil, l.round()
		}
		if in.durable || !l.durable && l.commits.left(time.Now()) <= 0 {
			changed = l.settle(&next, tasks) || changed || !l.durable
		}
		if changed {
			_ = l.commit(next, l.alloc) // told by Durable, tried again by the loop
			continue
		}
		l.gates(d.open)
		l.act(ctx, d)
		break
	}
	l.publish()
}

// settle brings what follows from the tasks into next and says whether that is
// news. Where nothing is to be given back the alloc is over with its tasks; that
// needs no write, for New sees it too.
func (l *loop) settle(next *life, tasks []view) bool {
	old := *next
	found := l.assess(tasks)
	next.Status, next.Desc = status(tasks, *next)
	if next.FinishedAt.IsZero() && !slices.ContainsFunc(tasks, func(t view) bool { return !t.dead() }) {
		next.FinishedAt = l.finishedAt()
	}
	if l.work.op == opNone && !l.r.givesBack() && len(l.health.Untold) == 0 {
		l.over = l.over || !slices.ContainsFunc(tasks, func(t view) bool { return !t.over })
	}
	return found || next.Status != old.Status || next.Desc != old.Desc || !next.FinishedAt.Equal(old.FinishedAt)
}

// finishedAt is when the last task ended.
func (l *loop) finishedAt() time.Time {
	var last time.Time
	for _, t := range l.r.tasks {
		if f := t.Snapshot().FinishedAt; f.After(last) {
			last = f
		}
	}
	return last
}

// views is what the plan sees of the tasks.
func (l *loop) views() []view {
	vs := make([]view, 0, len(l.r.tasks))
	healthy := l.healthyTasks()
	for _, t := range l.r.tasks {
		s, def := t.Snapshot(), l.alloc.Task(t.name)
		v := view{
			name: t.name, hook: def.Hook(), sidecar: def.IsSidecar(),
			state: s.State(), failed: s.Failed, gone: s.Final, over: s.Phase == taskrunner.Dead && s.Durable,
			ran: !s.StartedAt.IsZero(), deps: def.DependsOn, healthy: healthy[t.name],
		}
		v.leader = def.Leader && !v.poststop()
		v.up = v.ran && !s.StartedAt.Equal(l.life.Round[t.name])
		v.told = l.told[t.name] == told{s.Rev, l.why()}
		if k := l.life.Kill; s.Kill != nil {
			v.told = v.told || k == nil || (s.Kill.NoShutdownDelay || !k.NoDelay) && (k.Grace == 0 || s.Kill.Grace == k.Grace)
		} else if r := l.life.Restart; k == nil && r != nil {
			base, member := r.Tasks[t.name]
			v.moved = member && s.Attempt > base
			if r.Fresh { // behind its gate
				v.moved = s.Phase == taskrunner.Pending || s.Phase == taskrunner.Ready
			}
			v.told = v.told || s.Restarting != nil
		}
		// What a task does while its disk fails cannot be seen: one that was told to
		// die holds up nobody, so that all are told.
		v.gone = v.gone || v.told && !s.Durable
		vs = append(vs, v)
	}
	return vs
}

// why is what tasks are told for at the moment.
func (l *loop) why() any {
	if l.life.Kill == nil && l.life.Restart != nil {
		return l.life.Restart
	}
	return l.life.Kill
}

func (l *loop) input() input {
	in := input{
		stop: l.alloc.Stopped(), ready: l.ready, retry: l.preruns.left(l.at.wall) > 0,
		left: l.left || !l.r.hooks.any(prekill), changed: l.changed, durable: l.durable, asking: l.work.op == opRestart,
		untold: len(l.health.Untold) > 0,
	}
	if left, ok := l.runTime(); ok {
		in.expired = left <= 0
	}
	for _, t := range l.r.tasks {
		in.durable = in.durable && t.Snapshot().Durable
	}
	if k := l.life.Kill; k != nil {
		in.left = in.left || k.Left && !l.ready // or prerun hooks have come back to the registry
		in.held = !k.NoDelay && k.Hold.Left(l.at.boot) > 0
	}
	return in
}

// round is when each task was last started.
func (l *loop) round() map[string]time.Time {
	if !l.life.Restart.Fresh {
		return l.life.Round
	}
	starts := map[string]time.Time{}
	for _, t := range l.r.tasks {
		if at := t.Snapshot().StartedAt; !at.IsZero() {
			starts[t.name] = at
		}
	}
	return starts
}

func (l *loop) gates(open []string) {
	for _, t := range l.r.tasks {
		t.SetGate(slices.Contains(open, t.name))
	}
}

// act starts the operation that the plan wants, unless one is at work. What
// prepares gives way when it is not wanted any more because the alloc ends.
func (l *loop) act(ctx context.Context, d decision) {
	switch l.work.op {
	case opNone:
	case opPrerun, opUpdate, opRestart:
		if d.op != l.work.op && (l.life.Kill != nil || d.op == opPrekill || d.op == opPostrun) {
			l.work.interrupted = true
			l.work.cancel(errInterrupted)
		}
		return
	default:
		return
	}
	if d.op == opNone || l.over {
		return
	}
	do := l.prepare(d)
	if d.op == opPrekill || d.op == opPostrun {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	l.work = operation{op: d.op, cancel: cancel}
	go func() {
		defer cancel(nil)
		res := do(ctx)
		res.op = d.op
		l.results <- res
	}()
}

// finish takes in what an operation brought.
func (l *loop) finish(res result) {
	interrupted := l.work.interrupted
	l.work = operation{}
	if l.durable && l.r.hooks.unsaved() {
		l.durable = false
		l.commits.fail(time.Now())
	}
	switch res.op {
	case opPrerun:
		if !interrupted || res.err == nil {
			l.finishPrerun(res.err)
		}
		return
	case opPrekill:
		l.left = true
		if k := l.life.Kill; k != nil && !k.Left {
			next := l.life
			next.Kill = l.departed(*k, l.views())
			_ = l.commit(next, l.alloc)
		}
	case opTell:
		if res.err == nil {
			l.health = &health{Found: l.health.Found, Watch: l.health.Watch}
			_ = l.commit(l.life, l.alloc)
		}
	case opPostrun:
		l.over, l.leftover = true, res.err
		if next := l.life; res.err == nil && l.r.hooks.any(prekill, postrun) {
			next.Done = true
			_ = l.commit(next, l.alloc)
		}
	case opRestart:
		if r := l.life.Restart; r != nil && len(res.dropped) > 0 {
			next, rest := l.life, *r
			rest.Tasks = map[string]int{}
			for name, attempt := range r.Tasks {
				if !slices.Contains(res.dropped, name) {
					rest.Tasks[name] = attempt
				}
			}
			next.Restart = &rest
			if l.hooked == r {
				l.hooked = &rest
			}
			_ = l.commit(next, l.alloc)
		}
	}
	if res.err != nil {
		l.r.log.Error("alloc operation failed", "operation", res.op, "error", res.err)
	}
}

// finishPrerun: a first prerun that fails ends the alloc, and so does a later one
// that trying again cannot mend. A store that fails is not the hook's fault.
func (l *loop) finishPrerun(err error) {
	switch {
	case err == nil:
		l.ready, l.left = true, false
		l.preruns.reset()
	case notSaved(err), l.r.first.restored && driver.IsRecoverable(err):
		l.preruns.fail(time.Now())
		l.preruns.why = err.Error()
		l.r.log.Warn("prerun hooks will be tried again", "in", l.preruns.delay, "error", err)
	default:
		l.r.log.Error("prerun hooks failed, the alloc ends", "error", err)
		e := ending{Cause: CauseSetup, Reason: err.Error(), Force: Failed, Poststop: true}
		if k := l.life.Kill; k != nil { // it was ending anyway, but for its poststop tasks
			e.NoDelay, e.Grace = k.NoDelay, k.Grace
		}
		next := l.life
		next.Restart, next.Kill = nil, l.decide(e, l.views())
		_ = l.commit(next, l.alloc)
	}
}

// decide completes an ending: its reason, and what follows where no prekill hook
// has to run first.
func (l *loop) decide(e ending, tasks []view) *ending {
	if l.life.Kill != nil && e.Cause == l.life.Kill.Cause {
		return &e // only wider than it was
	}
	switch e.Cause {
	case CauseMaxRun:
		e.Reason = fmt.Sprintf("its maximum run time of %s has passed", l.alloc.Settings.MaxRun)
	case CauseStopped:
		if e.Reason = l.alloc.DesiredReason; e.Reason == "" {
			e.Reason = "the control plane wants it stopped"
		}
	case CauseLeader:
		e.Reason = fmt.Sprintf("leader task %q ended", e.Task)
	case CauseSibling:
		e.Reason = fmt.Sprintf("task %q failed", e.Task)
	}
	if l.left || !l.r.hooks.any(prekill) {
		return l.departed(e, tasks)
	}
	return &e
}

// departed: services have left the registry; the alloc's shutdown delay begins,
// if a main task is there that may still be talked to.
func (l *loop) departed(e ending, tasks []view) *ending {
	delay := l.alloc.Settings.ShutdownDelay
	talks := slices.ContainsFunc(tasks, func(t view) bool {
		return t.hook == spec.LifecycleMain && t.state == taskrunner.Running
	})
	e.Left = true
	if delay > 0 && talks && !e.NoDelay {
		e.Hold.From, e.Hold.Delay = l.r.clock.Now(), delay
	}
	return &e
}

// detach lets go of the alloc: the operation at work ends, hooks are told, the
// tasks' runners let go at the same time.
func (l *loop) detach(ctx context.Context) error {
	l.r.close()
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
	defer stop()
	work := l.background.Close()
	if cancel := l.work.cancel; cancel != nil {
		soon := time.AfterFunc(2*time.Second, func() { cancel(context.Cause(ctx)) })
		res := <-l.results
		soon.Stop()
		if res.op == opPrekill || res.op == opPostrun {
			l.finish(res)
		}
	}
	l.endBackground(work)
	if err := l.r.hooks.run(bounded, shutdown, l.r.request(l.alloc)); err != nil {
		l.r.log.Error("shutdown hooks failed", "error", err)
	}
	if !l.durable {
		_ = l.commit(l.life, l.alloc) // a last try
	}
	l.publish()
	return context.Cause(ctx)
}

// endBackground waits for background work whose context has ended.
func (l *loop) endBackground(work []guard.Member) {
	guard.Wait(work, guard.Late, func(m guard.Member, err error) {
		l.r.log.Error("background work of a hook ended badly", "work", m.Name, "error", err, "stack", m.Stack())
	})
}

// backoff doubles from first to most.
type backoff struct {
	first, most time.Duration
	delay       time.Duration
	until       time.Time
	why         string
}

func (b *backoff) fail(now time.Time) {
	b.delay = min(max(2*b.delay, b.first), b.most)
	b.until = now.Add(b.delay)
}

func (b *backoff) reset() { b.delay, b.until = 0, time.Time{} }

func (b *backoff) left(now time.Time) time.Duration { return max(0, b.until.Sub(now)) }
