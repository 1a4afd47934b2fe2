// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package bootclock is time that can be persisted: deadlines that neither a
// wall clock that jumps nor an agent that restarts shortens or lengthens.
//
//	same boot     elapsed = difference of CLOCK_BOOTTIME, suspended time included
//	other boot    elapsed = difference of wall clocks, between 0 and the delay
//
// Where the system has no boot id, and under virtual time, an Instant has none:
// the wall clock decides, which inside one process is Go's monotonic clock.
package bootclock

import "time"

// Clock tells the time. Now does not block and may be called from any goroutine.
type Clock interface{ Now() Instant }

// Instant is a point in time that means something to a later process.
type Instant struct {
	Boot string        `json:"boot,omitempty"` // the boot Up counts from; "" if that is not known
	Up   time.Duration `json:"up,omitempty"`   // since that boot
	Wall time.Time     `json:"wall,omitzero"`
}

// IsZero says that i is no point in time.
func (i Instant) IsZero() bool { return i.Wall.IsZero() && i.Boot == "" }

// Since is the time between earlier and i, never negative.
func (i Instant) Since(earlier Instant) time.Duration {
	if i.Boot != "" && i.Boot == earlier.Boot {
		return max(0, i.Up-earlier.Up)
	}
	return max(0, i.Wall.Sub(earlier.Wall))
}

// Deadline is over when Delay has passed since From. The zero Deadline is over.
type Deadline struct {
	From  Instant       `json:"from,omitzero"`
	Delay time.Duration `json:"delay,omitempty"`
}

// IsZero says that there is no deadline.
func (d Deadline) IsZero() bool { return d.From.IsZero() }

// Left is how long it is until the deadline: between 0 and the full delay.
func (d Deadline) Left(now Instant) time.Duration {
	return max(0, d.Delay-now.Since(d.From))
}

// At is the deadline on the wall clock, for people.
func (d Deadline) At() time.Time { return d.From.Wall.Add(d.Delay) }

// System is the clock of this machine. It reads the boot id, so make it once.
// Made under virtual time (testing/synctest), where Go's clock is years away from
// the kernel's, it knows no boot: boot time would stand still while virtual time
// runs.
func System() Clock {
	if wall, ok := kernel(); ok && time.Since(wall).Abs() < time.Hour {
		return system{boot: bootID()}
	}
	return system{}
}

type system struct{ boot string }

func (s system) Now() Instant {
	now := Instant{Wall: time.Now()}
	if s.boot != "" {
		now.Boot, now.Up = s.boot, uptime()
	}
	return now
}
