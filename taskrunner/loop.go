// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/internal/guard"
	"github.com/nodekeep/nodekeep/spec"
)

// detachLimit is how long Run goes on after its context ended.
const detachLimit = 5 * time.Second

var (
	errInterrupted = errors.New("taskrunner: operation interrupted")
	errDetached    = errors.New("taskrunner: the agent lets go of the task")
)

// loop is what the goroutine of Run owns. Nothing else may touch it.
//
// Each turn: write what is due, interrupt the operation if something else matters
// more now, or start the next one; then wait for a result, a request, a change
// outside or the earliest of all deadlines.
type loop struct {
	looked bool // r.restored is closed
	journal
	r     *TaskRunner
	snap  Snapshot // as it is, on disk or not
	rev   uint64
	alloc *spec.Alloc
	task  *spec.Task
	seen  *spec.Alloc // the version the task's hooks know
	f     facts       // but those that facts() looks up
	past
	at      turn
	failed  int       // tries of recover, resume or rebuild in a row
	redoAt  time.Time // when they are due again
	trouble error     // why
	cur     *running
	out     *outputs
	bg      *guard.Group
	signals []signalRequest
	bound   time.Time // of a detach; zero: none
}

// past is what this process has to do with the attempt.
type past struct {
	known  bool // it has had the attempt alive
	taken  bool // … and has it from an earlier one
	orphan bool // … that died while it was stopping it, and the supervisor too
	left   bool // the attempt is a start intent of an earlier one
}

// turn is the time of one turn of the loop. What waits for a deadline and the
// alarm that ends the wait are decided by one look at the clock: were there two,
// a deadline between them would be waited for without end.
type turn struct {
	wall time.Time // of timers
	boot bootclock.Instant
}

// running is the operation under way.
type running struct {
	op          op
	x           *operation
	cancel      context.CancelCauseFunc
	call        *guard.Call
	res         result // once call is over
	interrupted bool
	grace       bootclock.Deadline // opStop: the one it keeps
	abandonAt   time.Time          // zero: never
	began       time.Time
}

type signalRequest struct {
	name   string
	answer chan<- error // nil: nobody waits
}

func newLoop(r *TaskRunner) *loop {
	s := r.Snapshot()
	return &loop{
		r: r, snap: s, rev: s.Rev, alloc: r.cfg.Alloc, task: r.cfg.Alloc.Task(r.cfg.Task), seen: r.cfg.Alloc,
		journal: journal{disk: s, hooks: map[string][]byte{}, unsaved: map[string][]byte{}},
		out:     &outputs{by: make([]Contribution, len(r.hooks))},
	}
}

func (l *loop) run(ctx context.Context) error {
	defer l.end()
	l.begin()
	timer := time.NewTimer(0)
	defer timer.Stop()
	gone := ctx.Done()
	for {
		l.at = turn{time.Now(), l.r.cfg.Clock.Now()}
		l.due()
		if l.cur == nil {
			if !l.bound.IsZero() {
				return context.Cause(ctx)
			}
			o := next(l.snap, l.facts())
			if o != opRecover && !l.looked {
				l.looked = true
				close(l.r.restored)
			}
			switch {
			case o == opNone && l.flushAt.IsZero():
				return nil
			case o == opNone:
				_ = l.commit()
				continue
			case o.inline():
				l.fold(result{op: o})
				continue
			case o != opIdle:
				l.launch(ctx, o)
			}
		}
		l.preempt()
		if d, ok := l.alarm(); ok {
			timer.Reset(d)
		} else {
			timer.Stop() // an idle task wakes nobody up
		}
		select {
		case f := <-l.r.cmds:
			f(l)
		case <-l.over():
			res := l.cur.res
			l.cur = nil
			l.fold(res)
		case <-l.r.poke:
		case <-l.contact():
		case <-gone:
			gone = nil
			l.detach()
		case <-timer.C:
		}
	}
}

