// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/explain"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

// spot is the callback of a hook that an operation is in.
type spot struct {
	hook  string
	cb    callback
	since time.Time
}

// Explain says what the task waits for, what failed last and what will happen
// next. It asks the loop, which answers between two steps; one that does not until
// ctx ends (its disk hangs) is told as such, beside what was last published.
func (r *TaskRunner) Explain(ctx context.Context) (out explain.TaskReasons) {
	busy := false
	if r.started.Load() {
		err := r.do(ctx, func(l *loop) error { out = l.explain(); return nil })
		if err == nil {
			return out
		}
		busy = ctx.Err() != nil
	}
	s := r.Snapshot()
	out = explain.TaskReasons{Name: r.cfg.Task, State: string(s.State()), Phase: string(s.Phase), Failed: s.failure()}
	switch {
	case busy:
		out.Waiting = []explain.Reason{explain.Of(explain.Busy, "")}
	case s.Phase == Dead:
		out.Next = []explain.Reason{explain.Of(explain.Nothing, "", "reason", s.Reason)}
	default:
		out.Waiting = []explain.Reason{explain.Of(explain.Step, "its runner has not begun, or has let go of it")}
	}
	return out
}

func (l *loop) explain() explain.TaskReasons {
	l.at = turn{time.Now(), l.r.cfg.Clock.Now()}
	s := l.snap
	return explain.TaskReasons{
		Name: l.r.cfg.Task, State: string(s.State()), Phase: string(s.Phase),
		Waiting: l.waiting(), Failed: s.failure(), Next: l.upcoming(),
	}
}

// holds is why next is opIdle: empty if and only if it is not, for the same s and
// f. TestExplore compares the two in every state that can be reached.
func (s Snapshot) holds(f facts) (why []explain.Kind) {
	o := s.next(f)
	if o.needsDisk() && !f.durable {
		return []explain.Kind{explain.Disk}
	}
	if o != opIdle {
		return nil
	}
	hold := func(is bool, k explain.Kind) {
		if is {
			why = append(why, k)
		}
	}
	switch s.Phase {
	case Pending, Ready:
		hold(s.Phase == Pending && f.backoff, explain.Backoff)
		hold(s.Phase == Pending && s.NeedContact && !f.contact, explain.Contact)
		hold(!f.gate, explain.Gate)
	case Dead:
		hold(true, explain.Alloc)
	default:
		hold(f.retry, explain.Retry)
	}
	return why
}

// waiting is the operation under way, or why there is none.
func (l *loop) waiting() (out []explain.Reason) {
	if !l.isDurable() {
		out = append(out, explain.Of(explain.Disk, "").To(l.retryAt))
	}
	if l.cur != nil {
		return append(out, l.doing())
	}
	for _, k := range l.snap.holds(l.facts()) {
		r := explain.Of(k, "")
		switch k {
		case explain.Disk:
			continue // said already
		case explain.Backoff:
			r = explain.Of(k, "", "reason", l.snap.Reason).To(l.at.wall.Add(l.backoff()))
		case explain.Retry:
			r = explain.Of(k, "finding the task again").To(l.redoAt)
			if l.trouble != nil {
				r = explain.Of(k, r.Subject, "error", l.trouble.Error()).To(l.redoAt)
			}
		}
		out = append(out, r)
	}
	return out
}

// doing is the operation under way.
func (l *loop) doing() explain.Reason {
	s, c := l.snap, l.cur
	if at := c.x.spot.Load(); at != nil {
		return explain.Of(explain.Hook, at.hook, "callback", at.cb.String()).From(at.since)
	}
	left := func(d time.Duration) time.Time { return l.at.wall.Add(d) }
	work := func(step string) explain.Reason {
		return explain.Of(explain.Driver, l.task.Driver, "step", step).From(c.began)
	}
	switch c.op {
	case opWait:
		if s.Phase == Stopping {
			return work("wait for the exit")
		}
		return explain.Of(explain.Exit, "").From(s.StartedAt)
	case opDelay:
		return explain.Of(explain.Delay, "").To(left(s.Resume.Delay.Left(l.at.boot)))
	case opStop:
		return explain.Of(explain.Grace, "", "signal", l.task.KillSignal).To(left(s.Resume.Grace.Left(l.at.boot)))
	case opRecover:
		return work("find the task again")
	case opResume:
		return work("take up a start of an earlier agent")
	case opPrepare:
		return work("prepare")
	case opStart:
		return work("start")
	case opSignal:
		return work("signal")
	case opExited, opAbort:
		return work("remove what is left of the attempt")
	}
	return explain.Of(explain.Step, map[op]string{
		opPrestart: "prestart hooks", opRebuild: "prestart hooks of a task that runs", opPoststart: "poststart hooks",
		opUpdate: "update hooks", opPrekill: "prekill hooks", opCleanup: "stop hooks",
	}[c.op]).From(c.began)
}

