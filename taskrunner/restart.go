// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
)

// cause is why an attempt is over. A kill is none: a killed task never restarts.
type cause struct {
	ok      bool // exit 0
	final   bool // an error that trying again cannot mend
	asked   bool // somebody asked for the restart
	counted bool // … and it obeys the policy
	reason  string
}

// verdict is what follows. The window is the restart policy's, as it is now.
type verdict struct {
	restart     bool
	failed      bool
	delay       time.Duration
	reason      string
	windowStart bootclock.Instant
	windowCount int
}

// decide is the restart policy: a pure function, the first rule that fits.
//
//  1. What cannot be mended fails.
//  2. A restart asked for is free and immediate, unless it is to be counted.
//  3. Exit 0 ends a task whose kind does not restart on success.
//  4. With 0 attempts nothing restarts.
//  5. The window starts with the first counted end and anew when its interval
//     has passed; interval 0 is one window for the whole life.
//  6. Attempts used up: mode fail fails the task; mode delay waits out the rest
//     of the window, never less than the delay. A window without end has no rest.
//  7. Otherwise: the delay, and a random 0–25 % of it.
func decide(pol spec.RestartPolicy, win Resume, c cause, p params) verdict {
	v := verdict{reason: c.reason, windowStart: win.WindowStart, windowCount: win.WindowCount}
	switch {
	case c.final:
		v.failed = true
		return v
	case c.asked && !c.counted:
		v.restart = true
		return v
	case c.ok && !c.asked && !p.again:
		v.reason = "completed"
		return v
	case pol.Attempts <= 0:
		v.failed = !c.ok || c.asked
		v.reason += ": the policy allows no restart"
		return v
	}
	elapsed := p.now.Since(v.windowStart)
	if v.windowCount == 0 || pol.Interval > 0 && elapsed >= pol.Interval {
		v.windowStart, v.windowCount, elapsed = p.now, 0, 0
	}
	delay := pol.Delay + time.Duration(p.jitter*float64(pol.Delay)/4)
	if v.windowCount < pol.Attempts {
		v.windowCount++
		v.restart, v.delay = true, delay
		return v
	}
	if rest := pol.Interval - elapsed; pol.Mode == spec.RestartDelay && pol.Interval > 0 {
		if v.delay = rest; rest < pol.Delay {
			v.delay = delay
		}
		v.restart = true
		v.reason += fmt.Sprintf(": %d restarts within %s, waiting for the next window", pol.Attempts, pol.Interval)
		return v
	}
	v.failed = true
	v.reason += fmt.Sprintf(": %d restarts used up", pol.Attempts)
	if pol.Interval > 0 {
		v.reason += " within " + pol.Interval.String()
	}
	return v
}

func exitReason(e driver.ExitResult) string {
	switch {
	case e.OOMKilled:
		return "killed by the kernel for want of memory"
	case e.Err != "":
		return e.Err
	case e.Signal != 0:
		return "ended by signal " + strconv.Itoa(e.Signal)
	}
	return "exit code " + strconv.Itoa(e.Code)
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
