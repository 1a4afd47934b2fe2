// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

// The machine is two pure functions: next says what to do, apply what came of it.
// The loop does the rest and decides nothing.
//
// Invariants of every snapshot that apply or a request makes (TestMachine and
// FuzzMachine hold them):
//
//	I1  There is a handle if and only if the phase is running, stopping or exited.
//	I2  exited has an exit. Final has a finish time. done and dead are final, and
//	    no phase but exited, done and dead is.
//	I3  Starting is entered from ready alone, and never once Kill is set: a task
//	    is not started after an accepted kill.
//	I4  A new attempt (Attempt grows) begins only where nothing is left of the old
//	    one: its start failed and was cleaned up, or opExited, opAbort or opResume
//	    has destroyed it. Never two lives.
//	I5  dead is entered from done through the stop hooks. It is left only by a
//	    restart that asks for dead tasks, never once Kill is set.
//	I6  Kill stays. Seq, Attempt and Restarts never fall.
//	I7  A task that ended by a kill is failed only if the kill says so.
type op uint8

const (
	opNone     op = iota // dead: Run returns
	opIdle               // wait for an event
	opRecover            // make a task of an earlier agent or driver known again
	opResume             // a start intent of an earlier agent: begin it again, or destroy and count on
	opPrestart           // prestart hooks
	opPrepare            // the driver's configuration, then its own preparation
	opStart
	opRebuild   // prestart hooks of a task that runs already
	opPoststart // poststart hooks
	opUpdate    // update hooks
	opSignal
	opWait
	opPrekill // prekill hooks
	opDelay   // the shutdown delay, or the task's exit
	opStop
	opExited  // exited hooks, Destroy, cgroup
	opAbort   // Destroy what an unfinished start may have left
	opCleanup // stop hooks

	// The rest are transitions without work.
	opQuit   // killed before a start
	opToStop // nothing to wait for before the stop signal
	opRevive // a dead task is wanted again
)

// inline says that the operation is its own result.
func (o op) inline() bool { return o >= opQuit }

// needsDisk says that the operation must not begin while something is not
// persisted: it starts something new, or destroys what only memory knows.
func (o op) needsDisk() bool {
	switch o {
	case opNone, opResume, opPrestart, opPrepare, opStart, opRebuild, opPoststart, opUpdate, opExited, opCleanup, opRevive:
		return true
	}
	return false
}

// facts is what next must know beside the snapshot: what holds in this process.
type facts struct {
	durable   bool // everything is on disk
	gate      bool // open
	contact   bool // the control plane has spoken
	linger    bool // Run goes on when the task is dead
	backoff   bool // not over
	attached  bool // the driver knows the task: started or recovered here
	resumed   bool // opResume says: start the same attempt again
	hooked    bool // … and its prestart hooks have run here
	prepared  bool // the task's configuration for this attempt is made
	rebuild   bool // prestart hooks of a recovered task are outstanding, and due
	poststart bool // poststart hooks are outstanding
	update    bool // update hooks are outstanding
	signal    bool // a signal is to be sent
	stopped   bool // Stop has returned
	retry     bool // recover or stop has failed and must not be tried again yet
}

// next decides the single next operation.
func next(s Snapshot, f facts) op {
	o := s.next(f)
	if o.needsDisk() && !f.durable {
		return opIdle
	}
	return o
}

func (s Snapshot) next(f facts) op {
	killed := s.Kill != nil
	switch s.Phase {
	case Pending:
		switch {
		case killed:
			return opQuit
		case f.backoff || s.NeedContact && !f.contact || !f.gate:
			return opIdle
		}
		return opPrestart
	case Ready:
		switch {
		case killed:
			return opQuit
		case !f.gate: // it closed during the hooks
			return opIdle
		}
		return opPrepare
	case Starting:
		return s.nextStarting(f)
	case Running, Stopping:
		if !f.attached {
			if f.retry {
				return opIdle
			}
			return opRecover
		}
		return s.nextRunning(f)
	case Exited:
		return opExited
	case Done:
		return opCleanup
	}
	switch {
	case killed || !f.linger:
		return opNone
	case s.Restarting != nil:
		return opRevive
	}
	return opIdle
}

