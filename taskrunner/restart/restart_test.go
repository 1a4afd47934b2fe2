// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package restart_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

func instant(up time.Duration) bootclock.Instant {
	return bootclock.Instant{Boot: "b", Up: up, Wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(up)}
}

func code(n int) *driver.ExitResult { return &driver.ExitResult{Code: n} }

func begun(ago time.Duration, count int) restart.Window {
	return restart.Window{WindowStart: instant(time.Hour - ago), WindowCount: count}
}

func policy(edits ...func(*spec.RestartPolicy)) spec.RestartPolicy {
	p := spec.RestartPolicy{Attempts: 2, Interval: 10 * time.Minute, Delay: 15 * time.Second, Mode: spec.RestartFail}
	for _, edit := range edits {
		edit(&p)
	}
	return p
}

func wait(p *spec.RestartPolicy)  { p.Mode = spec.RestartDelay }
func never(p *spec.RestartPolicy) { p.Attempts = 0 }
func life(p *spec.RestartPolicy)  { p.Interval = 0 }

func on(action spec.ExitAction, r spec.ExitRule) func(*spec.RestartPolicy) {
	r.Action = action
	return func(p *spec.RestartPolicy) { p.OnExit = append(p.OnExit, r) }
}

const (
	again    = spec.ExitRestart
	fail     = spec.ExitFail
	complete = spec.ExitComplete
)

