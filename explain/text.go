// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package explain

import (
	"strings"
	"time"
)

// Text is the reason in English, with its times as they are now.
func (r Reason) Text(now time.Time) string {
	s := r.text()
	if !r.Since.IsZero() {
		if r.Kind == Failure {
			s += ", " + span(now.Sub(r.Since)) + " ago"
		} else {
			s += ", for " + span(now.Sub(r.Since))
		}
	}
	if !r.Until.IsZero() {
		if left := r.Until.Sub(now); left > 0 {
			s += ", in " + span(left)
		} else {
			s += ", now"
		}
	}
	return s
}

// span is a duration, coarse as people say it.
func span(d time.Duration) string {
	d = max(0, d)
	unit := time.Second
	switch {
	case d < 10*time.Second:
		unit = 100 * time.Millisecond
	case d >= 2*time.Hour:
		unit = time.Minute
	}
	s := d.Round(unit).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func (r Reason) text() string {
	a := func(k string) string { return r.Attrs[k] }
	q := `"` + r.Subject + `"`
	switch r.Kind {
	case Hook:
		return "hook " + q + " is at work: " + a("callback")
	case Driver:
		return "driver " + q + " is at work: " + a("step")
	case Disk:
		return join("the state cannot be written, nothing new is done", a("error")) + "; it is tried again"
	case Busy:
		return "its runner does not answer: the disk may hang"
	case Step:
		return "at work: " + r.Subject
	case Backoff:
		return "the pause of the restart policy ends"
	case Retry:
		return join(r.Subject+" failed", a("error")) + "; it is tried again"
	case Contact:
		return "the control plane has not spoken since the agent began: the task may have been moved elsewhere"
	case Gate:
		return "its alloc does not let it start yet"
	case Prerun:
		return "the alloc's prerun hooks are not done"
	case Prekill:
		return "the alloc's prekill hooks are not done"
	case Task:
		return "task " + q + " must first " + must(a("condition"))
	case Check:
		return join("check "+q+" must pass, it is "+a("state"), a("output"))
	case Healthy:
		return "it counts as healthy if it runs on like this"
	case Deadline:
		return "it counts as unhealthy if it is not healthy"
	case Delay:
		return "its shutdown delay ends"
	case Grace:
		return "its stop signal was sent; it is killed"
	case Exit:
		return join("it runs until it exits", a("reason"))
	}
	return r.later(a)
}

// later has words for the end and the future.
func (r Reason) later(a func(string) string) string {
	switch r.Kind {
	case Alloc:
		return "it is kept until its alloc is over"
	case Ending:
		return join("the alloc is being ended ("+r.Subject+")", a("reason"))
	case Restarting:
		return join("a restart was asked for", a("reason"))
	case MaxRun:
		return "its maximum run time is over and it is ended"
	case Failure:
		return join(r.Subject, a("error"))
	case Start:
		return "it is started (attempt " + a("attempt") + ")"
	case Stop:
		return join("it is stopped", a("reason"))
	case Cleanup:
		return "what is left of it is given back"
	case IfExited:
		return r.ifExited(a)
	case Nothing:
		return join("nothing: it has ended", a("reason"))
	}
	return join(join(string(r.Kind), r.Subject), r.attrs())
}

// brief is a duration to a tenth of a second: nobody waits nanoseconds.
func brief(duration string) string {
	if d, err := time.ParseDuration(duration); err == nil && d >= time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return duration
}

func (r Reason) ifExited(a func(string) string) string {
	s := "if it exited with " + a("exit_code")
	if a("oom_killed") != "" {
		s += " for want of memory"
	}
	switch a("action") {
	case "restart":
		s += ": restarted"
		if d := a("delay"); d != "" && d != "0s" {
			s += " after " + brief(d)
		} else {
			s += " at once"
		}
	case "fail":
		s += ": failed"
	default:
		s += ": complete"
	}
	if why := a("reason"); why != "" {
		s += " (" + why + ")"
	}
	return s
}

// must says what a condition asks for.
func must(condition string) string {
	switch condition {
	case "started":
		return "be started"
	case "healthy":
		return "be healthy"
	case "completed":
		return "complete"
	case "running":
		return "run"
	case "ended":
		return "end"
	}
	return "be " + condition
}

func join(s, more string) string {
	if more == "" {
		return s
	}
	return s + ": " + more
}