// nextStarting: what is prepared is started. After a restart of the agent nothing
// is, and the driver must first say what becomes of the intent.
func (s Snapshot) nextStarting(f facts) op {
	switch {
	case s.Kill != nil:
		return opAbort
	case f.prepared:
		return opStart
	case !f.resumed && f.retry:
		return opIdle
	case !f.resumed && !f.hooked:
		return opResume
	case !f.hooked:
		return opPrestart
	}
	return opPrepare
}

func (s Snapshot) nextRunning(f facts) op {
	switch {
	case s.Phase == Stopping && !f.stopped:
		return opStop
	case s.Phase == Stopping:
		return opWait
	case s.Kill == nil && s.Restarting == nil:
		switch {
		case f.rebuild && f.durable:
			return opRebuild
		case f.poststart && f.durable && !f.rebuild:
			return opPoststart
		case f.signal:
			return opSignal
		case f.update && f.durable:
			return opUpdate
		}
		return opWait
	case !s.Resume.Prekilled:
		return opPrekill
	case s.Kill != nil && !s.Resume.Delay.IsZero() && !s.Kill.NoShutdownDelay:
		return opDelay
	}
	return opToStop
}

// result is what an operation brings back.
type result struct {
	op       op
	canceled bool // it was interrupted and has nothing to tell
	err      error
	kind     Kind // of the event that tells err, where it fails an attempt
	note     map[string]string
	events   []Event // of hooks; without Seq
	handle   *driver.Handle
	exit     *driver.ExitResult
	leaked   error // the task could not be stopped or destroyed
	again    bool  // opResume: start the same attempt; opStart: the ID was taken
	lost     bool  // opRecover: the task is not there any more
	restored bool  // … and this process had never seen it
	orphan   bool  // opRecover: whoever watched the task died, and another one has it now
}

// params is what apply needs to know of the world.
type params struct {
	now     bootclock.Instant
	policy  spec.RestartPolicy
	again   bool          // exit 0 is followed by another start
	jitter  float64       // [0, 1)
	contact bool          // the control plane has spoken, or need not
	shut    bool          // the gate is closed
	grace   time.Duration // kill timeout, capped
	delay   time.Duration // shutdown delay
}

// effect is what the loop must do about a transition.
type effect uint8

const (
	same     effect = iota // nothing has changed
	volatile               // publish: a crash only repeats the step
	durable                // persist, then publish
)

// apply folds a finished operation into s.
func apply(s Snapshot, r result, p params) (Snapshot, effect) {
	before := s.Seq
	for _, e := range r.events {
		s.note(e.Time, e.Kind, e.Attrs)
	}
	eff := same
	if !r.canceled {
		s, eff = s.fold(r, p)
	}
	if s.Seq != before {
		eff = durable
	}
	return s, eff
}

func (s Snapshot) fold(r result, p params) (Snapshot, effect) {
	if r.exit != nil && r.op != opExited {
		return s.exited(*r.exit, r.leaked, p), durable
	}
	switch r.op {
	case opRecover:
		if r.lost {
			return s.gone(r, p), durable
		}
	case opResume:
		if !r.again {
			return s.resumeElsewhere(r, p), durable
		}
	case opPrestart:
		if r.err != nil {
			return s.failedStart(r, p), durable
		}
		if s.Phase == Pending {
			s.Phase = Ready
			return s, volatile
		}
	case opPrepare, opStart:
		return s.started(r, p)
	case opPrekill:
		return s.prekilled(p), durable
	case opDelay, opToStop:
		return s.stopping(p), durable
	case opExited:
		return s.cleaned(r, p)
	case opAbort, opQuit:
		s.leak(r.leaked, p)
		s.endKilled(p)
		s.Phase, s.Handle = Done, nil
		return s, durable
	case opCleanup:
		s.Phase = Dead
		return s, durable
	case opRevive:
		return s.revived(p), durable
	}
	return s, same
}

