// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"errors"
	"time"

	"github.com/nodekeep/nodekeep/spec"
)

// fold takes the result of an operation: first what holds in this process only,
// then the snapshot.
func (l *loop) fold(res result) {
	l.learn(res)
	s, eff := apply(l.snap, res, l.params())
	_ = l.move(s, eff) // a commit that fails is repeated
}

// learn updates the facts.
func (l *loop) learn(res result) {
	if res.err != nil {
		l.trouble = res.err
	}
	switch res.op {
	case opRecover:
		l.recovered(res)
	case opResume:
		if l.f.resumed = res.again && !res.canceled; !l.f.resumed && res.err != nil {
			l.tryLater(res.canceled)
		}
	case opPrestart:
		l.f.hooked = !res.canceled && res.err == nil
	case opPrepare:
		l.f.prepared = !res.canceled && res.err == nil
	case opStart:
		switch {
		case res.handle != nil:
			l.f = facts{attached: true, poststart: l.r.any(cbPoststart)}
			l.known, l.left = true, false
		case res.again:
			l.f.prepared = false // the configuration holds the ID
		}
	case opRebuild:
		if l.f.rebuild = res.canceled || res.again; res.again {
			l.tryLater(true)
		} else if !res.canceled {
			l.failed, l.redoAt = 0, time.Time{}
		}
	case opPoststart:
		l.f.poststart = res.canceled || res.err != nil
		l.lostSight(res)
	case opSignal:
		l.answerSignal(res)
	case opWait:
		l.lostSight(res)
	case opStop:
		l.f.stopped = !res.canceled
	}
}

func (l *loop) recovered(res result) {
	switch {
	case res.canceled:
	case res.lost:
		l.r.log.Warn("task was not found again", "task_id", l.snap.Handle.TaskID, "error", res.err)
	case res.err != nil:
		l.tryLater(true)
	default:
		first := !l.known
		l.f.attached, l.f.stopped = true, false
		l.failed, l.redoAt = 0, time.Time{}
		if first {
			l.known, l.taken, l.orphan = true, true, res.orphan && l.snap.Phase == Stopping
			l.f.rebuild, l.f.poststart = l.r.any(cbPrestart), l.r.any(cbPoststart)
			l.r.log.Info("task recovered", "task_id", l.snap.Handle.TaskID, "pid", l.snap.Handle.PID, "exited", res.exit != nil)
		}
	}
}

// lostSight: the driver cannot say how the task fares, which says nothing of the
// task. It is recovered, after a pause.
func (l *loop) lostSight(res result) {
	if res.err == nil || res.canceled {
		return
	}
	l.f.attached = false
	l.tryLater(true)
	l.r.log.Warn("the driver lost sight of the task; recovering", "error", res.err)
}

// tryLater sets the next try of what failed: 1 s, doubled up to a minute; while
// the task is to be stopped as a stop is tried again.
func (l *loop) tryLater(really bool) {
	if !really {
		return
	}
	l.failed++
	d := backoff(l.failed, time.Second, 2, time.Minute)
	if l.snap.Kill != nil {
		d = again(l.failed)
	}
	l.redoAt = time.Now().Add(d)
}

// setPhase makes s the snapshot and forgets what held for the attempt before.
func (l *loop) setPhase(s Snapshot) {
	old := l.snap
	s.Rev = l.nextRev()
	l.snap = s
	if s.Phase == old.Phase && s.Attempt == old.Attempt {
		return
	}
	switch s.Phase {
	case Pending, Exited, Done, Dead:
		l.f = facts{}
		l.known, l.taken, l.orphan, l.left = false, false, false, false
		l.failed, l.redoAt = 0, time.Time{}
	}
	if s.Phase != Running {
		l.failSignals(ErrNotRunning)
	}
}

func (l *loop) nextRev() uint64 {
	l.rev++
	return l.rev
}

func (l *loop) answerSignal(res result) {
	if len(l.signals) == 0 {
		return // answered when the phase changed
	}
	err := res.err
	if res.canceled && err == nil {
		err = ErrNotRunning
	}
	l.signals[0].reply(err)
	l.signals = l.signals[1:]
}

func (l *loop) failSignals(err error) {
	for _, s := range l.signals {
		s.reply(err)
	}
	l.signals = nil
}

func (s signalRequest) reply(err error) {
	if s.answer != nil {
		s.answer <- err
	}
}

// The requests. They run in the loop.

func (l *loop) update(alloc *spec.Alloc) error {
	if alloc.ModifyIndex <= l.alloc.ModifyIndex {
		return nil
	}
	l.alloc, l.task = alloc, alloc.Task(l.r.cfg.Task)
	if !l.r.cfg.Gated && alloc.Stopped() {
		return l.kill(KillRequest{Reason: alloc.DesiredReason})
	}
	return nil
}

func (l *loop) kill(req KillRequest) error {
	if l.snap.Kill == nil {
		l.failed, l.redoAt = 0, time.Time{} // whatever waits for another try is tried now
	}
	return l.move(l.snap.wishKill(req, l.params()))
}

func (l *loop) restart(req RestartRequest) error {
	s, eff, err := l.snap.wishRestart(req, l.r.cfg.Linger, l.params())
	return errors.Join(err, l.move(s, eff))
}

func (l *loop) signal(name, reason string, answer chan<- error) error {
	if l.snap.Phase != Running || l.snap.Kill != nil || l.snap.Restarting != nil {
		return ErrNotRunning
	}
	s := l.snap
	s.note(l.r.cfg.Clock.Now().Wall, Signaling, attrs(nil, "signal", name, "reason", reason))
	l.signals = append(l.signals, signalRequest{name, answer})
	_ = l.move(s, durable) // a store that fails keeps no signal back
	return nil
}