// The rules of the restart policy, one row each and more.
func TestDecide(t *testing.T) {
	in := func(i restart.Input) restart.Input { return i }
	for name, tc := range map[string]struct {
		policy spec.RestartPolicy
		in     restart.Input
		want   spec.ExitAction
		delay  time.Duration
		count  int
	}{
		"first failure":                   {policy(), in(restart.Input{Exit: code(1)}), again, 15 * time.Second, 1},
		"a start that failed":             {policy(), in(restart.Input{Reason: "no image"}), again, 15 * time.Second, 1},
		"all of the jitter":               {policy(), in(restart.Input{Exit: code(1), Jitter: 1}), again, 18750 * time.Millisecond, 1},
		"half of the jitter":              {policy(), in(restart.Input{Exit: code(1), Jitter: 0.5}), again, 16875 * time.Millisecond, 1},
		"second failure":                  {policy(), in(restart.Input{Exit: code(1), Window: begun(time.Minute, 1)}), again, 15 * time.Second, 2},
		"used up, fail":                   {policy(), in(restart.Input{Exit: code(1), Window: begun(time.Minute, 2)}), fail, 0, 2},
		"no mode is fail":                 {policy(func(p *spec.RestartPolicy) { p.Mode = "" }), in(restart.Input{Exit: code(1), Window: begun(time.Minute, 2)}), fail, 0, 2},
		"used up, the window has passed":  {policy(), in(restart.Input{Exit: code(1), Window: begun(10*time.Minute, 2)}), again, 15 * time.Second, 1},
		"the window is fixed":             {policy(), in(restart.Input{Exit: code(1), Window: begun(10*time.Minute-1, 2)}), fail, 0, 2},
		"used up, delay":                  {policy(wait), in(restart.Input{Exit: code(1), Window: begun(4*time.Minute, 2)}), again, 6 * time.Minute, 2},
		"used up, delay, at its very end": {policy(wait), in(restart.Input{Exit: code(1), Window: begun(10*time.Minute-time.Second, 2), Jitter: 1}), again, 18750 * time.Millisecond, 2},
		"delay, next window":              {policy(wait), in(restart.Input{Exit: code(1), Window: begun(11*time.Minute, 2)}), again, 15 * time.Second, 1},
		"attempts 0":                      {policy(never), in(restart.Input{Exit: code(1)}), fail, 0, 0},
		"attempts 0, also in delay mode":  {policy(wait, never), in(restart.Input{Exit: code(1)}), fail, 0, 0},
		"attempts 0, exit 0 of a service": {policy(never), in(restart.Input{Exit: code(0), OnSuccess: true}), complete, 0, 0},
		"attempts 0, a start that failed": {policy(never), in(restart.Input{}), fail, 0, 0},
		"one window for life":             {policy(life), in(restart.Input{Exit: code(1), Window: begun(10000*time.Hour, 1)}), again, 15 * time.Second, 2},
		"one window for life, used up":    {policy(life), in(restart.Input{Exit: code(1), Window: begun(10000*time.Hour, 2)}), fail, 0, 2},
		"a window without end, delay":     {policy(life, wait), in(restart.Input{Exit: code(1), Window: begun(10000*time.Hour, 2)}), fail, 0, 2},
		"exit 0 of a batch":               {policy(), in(restart.Input{Exit: code(0), Window: begun(time.Minute, 1)}), complete, 0, 1},
		"exit 0 of a service":             {policy(), in(restart.Input{Exit: code(0), OnSuccess: true}), again, 15 * time.Second, 1},
		"exit 0 of a service, used up":    {policy(), in(restart.Input{Exit: code(0), OnSuccess: true, Window: begun(time.Minute, 2)}), fail, 0, 2},
		"exit 0 and out of memory":        {policy(), in(restart.Input{Exit: &driver.ExitResult{OOMKilled: true}}), again, 15 * time.Second, 1},
		"asked for":                       {policy(), in(restart.Input{Exit: code(1), Asked: true, Window: begun(time.Minute, 2)}), again, 0, 2},
		"asked for, attempts 0":           {policy(never), in(restart.Input{Exit: code(1), Asked: true}), again, 0, 0},
		"asked for, a batch that exits 0": {policy(), in(restart.Input{Exit: code(0), Asked: true}), again, 0, 0},
		"asked for and counted":           {policy(), in(restart.Input{Exit: code(0), Asked: true, Counted: true, Window: begun(time.Minute, 1)}), again, 15 * time.Second, 2},
		"counted, used up":                {policy(), in(restart.Input{Exit: code(1), Asked: true, Counted: true, Window: begun(time.Minute, 2)}), fail, 0, 2},
		"counted, attempts 0":             {policy(never), in(restart.Input{Exit: code(0), Asked: true, Counted: true}), fail, 0, 0},
		"cannot be mended":                {policy(), in(restart.Input{Final: true}), fail, 0, 0},
		"cannot be mended, asked for":     {policy(), in(restart.Input{Final: true, Asked: true, Exit: code(0)}), fail, 0, 0},

		"rule: fail":                     {policy(on(fail, spec.ExitRule{Codes: []int{2, 3}})), in(restart.Input{Exit: code(3)}), fail, 0, 0},
		"rule: does not fit":             {policy(on(fail, spec.ExitRule{Codes: []int{2, 3}})), in(restart.Input{Exit: code(4)}), again, 15 * time.Second, 1},
		"rule: complete":                 {policy(on(complete, spec.ExitRule{Codes: []int{3}})), in(restart.Input{Exit: code(3), OnSuccess: true}), complete, 0, 0},
		"rule: restart a batch":          {policy(on(again, spec.ExitRule{Codes: []int{0}})), in(restart.Input{Exit: code(0)}), again, 15 * time.Second, 1},
		"rule: restart is counted":       {policy(on(again, spec.ExitRule{Codes: []int{0}})), in(restart.Input{Exit: code(0), Window: begun(time.Minute, 2)}), fail, 0, 2},
		"rule: restart, attempts 0":      {policy(never, on(again, spec.ExitRule{Codes: []int{0}})), in(restart.Input{Exit: code(0)}), complete, 0, 0},
		"rule: 137 by its code":          {policy(on(fail, spec.ExitRule{Codes: []int{137}})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, Signal: 9}}), fail, 0, 0},
		"rule: by a signal's name":       {policy(on(fail, spec.ExitRule{Signals: []string{"SIGHUP", "SIGKILL"}})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, Signal: 9}}), fail, 0, 0},
		"rule: by a signal's number":     {policy(on(fail, spec.ExitRule{Signals: []string{"9"}})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, Signal: 9}}), fail, 0, 0},
		"rule: 137 is no signal":         {policy(on(fail, spec.ExitRule{Signals: []string{"SIGKILL"}})), in(restart.Input{Exit: code(137)}), again, 15 * time.Second, 1},
		"rule: out of memory":            {policy(on(fail, spec.ExitRule{OOM: true})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true}}), fail, 0, 0},
		"rule: not out of memory":        {policy(on(fail, spec.ExitRule{OOM: true})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, Signal: 9}}), again, 15 * time.Second, 1},
		"rule: the first that fits":      {policy(on(complete, spec.ExitRule{OOM: true}), on(fail, spec.ExitRule{Codes: []int{137}})), in(restart.Input{Exit: &driver.ExitResult{Code: 137, OOMKilled: true}}), complete, 0, 0},
		"rule: any of its conditions":    {policy(on(fail, spec.ExitRule{Codes: []int{5}, Signals: []string{"SIGTERM"}})), in(restart.Input{Exit: &driver.ExitResult{Code: 143, Signal: 15}}), fail, 0, 0},
		"rule: without conditions":       {policy(on(complete, spec.ExitRule{})), in(restart.Input{Exit: code(77)}), complete, 0, 0},
		"rule: an exit nobody saw":       {policy(on(complete, spec.ExitRule{})), in(restart.Input{Exit: &driver.ExitResult{Code: -1, Err: "not seen"}}), again, 15 * time.Second, 1},
		"rule: … but by its code":        {policy(on(fail, spec.ExitRule{Codes: []int{-1}})), in(restart.Input{Exit: &driver.ExitResult{Code: -1, Err: "not seen"}}), fail, 0, 0},
		"rule: not for what was asked":   {policy(on(fail, spec.ExitRule{})), in(restart.Input{Exit: code(1), Asked: true}), again, 0, 0},
		"rule: not for a counted one":    {policy(on(fail, spec.ExitRule{})), in(restart.Input{Exit: code(1), Asked: true, Counted: true}), again, 15 * time.Second, 1},
		"rule: not for a failed start":   {policy(on(complete, spec.ExitRule{})), in(restart.Input{}), again, 15 * time.Second, 1},
		"rule: not where it cannot mend": {policy(on(complete, spec.ExitRule{})), in(restart.Input{Exit: code(0), Final: true}), fail, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tc.in.Policy, tc.in.Now = tc.policy, instant(time.Hour)
			v := restart.Decide(tc.in)
			require.Equal(t, tc.want, v.Action, v.Reason)
			require.Equal(t, tc.delay, v.Delay)
			require.Equal(t, tc.count, v.Window.WindowCount)
			require.NotEmpty(t, v.Reason)
		})
	}
}