// started folds the two steps of a start: its intent, and the driver's answer.
func (s Snapshot) started(r result, p params) (Snapshot, effect) {
	switch {
	case r.err != nil:
		return s.failedStart(r, p), durable
	case r.op == opPrepare && s.Phase == Ready && (s.Kill != nil || p.shut): // meanwhile; again when the gate opens
		return s, same
	case r.op == opPrepare && s.Phase == Ready:
		s.Phase, s.Resume.Boot, s.NeedContact = Starting, p.now.Boot, false
		s.Backoff = bootclock.Deadline{}
		return s, durable
	case r.op == opPrepare: // again, after a restart of the agent
		return s, same
	case r.again: // the ID was taken; what had it is destroyed
		s.Attempt++
		s.Resume.Replaced = true
		return s, durable
	}
	s.Phase, s.Handle, s.Exit, s.StartedAt, s.Resume.Started = Running, r.handle, nil, p.now.Wall, p.now
	s.Resume.Replaced = false
	s.note(p.now.Wall, Started, r.note)
	return s, durable
}

// failedStart folds an attempt that never ran. Nothing is left of it.
func (s Snapshot) failedStart(r result, p params) Snapshot {
	s.note(p.now.Wall, r.kind, attrs(r.note, "error", r.err.Error()))
	c := restart.Input{Reason: r.err.Error(), Final: !driver.IsRecoverable(r.err)}
	if s.leak(r.leaked, p) {
		c.Final = true
	}
	s.Phase = Done
	if s.decided(c, p); !s.Final {
		s.Phase = Pending
		s.Attempt++
	}
	return s
}

// exited folds an exit that was seen, or that never will be.
func (s Snapshot) exited(exit driver.ExitResult, leaked error, p params) Snapshot {
	s.leak(leaked, p)
	s.Phase, s.Exit = Exited, &exit
	s.note(p.now.Wall, Terminated, exitAttrs(exit))
	s.decided(s.cause(exit, leaked, p.now), p)
	return s
}

// gone folds a task that could not be recovered. One that an earlier agent left
// running may have been placed elsewhere meanwhile, so its next start waits for
// the control plane; one that was lost under our eyes has ended unseen.
func (s Snapshot) gone(r result, p params) Snapshot {
	exit := driver.ExitResult{Code: -1, Err: "exit not seen: " + r.err.Error()}
	if !r.restored || s.Kill != nil {
		return s.exited(exit, r.leaked, p)
	}
	s.Phase, s.Exit = Exited, &exit
	s.lost(r.err, p)
	return s
}

// lost schedules the next start of a task that an earlier agent started and
// that is not there any more. The restart policy does not count it.
func (s *Snapshot) lost(err error, p params) {
	s.note(p.now.Wall, FailedRestoring, map[string]string{"error": err.Error()})
	s.stopOver()
	s.Reason = "lost while the agent was away"
	s.Restarts++
	s.LastRestart, s.Backoff = p.now.Wall, bootclock.Deadline{}
	if s.NeedContact = !p.contact; s.NeedContact {
		s.note(p.now.Wall, AwaitingContact, nil)
	}
}

// resumeElsewhere folds a start intent that cannot be taken up as it was: what it
// may have left is destroyed. After a reboot the task is certainly gone.
func (s Snapshot) resumeElsewhere(r result, p params) Snapshot {
	switch {
	case r.leaked != nil:
		r.kind, r.err = DriverFailure, r.leaked
		return s.failedStart(r, p)
	case s.Resume.Boot != p.now.Boot:
		s.lost(r.err, p)
	}
	s.Phase = Pending
	s.Attempt++
	return s
}

// prekilled folds the end of the prekill hooks: the shutdown delay begins, if
// there is one to keep.
func (s Snapshot) prekilled(p params) Snapshot {
	s.Resume.Prekilled = true
	switch {
	case s.Kill == nil || p.delay <= 0:
	case s.Kill.NoShutdownDelay:
		s.note(p.now.Wall, SkippingDelay, nil)
	default:
		s.Resume.Delay = bootclock.Deadline{From: p.now, Delay: p.delay}
		s.note(p.now.Wall, ShutdownDelay, map[string]string{"delay": p.delay.String()})
		return s
	}
	return s.stopping(p)
}