// upcoming is what will happen next, as far as it is decided; of what is not, what
// would follow.
func (l *loop) upcoming() []explain.Reason {
	s := l.snap
	one := func(r explain.Reason) []explain.Reason { return []explain.Reason{r} }
	switch {
	case s.Phase == Dead && s.Restarting != nil:
		return one(explain.Of(explain.Start, "", "attempt", strconv.Itoa(s.Attempt+1), "reason", s.Restarting.Reason))
	case s.Phase == Dead:
		return one(explain.Of(explain.Nothing, "", "reason", s.Reason))
	case s.Final:
		return one(explain.Of(explain.Cleanup, "", "reason", s.Reason))
	case s.Kill != nil:
		return one(explain.Of(explain.Stop, "", "reason", s.Kill.Reason))
	case s.Restarting != nil:
		return one(explain.Of(explain.Restarting, "", "reason", s.Restarting.Reason))
	case s.Phase == Pending, s.Phase == Ready, s.Phase == Starting:
		r := explain.Of(explain.Start, "", "attempt", strconv.Itoa(s.Attempt), "reason", s.Reason)
		if left := l.backoff(); left > 0 {
			r = r.To(l.at.wall.Add(left))
		}
		return one(r)
	case s.Phase == Exited:
		return one(explain.Of(explain.Start, "", "attempt", strconv.Itoa(s.Attempt+1), "reason", s.Reason))
	}
	return l.ifExited()
}

// ifExited asks the restart policy. It is asked about success, about failure and
// about want of memory where that makes a difference. Delays are without their
// random part.
func (l *loop) ifExited() (out []explain.Reason) {
	p := l.params()
	p.jitter = 0
	var last restart.Verdict
	for i, exit := range []driver.ExitResult{{}, {Code: 1}, {Code: 137, Signal: 9, OOMKilled: true}} {
		v := l.snap.verdict(l.snap.cause(exit, nil, p.now), p)
		if i == 2 && v.Action == last.Action && v.Delay == last.Delay {
			continue
		}
		last = v
		oom, delay := "", ""
		if exit.OOMKilled {
			oom = "true"
		}
		if v.Action == spec.ExitRestart {
			delay = v.Delay.String()
		}
		out = append(out, explain.Of(explain.IfExited, "", "exit_code", strconv.Itoa(exit.Code), "oom_killed", oom,
			"action", string(v.Action), "delay", delay, "reason", v.Reason))
	}
	return out
}

// failure is what went wrong last, as far as the events go back.
func (s Snapshot) failure() *explain.Reason {
	for i := len(s.Events) - 1; i >= 0; i-- {
		e := s.Events[i]
		switch e.Kind {
		case Terminated:
			if e.Attrs["exit_code"] == "0" && e.Attrs["error"] == "" || s.endedByKill(i) {
				continue
			}
		case SetupFailure, FailedValidation, DriverFailure, FailedArtifact, FailedRestoring, HookFailed, AllocUnhealthy, Leaked:
		default:
			continue
		}
		return &explain.Reason{Kind: explain.Failure, Subject: string(e.Kind), Since: e.Time, Attrs: attrs(e.Attrs, "error", e.Text())}
	}
	return nil
}

// endedByKill says that the exit of the i-th event was asked for.
func (s Snapshot) endedByKill(i int) bool {
	for j := i - 1; j >= 0; j-- {
		switch s.Events[j].Kind {
		case Killing, RestartSignaled:
			return true
		case Started:
			return false
		}
	}
	return false
}