// An exponential delay: doubled in a row, capped, begun anew after a healthy run.
func TestExponential(t *testing.T) {
	p := policy(func(p *spec.RestartPolicy) {
		p.Attempts, p.Delay, p.MaxDelay = 100, 10*time.Second, time.Minute
		p.DelayFunction, p.ResetAfter = spec.DelayExponential, 5*time.Minute
	})
	w, now := restart.Window{}, time.Hour
	next := func(ran time.Duration, exit *driver.ExitResult) time.Duration {
		now += ran
		v := restart.Decide(restart.Input{Policy: p, Window: w, Exit: exit, Ran: ran, Now: instant(now)})
		require.Equal(t, again, v.Action)
		w = v.Window
		return v.Delay
	}
	for i, seconds := range []int{10, 20, 40, 60, 60, 60} {
		require.Equal(t, time.Duration(seconds)*time.Second, next(time.Second, code(1)), i)
	}
	require.Equal(t, time.Minute, next(5*time.Minute-1, code(1)), "not healthy for long enough")
	require.Equal(t, 10*time.Second, next(5*time.Minute, code(1)))
	require.Equal(t, 20*time.Second, next(time.Second, nil), "a start that fails is one in a row")
	require.Equal(t, 40*time.Second, next(24*time.Hour, nil), "what never ran was never healthy")

	free := restart.Decide(restart.Input{Policy: p, Window: w, Exit: code(1), Asked: true, Now: instant(now)})
	require.Equal(t, w, free.Window, "a free restart counts nowhere")

	// A window that is renewed does not begin the delay anew.
	p.Attempts, p.Interval, p.Mode = 1, time.Minute, spec.RestartDelay
	w = restart.Window{}
	require.Equal(t, 10*time.Second, next(time.Second, code(1)))
	now += time.Hour
	require.Equal(t, 20*time.Second, next(time.Second, code(1)))
	require.Equal(t, 1, w.WindowCount)
	require.Equal(t, time.Minute-time.Second, next(time.Second, code(1)), "the rest of the window, if that is longer")

	// Policies that say nothing take the defaults; nothing overflows.
	for _, p := range []spec.RestartPolicy{
		{Attempts: 200, Delay: time.Second, DelayFunction: spec.DelayExponential},
		{Attempts: 200, Delay: time.Duration(1 << 61), DelayFunction: spec.DelayExponential, MaxDelay: 1<<63 - 1},
		{Attempts: 200, DelayFunction: spec.DelayExponential},
	} {
		w := restart.Window{Streak: 100}
		v := restart.Decide(restart.Input{Policy: p, Window: w, Exit: code(1), Now: instant(now)})
		switch p.Delay {
		case time.Second:
			require.Equal(t, spec.DefaultMaxDelay, v.Delay)
		case 0:
			require.Zero(t, v.Delay)
		default:
			require.Equal(t, p.MaxDelay, v.Delay)
		}
		require.Equal(t, 101, v.Window.Streak)
	}
}

func TestReasons(t *testing.T) {
	for want, in := range map[string]restart.Input{
		"exit code 3": {Exit: code(3)},
		"killed by the kernel for want of memory": {Exit: &driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true}},
		"exit not seen":           {Exit: &driver.ExitResult{Code: -1, Err: "exit not seen"}},
		"ended by signal 9":       {Exit: &driver.ExitResult{Code: 137, Signal: 9}},
		"why":                     {Exit: code(3), Reason: "why"},
		"the start failed":        {},
		"a restart was asked for": {Exit: code(3), Asked: true},
	} {
		in.Policy = policy()
		require.Equal(t, want, restart.Decide(in).Reason)
	}
	used := restart.Decide(restart.Input{Policy: policy(), Exit: code(3), Window: begun(time.Minute, 2), Now: instant(time.Hour)})
	require.Equal(t, "exit code 3: 2 restarts used up within 10m0s", used.Reason)
	rule := restart.Decide(restart.Input{Policy: policy(on(fail, spec.ExitRule{})), Exit: code(3)})
	require.Equal(t, "exit code 3: a rule of on_exit says fail", rule.Reason)
}

