// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package restart decides what follows the end of a task's attempt. It is one
// pure function over the policy, the exit and what is remembered of the attempts
// before, so a host can ask it what would happen:
//
//	restart.Decide(restart.Input{Policy: task.RestartPolicy(job), Exit: &driver.ExitResult{Code: 137}})
//
// and of a task that runs, with its counters: taskrunner.Snapshot.IfExited.
//
//	the attempt ended ─┬─ cannot be mended ───────────────────────────▶ fail
//	                   ├─ somebody asked for a restart ───────────────▶ restart, at once, not counted
//	                   ├─ an on_exit rule fits ─┬─ fail, complete ────▶ fail, complete
//	                   │                        └─ restart ─┐
//	                   ├─ exit 0 of a task that is done then│─────────▶ complete
//	                   └─ counted ◀─────────────────────────┘
//	                        ├─ no attempts ───────────────────────────▶ fail, or complete after exit 0
//	                        ├─ attempts left in this window ──────────▶ restart after the delay
//	                        └─ used up: mode fail ────────────────────▶ fail
//	                                    mode delay ───────────────────▶ restart in the next window
//
// A task that is killed is never restarted; that needs no decision and is not
// made here.
package restart

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
)

// Window is what is remembered from attempt to attempt, persisted with the task:
// an agent that restarts gives a crash loop no fresh budget.
type Window struct {
	WindowStart bootclock.Instant `json:"window_start,omitzero"`  // the first counted end in it
	WindowCount int               `json:"window_count,omitempty"` // restarts counted since
	// Streak counts restarts in a row for an exponential delay. A healthy run ends
	// it; the window does not.
	Streak int `json:"streak,omitempty"`
}

// Input is an attempt that has ended. Policy is required.
type Input struct {
	Policy spec.RestartPolicy // as spec.Task.RestartPolicy gives it
	// OnSuccess says that exit 0 is followed by another start (spec.Task.RestartsOnSuccess).
	OnSuccess bool
	Window    Window
	Exit      *driver.ExitResult // nil: it never ran
	Ran       time.Duration      // from its start to its exit
	Final     bool               // trying again cannot mend what ended it
	Asked     bool               // somebody asked for the restart that ended it
	Counted   bool               // … and it obeys the policy
	Reason    string             // for people; "" is made of Exit
	Now       bootclock.Instant
	Jitter    float64 // in [0, 1): how much of the random part of a delay
}

// Verdict is what follows.
type Verdict struct {
	Action spec.ExitAction
	Delay  time.Duration // before a restart
	Reason string        // for people; never empty
	Window Window        // as it is from now on
}

// Decide is the restart policy: the first rule that fits.
//
//  1. What cannot be mended fails.
//  2. A restart asked for is free and immediate, unless it is to be counted. The
//     exit it brought about is not judged.
//  3. The first rule of on_exit that fits the exit: fail and complete are final,
//     restart is a counted restart (rules 5 to 8) even where rule 4 would end it.
//     An exit nobody saw (Err) fits a rule that names code −1 and no other.
//  4. Exit 0 ends a task whose kind does not restart on success.
//  5. With 0 attempts nothing restarts.
//  6. The window starts with the first counted end and anew when its interval
//     has passed; interval 0 is one window for the whole life.
//  7. Attempts used up: mode fail fails the task; mode delay waits out the rest
//     of the window, never less than the delay. A window without end has no rest.
//  8. Otherwise: the delay, and a random 0–25 % of it. An exponential delay is
//     doubled with each restart in a row up to its cap, and begins anew after an
//     attempt that ran for reset_after.
func Decide(in Input) Verdict {
	v := Verdict{Action: spec.ExitRestart, Reason: in.reason(), Window: in.Window}
	again := in.OnSuccess
	if r := in.rule(); r != nil {
		if r.Action != spec.ExitRestart {
			v.Action = r.Action
			v.Reason += ": a rule of on_exit says " + string(r.Action)
			return v
		}
		again = true
	}
	ok := in.Exit != nil && in.Exit.OK()
	switch {
	case in.Final:
		v.Action = spec.ExitFail
		return v
	case in.Asked && !in.Counted:
		return v
	case ok && !in.Asked && !again:
		v.Action, v.Reason = spec.ExitComplete, "completed"
		return v
	case in.Policy.Attempts <= 0:
		if v.Action = spec.ExitFail; ok && !in.Asked {
			v.Action = spec.ExitComplete
		}
		v.Reason += ": the policy allows no restart"
		return v
	}
	return in.counted(v)
}

