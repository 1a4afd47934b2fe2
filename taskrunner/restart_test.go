// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
)

func instant(up time.Duration) bootclock.Instant {
	return bootclock.Instant{Boot: "b", Up: up, Wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(up)}
}

// The rules of the restart policy, one row each.
func TestDecide(t *testing.T) {
	fail := spec.RestartPolicy{Attempts: 2, Interval: 10 * time.Minute, Delay: 15 * time.Second, Mode: spec.RestartFail}
	wait := fail
	wait.Mode = spec.RestartDelay
	never := wait
	never.Attempts = 0
	life := fail
	life.Interval = 0
	lifeDelay := life
	lifeDelay.Mode = spec.RestartDelay
	now := instant(time.Hour)
	begun := func(ago time.Duration, count int) Resume {
		return Resume{WindowStart: instant(time.Hour - ago), WindowCount: count}
	}
	for name, tc := range map[string]struct {
		policy  spec.RestartPolicy
		win     Resume
		c       cause
		service bool
		jitter  float64

		restart, failed bool
		delay           time.Duration
		count           int
	}{
		"first failure":                   {policy: fail, c: cause{}, restart: true, delay: 15 * time.Second, count: 1},
		"all of the jitter":               {policy: fail, c: cause{}, jitter: 1, restart: true, delay: 18750 * time.Millisecond, count: 1},
		"half of the jitter":              {policy: fail, c: cause{}, jitter: 0.5, restart: true, delay: 16875 * time.Millisecond, count: 1},
		"second failure":                  {policy: fail, win: begun(time.Minute, 1), restart: true, delay: 15 * time.Second, count: 2},
		"used up, fail":                   {policy: fail, win: begun(time.Minute, 2), failed: true, count: 2},
		"used up, the window has passed":  {policy: fail, win: begun(10*time.Minute, 2), restart: true, delay: 15 * time.Second, count: 1},
		"the window is fixed":             {policy: fail, win: begun(10*time.Minute-1, 2), failed: true, count: 2},
		"used up, delay":                  {policy: wait, win: begun(4*time.Minute, 2), restart: true, delay: 6 * time.Minute, count: 2},
		"used up, delay, at its very end": {policy: wait, win: begun(10*time.Minute-time.Second, 2), jitter: 1, restart: true, delay: 18750 * time.Millisecond, count: 2},
		"delay, next window":              {policy: wait, win: begun(11*time.Minute, 2), restart: true, delay: 15 * time.Second, count: 1},
		"attempts 0":                      {policy: never, failed: true},
		"attempts 0, exit 0 of a service": {policy: never, c: cause{ok: true}, service: true},
		"one window for life":             {policy: life, win: begun(10000*time.Hour, 1), restart: true, delay: 15 * time.Second, count: 2},
		"one window for life, used up":    {policy: life, win: begun(10000*time.Hour, 2), failed: true, count: 2},
		"a window without end, delay":     {policy: lifeDelay, win: begun(10000*time.Hour, 2), failed: true, count: 2},
		"exit 0 of a batch":               {policy: fail, win: begun(time.Minute, 1), c: cause{ok: true}, count: 1},
		"exit 0 of a service":             {policy: fail, c: cause{ok: true}, service: true, restart: true, delay: 15 * time.Second, count: 1},
		"exit 0 of a service, used up":    {policy: fail, win: begun(time.Minute, 2), c: cause{ok: true}, service: true, failed: true, count: 2},
		"asked for":                       {policy: fail, win: begun(time.Minute, 2), c: cause{asked: true}, restart: true, count: 2},
		"asked for, attempts 0":           {policy: never, c: cause{asked: true}, restart: true},
		"asked for, a batch that exits 0": {policy: fail, c: cause{asked: true, ok: true}, restart: true},
		"asked for and counted":           {policy: fail, win: begun(time.Minute, 1), c: cause{asked: true, counted: true, ok: true}, restart: true, delay: 15 * time.Second, count: 2},
		"counted, used up":                {policy: fail, win: begun(time.Minute, 2), c: cause{asked: true, counted: true}, failed: true, count: 2},
		"counted, attempts 0":             {policy: never, c: cause{asked: true, counted: true, ok: true}, failed: true},
		"cannot be mended":                {policy: fail, c: cause{final: true}, failed: true},
		"cannot be mended, asked for":     {policy: fail, c: cause{final: true, asked: true}, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := decide(tc.policy, tc.win, tc.c, params{now: now, again: tc.service, jitter: tc.jitter})
			require.Equal(t, tc.restart, v.restart)
			require.Equal(t, tc.failed, v.failed)
			require.Equal(t, tc.delay, v.delay)
			require.Equal(t, tc.count, v.windowCount)
		})
	}
}

// FF-028: a wall clock that jumps changes neither the window nor the count.
func TestDecideWallClockJumps(t *testing.T) {
	pol := spec.RestartPolicy{Attempts: 1, Interval: 10 * time.Minute, Delay: time.Second, Mode: spec.RestartDelay}
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		now := instant(time.Hour)
		now.Wall = now.Wall.Add(jump)
		v := decide(pol, Resume{WindowStart: instant(time.Hour - time.Minute), WindowCount: 1}, cause{}, params{now: now})
		require.True(t, v.restart)
		require.Equal(t, 9*time.Minute, v.delay)
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(2, int64(time.Minute), int64(time.Second), true, int64(time.Second), 1, uint8(0), 0.5)
	f.Add(0, int64(0), int64(0), false, int64(0), 0, uint8(255), 0.0)
	f.Fuzz(func(t *testing.T, attempts int, interval, delay int64, mode bool, ago int64, count int, flags uint8, jitter float64) {
		if delay < 0 || delay > int64(1000*time.Hour) || interval < 0 || !(jitter >= 0 && jitter < 1) || count < 0 {
			t.Skip()
		}
		pol := spec.RestartPolicy{Attempts: attempts, Interval: time.Duration(interval), Delay: time.Duration(delay), Mode: spec.RestartFail}
		if mode {
			pol.Mode = spec.RestartDelay
		}
		c := cause{ok: flags&1 != 0, final: flags&2 != 0, asked: flags&4 != 0, counted: flags&8 != 0, reason: "because"}
		p := params{now: instant(time.Duration(1 << 50)), again: flags&16 != 0, jitter: jitter}
		win := Resume{WindowStart: instant(time.Duration(1<<50 - ago)), WindowCount: count}
		v := decide(pol, win, c, p)
		free := c.asked && !c.counted && !c.final
		switch {
		case v.restart && v.failed:
			t.Fatal("restarts and has failed")
		case v.delay < 0 || !v.restart && v.delay != 0:
			t.Fatalf("delay %s", v.delay)
		case v.restart && attempts <= 0 && !free:
			t.Fatal("restarted with no attempts")
		case free && (!v.restart || v.delay != 0 || v.windowCount != count):
			t.Fatal("a free restart is immediate and not counted")
		case v.restart && !free && v.delay < pol.Delay:
			t.Fatalf("waits %s, less than %s", v.delay, pol.Delay)
		case v.restart && !free && v.windowCount > max(attempts, count):
			t.Fatalf("%d restarts counted of %d", v.windowCount, attempts)
		case v.reason == "":
			t.Fatal("no reason")
		}
	})
}