// FF-028: a wall clock that jumps changes neither the window nor the count.
func TestWallClockJumps(t *testing.T) {
	pol := spec.RestartPolicy{Attempts: 1, Interval: 10 * time.Minute, Delay: time.Second, Mode: spec.RestartDelay}
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		now := instant(time.Hour)
		now.Wall = now.Wall.Add(jump)
		v := restart.Decide(restart.Input{Policy: pol, Window: begun(time.Minute, 1), Exit: code(1), Now: now})
		require.Equal(t, again, v.Action)
		require.Equal(t, 9*time.Minute, v.Delay)
	}
}

func ExampleDecide() {
	v := restart.Decide(restart.Input{
		Policy: spec.RestartPolicy{Attempts: 3, Delay: 15 * time.Second, OnExit: []spec.ExitRule{{OOM: true, Action: spec.ExitFail}}},
		Exit:   &driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true},
	})
	fmt.Println(v.Action, "-", v.Reason)
	// Output: fail - killed by the kernel for want of memory: a rule of on_exit says fail
}

func FuzzDecide(f *testing.F) {
	f.Add(2, int64(time.Minute), int64(time.Second), int64(0), int64(0), int64(time.Second), int64(5), 1, 0, uint16(0), 0.5, 1)
	f.Add(0, int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), 0, 0, uint16(255), 0.0, 0)
	f.Add(3, int64(time.Hour), int64(time.Second), int64(time.Minute), int64(1), int64(9), int64(9), 1, 70, uint16(0x3ff), 0.9, 137)
	f.Fuzz(func(t *testing.T, attempts int, interval, delay, most, reset, ago, ran int64, count, streak int, flags uint16, jitter float64, exit int) {
		if delay < 0 || delay > int64(1000*time.Hour) || most < 0 || most > int64(1000*time.Hour) || interval < 0 || reset < 0 || ran < 0 ||
			!(jitter >= 0 && jitter < 1) || count < 0 || streak < 0 || streak > 1<<40 {
			t.Skip()
		}
		flag := func(n int) bool { return flags&(1<<n) != 0 }
		pol := spec.RestartPolicy{Attempts: attempts, Interval: time.Duration(interval), Delay: time.Duration(delay), Mode: spec.RestartFail}
		if flag(0) {
			pol.Mode = spec.RestartDelay
		}
		if flag(1) {
			pol.DelayFunction, pol.MaxDelay, pol.ResetAfter = spec.DelayExponential, time.Duration(most), time.Duration(reset)
		}
		if flag(2) {
			pol.OnExit = []spec.ExitRule{{Codes: []int{exit}, OOM: flag(3), Action: []spec.ExitAction{again, fail, complete}[flags%3]}}
		}
		in := restart.Input{Policy: pol, OnSuccess: flag(4), Final: flag(5), Asked: flag(6), Counted: flag(7), Ran: time.Duration(ran),
			Window: restart.Window{WindowStart: instant(time.Duration(1<<50 - ago)), WindowCount: count, Streak: streak},
			Now:    instant(time.Duration(1 << 50)), Jitter: jitter}
		if flag(8) {
			in.Exit = &driver.ExitResult{Code: exit, OOMKilled: flag(9)}
		}
		v := restart.Decide(in)
		free := in.Asked && !in.Counted && !in.Final
		restarts := v.Action == again
		switch {
		case v.Action != again && v.Action != fail && v.Action != complete:
			t.Fatalf("action %q", v.Action)
		case v.Delay < 0 || !restarts && v.Delay != 0:
			t.Fatalf("delay %s", v.Delay)
		case restarts && attempts <= 0 && !free:
			t.Fatal("restarted with no attempts")
		case restarts && in.Final:
			t.Fatal("restarted what cannot be mended")
		case free && (!restarts || v.Delay != 0 || v.Window != in.Window):
			t.Fatal("a free restart is immediate and not counted")
		case !restarts && v.Window != in.Window:
			t.Fatal("counted an end that is not followed by a start")
		case restarts && !free && v.Delay < pol.Delay && (pol.DelayFunction != spec.DelayExponential || v.Delay < pol.MaxDelay):
			t.Fatalf("waits %s, less than %s", v.Delay, pol.Delay)
		case restarts && !free && v.Window.WindowCount > max(attempts, count):
			t.Fatalf("%d restarts counted of %d", v.Window.WindowCount, attempts)
		case v.Reason == "":
			t.Fatal("no reason")
		}
	})
}