// begin takes up what an earlier runner left, or the first life.
func (l *loop) begin() {
	log := l.r.log.With("phase", string(l.snap.Phase), "attempt", l.snap.Attempt)
	if l.snap.Seq == 0 && l.snap.Phase == Pending {
		l.snap.note(l.r.cfg.Clock.Now().Wall, Received, nil)
		l.flushBy(time.Now().Add(eventPause))
	} else {
		log.Info("task restored")
		l.left = l.snap.Phase == Starting
	}
	l.outside(func() {
		if l.r.cfg.Observe != nil {
			l.r.cfg.Observe(l.r.Snapshot())
		}
	})
	if !l.r.cfg.Gated && l.alloc.Stopped() && l.snap.Phase != Dead {
		_ = l.kill(KillRequest{Reason: l.alloc.DesiredReason})
	}
}

// end answers those who still wait and ends the background work.
func (l *loop) end() {
	l.failSignals(ErrClosed)
	if !l.looked {
		close(l.r.restored)
	}
	if l.bg == nil {
		return
	}
	members := l.bg.Close()
	waited := guard.Spawn(func() error {
		guard.Wait(members, guard.Late, func(m guard.Member, err error) {
			l.r.log.Error("background work of a hook ended badly", "work", m.Name, "error", err, "stack", m.Stack())
		})
		return nil
	})
	for {
		select {
		case f := <-l.r.cmds: // the work may be asking for something
			f(l)
		case <-waited.Done():
			return
		}
	}
}

// facts are those of now.
func (l *loop) facts() facts {
	f := l.f
	f.durable = l.isDurable()
	f.gate = l.r.gate.Load()
	f.contact = l.contacted()
	f.linger = l.r.cfg.Linger
	f.backoff = l.backoff() > 0
	f.update = l.seen != l.alloc && l.r.any(cbUpdate)
	f.signal = len(l.signals) > 0
	f.retry = l.at.wall.Before(l.redoAt)
	f.rebuild = f.rebuild && !f.retry
	return f
}

// backoff is what is left of the pause before the next attempt.
func (l *loop) backoff() time.Duration {
	if l.snap.Phase != Pending || l.snap.Backoff.IsZero() {
		return 0
	}
	return l.snap.Backoff.Left(l.at.boot)
}

// contacted says that a lost task may be started: system tasks belong to the
// node and need not wait.
func (l *loop) contacted() bool {
	if l.alloc.JobType == spec.JobSystem {
		return true
	}
	select {
	case <-l.r.cfg.FirstContact:
		return true
	default:
		return false
	}
}

func (l *loop) contact() <-chan struct{} {
	if l.snap.NeedContact && !l.contacted() {
		return l.r.cfg.FirstContact
	}
	return nil
}

func (l *loop) params() params {
	grace := l.task.KillTimeout
	if grace <= 0 {
		grace = spec.DefaultKillTimeout
	}
	if limit := l.r.cfg.MaxKillTimeout; limit > 0 {
		grace = min(grace, limit)
	}
	return params{
		now: l.r.cfg.Clock.Now(), policy: l.task.RestartPolicy(l.alloc.JobType), again: l.task.RestartsOnSuccess(l.alloc.JobType),
		jitter: rand.Float64(), contact: l.contacted(), shut: !l.r.gate.Load(), grace: grace, delay: l.task.ShutdownDelay,
	}
}

// launch starts an operation. Its context ends with an interruption alone.
func (l *loop) launch(ctx context.Context, o op) {
	if o == opPrestart {
		l.seen = l.alloc
		if !l.left && l.snap.Attempt == 0 && !hasEvent(l.snap.Events, TaskSetup) {
			l.snap.note(l.r.cfg.Clock.Now().Wall, TaskSetup, nil)
			l.flushBy(time.Now().Add(eventPause))
		}
	}
	if l.bg == nil || l.bg.Closed() && (o == opPrestart || o == opRebuild) {
		l.bg = guard.NewGroup(ctx)
	}
	x := &operation{
		TaskRunner: l.r, op: o, snap: l.snap, alloc: l.alloc, seen: l.seen, task: l.task, out: l.out,
		bg: l.bg, known: l.known, recovered: l.taken, orphan: l.orphan, leftover: l.left, tries: l.failed,
		log: l.r.log.With("attempt", l.snap.Attempt, "driver", l.task.Driver),
	}
	if o == opSignal {
		x.signal = l.signals[0].name
	}
	if o == opUpdate {
		l.seen = l.alloc
	}
	octx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	cur := &running{op: o, x: x, cancel: cancel, grace: l.snap.Resume.Grace, began: time.Now()}
	cur.call = guard.Spawn(func() error {
		defer cancel(nil)
		cur.res = x.perform(octx)
		return nil
	})
	if o == opDelay { // its only call is Wait, which the operation does not guard
		cur.abandonAt = time.Now().Add(l.snap.Resume.Delay.Left(l.r.cfg.Clock.Now()) + guard.Late)
	}
	l.cur = cur
}

