// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

// cause is what the restart policy must know of an exit.
func (s Snapshot) cause(exit driver.ExitResult, leaked error, now bootclock.Instant) restart.Input {
	in := restart.Input{Exit: &exit, Final: leaked != nil}
	if !s.Resume.Started.IsZero() {
		in.Ran = now.Since(s.Resume.Started)
	}
	if s.Restarting != nil && leaked == nil {
		in.Asked, in.Counted, in.Reason = true, s.Restarting.Counted, s.Restarting.Reason
	}
	return in
}

// verdict is the restart policy's, with the counters of s.
func (s Snapshot) verdict(in restart.Input, p params) restart.Verdict {
	in.Policy, in.OnSuccess, in.Window, in.Now, in.Jitter = p.policy, p.again, s.Resume.Window, p.now, p.jitter
	return restart.Decide(in)
}

// IfExited is what would follow if the task, as it is in s, exited that way at
// the time now: pure, nothing is changed. task and job are those of its alloc.
// The delay is the shortest; the real one has a random 0 to 25 % on top. A task
// that is being killed, or will not be started again anyway, is not restarted.
func (s Snapshot) IfExited(task *spec.Task, job spec.JobType, exit driver.ExitResult, now time.Time) restart.Verdict {
	p := params{now: bootclock.Instant{Wall: now}, policy: task.RestartPolicy(job), again: task.RestartsOnSuccess(job)}
	if s.Kill != nil && !s.Final {
		s.endKilled(p)
	}
	if s.Final {
		v := restart.Verdict{Action: spec.ExitComplete, Reason: s.Reason, Window: s.Resume.Window}
		if s.Failed {
			v.Action = spec.ExitFail
		}
		return v
	}
	return s.verdict(s.cause(exit, nil, p.now), p)
}

func exitAttrs(e driver.ExitResult) map[string]string {
	m := attrs(nil, "exit_code", strconv.Itoa(e.Code), "error", e.Err)
	if e.Signal != 0 {
		m["signal"] = strconv.Itoa(e.Signal)
	}
	if e.OOMKilled {
		m["oom_killed"] = "true"
	}
	return m
}