func (s Snapshot) stopping(p params) Snapshot {
	s.Phase = Stopping
	s.Resume.Grace = bootclock.Deadline{From: p.now, Delay: s.grace(p)}
	return s
}

// grace is how long the task has from the stop signal to SIGKILL.
func (s Snapshot) grace(p params) time.Duration {
	if s.Kill == nil || s.Kill.Grace == 0 {
		return p.grace
	}
	return max(0, min(s.Kill.Grace, p.grace))
}

// cleaned folds the end of an attempt: nothing is left of it.
func (s Snapshot) cleaned(r result, p params) (Snapshot, effect) {
	eff := volatile
	if s.leak(r.leaked, p) {
		if !s.Final {
			s.finish(p.now, true, "its last attempt could not be ended")
		}
		eff = durable
	}
	s.Handle, s.Phase = nil, Done
	if !s.Final {
		s.Phase = Pending
		s.Attempt++
	}
	return s, eff
}

// revived makes a dead task a fresh one, with a fresh restart window.
func (s Snapshot) revived(p params) Snapshot {
	s.note(p.now.Wall, Restarting, attrs(nil, "reason", s.Restarting.Reason, "delay", "0s"))
	s.Reason = s.Restarting.Reason
	s.Phase, s.Final, s.Failed, s.Restarting = Pending, false, false, nil
	s.FinishedAt, s.Backoff, s.Resume = time.Time{}, bootclock.Deadline{}, Resume{}
	s.Attempt++
	s.Restarts++
	s.LastRestart = p.now.Wall
	return s
}

// decided settles what follows the end of an attempt.
func (s *Snapshot) decided(c restart.Input, p params) {
	if s.Kill != nil {
		s.endKilled(p)
		return
	}
	v := s.verdict(c, p)
	s.stopOver()
	s.Resume.Window = v.Window
	if v.Action != spec.ExitRestart {
		if v.Action == spec.ExitFail || p.again || c.Exit != nil && !c.Exit.OK() {
			s.note(p.now.Wall, NotRestarting, attrs(nil, "reason", v.Reason))
		}
		s.finish(p.now, v.Action == spec.ExitFail, v.Reason)
		return
	}
	s.Reason = v.Reason
	s.Restarts++
	s.LastRestart = p.now.Wall
	s.Backoff = bootclock.Deadline{}
	if v.Delay > 0 {
		s.Backoff = bootclock.Deadline{From: p.now, Delay: v.Delay}
	}
	s.note(p.now.Wall, Restarting, attrs(nil, "reason", v.Reason, "delay", v.Delay.String()))
}

// leak notes that something of the task could not be ended. It is never started
// again: that could mean two lives.
func (s *Snapshot) leak(err error, p params) bool {
	if err != nil {
		s.Resume.Leaked, s.Restarting = true, nil
		s.note(p.now.Wall, Leaked, map[string]string{"error": err.Error()})
	}
	return err != nil
}

// endKilled: the kill is carried out.
func (s *Snapshot) endKilled(p params) {
	if s.Final {
		return
	}
	if s.Kill.Kind == "" || s.Resume.Killing {
		s.note(p.now.Wall, Killed, attrs(nil, "reason", s.Kill.Reason))
	}
	reason := s.Kill.Reason
	if reason == "" {
		reason = "killed"
	}
	s.finish(p.now, s.Kill.Failed, reason)
}

func (s *Snapshot) finish(now bootclock.Instant, failed bool, reason string) {
	s.Final, s.Failed, s.Reason, s.FinishedAt = true, failed, reason, now.Wall
	s.Backoff, s.NeedContact = bootclock.Deadline{}, false
	s.stopOver()
}

// stopOver forgets how far a stop had come.
func (s *Snapshot) stopOver() {
	s.Restarting = nil
	s.Resume.Prekilled, s.Resume.Delay, s.Resume.Grace = false, bootclock.Deadline{}, bootclock.Deadline{}
}