func hasEvent(events []Event, k Kind) bool {
	for _, e := range events {
		if e.Kind == k {
			return true
		}
	}
	return false
}

// over is closed when the operation under way has returned.
func (l *loop) over() <-chan struct{} {
	if l.cur == nil {
		return nil
	}
	return l.cur.call.Done()
}

// preempt interrupts the operation under way if a request or a deadline makes
// something else matter more.
func (l *loop) preempt() {
	if l.cur == nil || l.cur.interrupted {
		return
	}
	var yield bool
	switch l.cur.op {
	case opWait:
		yield = l.next() != opWait
	case opDelay:
		yield = l.next() != opDelay
	case opStop:
		yield = l.cur.grace != l.snap.Resume.Grace
	case opPrestart, opPrepare, opStart, opResume, opRebuild, opPoststart, opUpdate, opSignal:
		yield = l.snap.Kill != nil
	}
	if yield {
		l.interrupt(errInterrupted, time.Now().Add(l.patience()))
	}
}

func (l *loop) next() op { return next(l.snap, l.facts()) }

// patience is how long an interrupted operation is waited for. Operations guard
// their calls themselves, but for the Wait that most tasks spend their life in.
func (l *loop) patience() time.Duration {
	switch l.cur.op {
	case opWait, opDelay:
		return guard.Late
	case opStart:
		return startLateness + guard.Late
	}
	return 2 * guard.Late
}

func (l *loop) interrupt(cause error, abandonAt time.Time) {
	l.cur.interrupted = true
	l.cur.cancel(cause)
	if l.cur.abandonAt.IsZero() || abandonAt.Before(l.cur.abandonAt) {
		l.cur.abandonAt = abandonAt
	}
}

// detach begins the end of Run. What tidies up, or has just been asked of the
// driver, gets most of the time there is.
func (l *loop) detach() {
	l.r.detached.Store(true)
	l.bound = time.Now().Add(detachLimit)
	if l.cur == nil {
		return
	}
	switch l.cur.op {
	case opStart, opPrekill, opExited, opAbort, opCleanup:
		l.cur.abandonAt = l.bound
	default:
		l.interrupt(errDetached, l.bound)
	}
}

// due does what a deadline asks for.
func (l *loop) due() {
	now := time.Now()
	switch {
	case !l.isDurable():
		if !now.Before(l.retryAt) {
			_ = l.commit()
		}
	case !l.flushAt.IsZero() && (!now.Before(l.flushAt) || !l.bound.IsZero()):
		_ = l.commit()
	}
	if l.cur == nil {
		return
	}
	if !l.bound.IsZero() && !l.cur.interrupted && !now.Before(l.bound.Add(-guard.Late)) {
		l.interrupt(errDetached, l.bound)
	}
	if at := l.cur.abandonAt; !at.IsZero() && !now.Before(at) && !l.cur.call.Returned() {
		l.cur.cancel(guard.ErrAbandoned)
		l.r.log.Error("operation does not end and is abandoned", "operation", l.cur.op, "stack", l.cur.call.Stack())
		res := result{op: l.cur.op, canceled: true}
		l.cur = nil
		l.fold(res)
	}
}

// alarm is how long the loop may sleep; false: until something happens.
func (l *loop) alarm() (d time.Duration, ok bool) {
	now := l.at.wall
	after := func(left time.Duration) {
		if !ok || left < d {
			d, ok = max(0, left), true
		}
	}
	until := func(at time.Time) {
		if !at.IsZero() {
			after(at.Sub(now))
		}
	}
	if !l.isDurable() {
		until(l.retryAt)
	} else {
		until(l.flushAt)
	}
	if l.redoAt.After(now) {
		until(l.redoAt)
	}
	if left := l.backoff(); left > 0 {
		after(left)
	}
	if l.cur != nil {
		until(l.cur.abandonAt)
		if !l.bound.IsZero() && !l.cur.interrupted {
			until(l.bound.Add(-guard.Late))
		}
	}
	return d, ok
}
