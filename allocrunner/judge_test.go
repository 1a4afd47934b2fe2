// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

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

// The rules of judge, one row each and more. Now is one hour; the watch began a
// minute ago, so the deadline of five minutes is four away.
func TestJudge(t *testing.T) {
	const min = time.Minute
	ok := spec.CheckStatus{Name: "http", Task: "m", State: spec.CheckPassing}
	bad := spec.CheckStatus{Name: "http", Task: "m", State: spec.CheckFailing, Output: "503"}
	unknown := spec.CheckStatus{Name: "tcp", State: spec.CheckPending}
	for name, c := range map[string]struct {
		tasks   string
		started map[string]time.Duration // ago; 0: an hour
		checks  []spec.CheckStatus
		edit    func(*spec.Alloc, *health)
		healthy bool
		reason  string
		wait    time.Duration
		passing time.Duration // ago, as it is afterwards; 0: not at all
	}{
		"runs for long enough":           {tasks: "m:main:run", healthy: true},
		"not yet":                        {tasks: "m:main:run", started: map[string]time.Duration{"m": 4 * time.Second}, wait: 6 * time.Second},
		"the latest start counts":        {tasks: "m:main:run n:main:run s:preside:run", started: map[string]time.Duration{"s": time.Second}, wait: 9 * time.Second},
		"a main that waits":              {tasks: "m:main:run n:main:wait", wait: 4 * min},
		"a sidecar that waits":           {tasks: "m:main:run s:postside:new", wait: 4 * min},
		"a sidecar that ended well":      {tasks: "m:main:run s:preside:ok", healthy: true},
		"prestart runs":                  {tasks: "m:main:run p:pre:run", wait: 4 * min},
		"prestart done":                  {tasks: "m:main:run p:pre:ok", healthy: true},
		"poststart exits 0":              {tasks: "m:main:run q:post:ok", healthy: true}, // FF-146
		"poststart runs":                 {tasks: "m:main:run q:post:run", started: map[string]time.Duration{"q": time.Second}, healthy: true},
		"poststart has not begun":        {tasks: "m:main:run q:post:new", wait: 4 * min},
		"poststop is not looked at":      {tasks: "m:main:run z:stop:new", healthy: true},
		"a main failed":                  {tasks: "m:main:failed n:main:run", reason: `task "m": it failed`},
		"a main ended":                   {tasks: "m:main:ok n:main:run", reason: `task "m": it has ended`},
		"a sidecar failed":               {tasks: "m:main:run s:preside:failed", reason: `task "s": it failed`},
		"a failed poststop says nothing": {tasks: "m:main:run z:stop:failed", healthy: true},
		"at the deadline": {tasks: "m:main:run n:main:wait s:preside:new", edit: began(5 * min),
			reason: `task "n": it does not run; task "s": it does not run`},
		"crash loop at the deadline": {tasks: "m:main:run", started: map[string]time.Duration{"m": time.Second}, edit: began(5 * min),
			reason: "not healthy for 10s within 5m0s"},
		"a deadline of its own": {tasks: "m:main:wait", edit: func(a *spec.Alloc, h *health) { a.Settings.Health.Deadline = 90 * time.Second }, wait: 30 * time.Second},

		"checks begin to pass":           {tasks: "m:main:run", checks: []spec.CheckStatus{ok}, wait: 10 * time.Second, passing: 1},
		"checks have passed":             {tasks: "m:main:run", checks: []spec.CheckStatus{ok}, edit: passes(11 * time.Second), healthy: true, passing: 11 * time.Second},
		"not long enough":                {tasks: "m:main:run", checks: []spec.CheckStatus{ok}, edit: passes(7 * time.Second), wait: 3 * time.Second, passing: 7 * time.Second},
		"a start after they passed":      {tasks: "m:main:run", started: map[string]time.Duration{"m": time.Second}, checks: []spec.CheckStatus{ok}, edit: passes(min), wait: 9 * time.Second, passing: min},
		"one fails":                      {tasks: "m:main:run", checks: []spec.CheckStatus{ok, bad}, edit: passes(min), wait: 4 * min},
		"no result yet":                  {tasks: "m:main:run", checks: []spec.CheckStatus{ok, unknown}, wait: 4 * min},
		"no result since a restart":      {tasks: "m:main:run", checks: []spec.CheckStatus{unknown}, edit: passes(min), wait: 4 * min, passing: min},
		"checks at the deadline":         {tasks: "m:main:run", checks: []spec.CheckStatus{bad, unknown}, edit: began(5 * min), reason: `task "m": check "http" fails: 503; check "tcp" has no result`},
		"task states do not mind checks": {tasks: "m:main:run", checks: []spec.CheckStatus{bad}, edit: func(a *spec.Alloc, _ *health) { a.Settings.Health.Check = "task_states" }, healthy: true},

		"batch":             {tasks: "m:main:run", edit: func(a *spec.Alloc, h *health) { a.JobType, h.Watch = spec.JobBatch, nil }, wait: never},
		"no policy":         {tasks: "m:main:run", edit: func(a *spec.Alloc, h *health) { a.Settings.Health, h.Watch = nil, nil }, wait: never},
		"manual":            {tasks: "m:main:failed", edit: func(a *spec.Alloc, h *health) { a.Settings.Health.Check, h.Watch = "manual", nil }, wait: never},
		"found already":     {tasks: "m:main:failed", edit: found("d"), wait: never},
		"of another":        {tasks: "m:main:run", edit: found("c"), healthy: true},
		"deployment is won": {tasks: "m:main:failed", edit: func(a *spec.Alloc, h *health) { a.DeploymentStatus, h.Watch = spec.DeploymentSuccessful, nil }, wait: never},
	} {
		t.Run(name, func(t *testing.T) {
			now := instant(time.Hour)
			a := &spec.Alloc{DeploymentID: "d", Settings: spec.AllocSettings{Health: &spec.HealthPolicy{}}}
			h := health{Watch: &watch{Deployment: "d", Began: instant(time.Hour - min)}}
			if c.edit != nil {
				c.edit(a, &h)
			}
			var tasks []vital
			for _, v := range views(t, c.tasks) {
				tasks = append(tasks, vital{v, instant(time.Hour - c.started[v.name])})
				if c.started[v.name] == 0 {
					tasks[len(tasks)-1].started = instant(0)
				}
			}
			before := h
			got := judge(h, a, tasks, c.checks, now)
			require.Equal(t, before, h)
			require.Equal(t, c.healthy, got.healthy)
			require.Equal(t, c.reason, got.reason())
			require.Equal(t, c.reason != "", got.unhealthy())
			if !c.healthy && c.reason == "" {
				require.Equal(t, c.wait, got.wait)
			}
			if c.passing == 1 {
				require.Equal(t, now, got.watch.Passing)
			} else if c.passing > 0 {
				require.Equal(t, instant(time.Hour-c.passing), got.watch.Passing)
			} else if got.watch != nil {
				require.True(t, got.watch.Passing.IsZero())
			}
		})
	}
}

func began(ago time.Duration) func(*spec.Alloc, *health) {
	return func(_ *spec.Alloc, h *health) { h.Watch.Began = instant(time.Hour - ago) }
}

func passes(ago time.Duration) func(*spec.Alloc, *health) {
	return func(_ *spec.Alloc, h *health) { h.Watch.Passing = instant(time.Hour - ago) }
}

func found(deployment string) func(*spec.Alloc, *health) {
	return func(_ *spec.Alloc, h *health) {
		*h = health{Found: &spec.Health{Healthy: true, Deployment: deployment}}
	}
}

// FF-028: the wall clock decides nothing.
func TestJudgeWallClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		now := instant(time.Hour)
		now.Wall = now.Wall.Add(jump)
		a := &spec.Alloc{Settings: spec.AllocSettings{Health: &spec.HealthPolicy{}}}
		h := health{Watch: &watch{Began: instant(time.Hour - time.Minute)}}
		got := judge(h, a, []vital{{views(t, "m:main:run")[0], instant(time.Hour - 4*time.Second)}}, nil, now)
		require.False(t, got.healthy)
		require.Equal(t, 6*time.Second, got.wait)
	}
}