// counted obeys attempts, window and delay.
func (in Input) counted(v Verdict) Verdict {
	pol, w := in.Policy, &v.Window
	elapsed := in.Now.Since(w.WindowStart)
	if w.WindowCount == 0 || pol.Interval > 0 && elapsed >= pol.Interval {
		w.WindowStart, w.WindowCount, elapsed = in.Now, 0, 0
	}
	delay := in.delay(w)
	delay += time.Duration(in.Jitter * float64(delay) / 4)
	if w.WindowCount < pol.Attempts {
		w.WindowCount++
		v.Delay = delay
		return v
	}
	if pol.Mode == spec.RestartDelay && pol.Interval > 0 {
		v.Delay = max(pol.Interval-elapsed, delay)
		v.Reason += fmt.Sprintf(": %d restarts within %s, waiting for the next window", pol.Attempts, pol.Interval)
		return v
	}
	v.Action, v.Window = spec.ExitFail, in.Window
	v.Reason += fmt.Sprintf(": %d restarts used up", pol.Attempts)
	if pol.Interval > 0 {
		v.Reason += " within " + pol.Interval.String()
	}
	return v
}

// delay is the one of now without its random part, and counts the streak.
func (in Input) delay(w *Window) time.Duration {
	pol := in.Policy
	if pol.DelayFunction != spec.DelayExponential {
		w.Streak = 0
		return pol.Delay
	}
	if in.Exit != nil && in.Ran >= cmp.Or(pol.ResetAfter, spec.DefaultResetAfter) {
		w.Streak = 0
	}
	limit := cmp.Or(pol.MaxDelay, max(spec.DefaultMaxDelay, pol.Delay))
	d := min(pol.Delay, limit)
	for range w.Streak {
		if d <= 0 || d >= limit {
			break
		}
		d = min(2*d, limit) // no overflow: one doubling of what is below the limit
		if d < 0 {
			d = limit
		}
	}
	w.Streak++
	return d
}

// rule is the first one of on_exit that fits, nil if none does.
func (in Input) rule() *spec.ExitRule {
	if in.Exit == nil || in.Asked || in.Final {
		return nil
	}
	e := *in.Exit
	fits := func(r spec.ExitRule) bool {
		switch {
		case slices.Contains(r.Codes, e.Code):
			return true
		case e.Err != "":
			return false
		}
		return r.OOM && e.OOMKilled ||
			slices.ContainsFunc(r.Signals, func(s string) bool { return e.Signal != 0 && spec.SignalNumber(s) == e.Signal }) ||
			len(r.Codes) == 0 && len(r.Signals) == 0 && !r.OOM
	}
	if i := slices.IndexFunc(in.Policy.OnExit, fits); i >= 0 {
		return &in.Policy.OnExit[i]
	}
	return nil
}

func (in Input) reason() string {
	e := in.Exit
	switch {
	case in.Reason != "":
		return in.Reason
	case in.Asked:
		return "a restart was asked for"
	case e == nil:
		return "the start failed"
	case e.OOMKilled:
		return "killed by the kernel for want of memory"
	case e.Err != "":
		return e.Err
	case e.Signal != 0:
		return "ended by signal " + strconv.Itoa(e.Signal)
	}
	return "exit code " + strconv.Itoa(e.Code)
}
