// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// a callback of every phase.
func hookWith(name, phase string, f func(context.Context, *allocrunner.Request, *int) error) *allocrunner.Hook[int] {
	h := &allocrunner.Hook[int]{Name: name}
	*map[string]*func(context.Context, *allocrunner.Request, *int) error{
		"prerun": &h.Prerun, "update": &h.Update, "pretaskrestart": &h.PreTaskRestart, "prekill": &h.Prekill,
		"postrun": &h.Postrun, "destroy": &h.Destroy, "shutdown": &h.Shutdown,
	}[phase] = f
	return h
}

// D25, a row for each callback: how long one that hears the end of its context is
// waited for, and one that does not, with the bound of the phase and of the hook.
// What a deaf one did to its state is dropped and its stack logged; while tasks live
// it is an event.
func TestBounds(t *testing.T) {
	for phase, tc := range map[string]struct {
		bound    time.Duration
		together bool // lateness is part of the bound
		event    bool
	}{
		"update":         {30 * time.Second, false, true},
		"pretaskrestart": {10 * time.Second, false, true},
		"prekill":        {10 * time.Second, true, true},
		"postrun":        {60 * time.Second, false, false},
		"destroy":        {2 * time.Minute, false, false},
		"shutdown":       {4 * time.Second, true, false},
	} {
		for _, timeout := range []time.Duration{0, 3 * time.Second} {
			for _, deaf := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, timeout %s, deaf %t", phase, timeout, deaf), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						bound := tc.bound
						if timeout > 0 {
							bound = timeout
						}
						took, logged, w := boundOf(t, phase, timeout, deaf)
						late := time.Second
						if tc.together { // a tenth of it is for those that are late
							late = min(late, bound/10)
							bound -= late
						}
						if !deaf {
							late = 0
						}
						require.Equal(t, bound+late, took)
						require.Equal(t, deaf, bytes.Contains(logged, []byte("thisIsTheStackOfADeafHook")))
						want := 0
						if tc.event {
							want = 1
						}
						require.Equal(t, want, w.count("web: Task Hook Failed"))
					})
				})
			}
		}
	}
}

// boundOf brings an alloc to the phase, in which a hook uses all the time it has.
func boundOf(t *testing.T, phase string, timeout time.Duration, deaf bool) (time.Duration, []byte, *world) {
	var logged bytes.Buffer
	w := newWorld(t, spec.JobService, "web:main")
	release := make(chan struct{})
	began := make(chan time.Time, 1)
	slow := hookWith("slow", phase, func(ctx context.Context, _ *allocrunner.Request, n *int) error {
		began <- time.Now()
		*n = 7
		if deaf {
			thisIsTheStackOfADeafHook(release)
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	slow.Timeout = timeout
	w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) { return slow, nil }}
	cfg := w.config()
	cfg.Log = hclog.New(&hclog.LoggerOptions{Output: &logged})
	over := make(chan time.Time, 1)
	cfg.Trace.Hook = func(_, callback string, _ time.Duration, err error) {
		if callback == phase && err != nil {
			over <- time.Now()
		}
	}
	a := w.startWith(cfg)
	if phase == "shutdown" {
		a.detach()
		end := <-over
		close(release)
		cfg.Hooks = nil
		a = w.startWith(cfg)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
		return end.Sub(<-began), logged.Bytes(), w
	}
	switch phase {
	case "update":
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "1"} })))
		time.Sleep(time.Minute)
	case "pretaskrestart":
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{}))
		time.Sleep(time.Minute)
		require.Equal(t, 1, a.Snapshot().Tasks["web"].Attempt, "it is restarted all the same")
	}
	require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
	a.end(allocrunner.Complete)
	if phase == "destroy" {
		require.Error(t, a.Destroy(t.Context()))
	}
	end := <-over
	close(release)
	return end.Sub(<-began), logged.Bytes(), w
}

// Prerun has no bound, but gives way to a kill: one that does not is abandoned, and
// that is an event.
func TestPrerunGivesWay(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf %t", deaf), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, spec.JobService, "web:main")
				release := make(chan struct{})
				w.hooks = []allocrunner.HookFunc{one(*hookWith("slow", "prerun", func(ctx context.Context, _ *allocrunner.Request, _ *int) error {
					if deaf {
						<-release
						return nil
					}
					<-ctx.Done()
					return context.Cause(ctx)
				}))}
				a := w.start()
				time.Sleep(time.Hour)
				require.Equal(t, allocrunner.Pending, a.Snapshot().Status)
				began := time.Now()
				require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
				a.end(allocrunner.Complete)
				if deaf {
					require.LessOrEqual(t, time.Since(began), time.Second)
				} else {
					require.Zero(t, time.Since(began))
				}
				close(release)
			})
		})
	}
}

// A hook that fails beside living tasks is an event of each of them, by name.
func TestHookErrorsAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main log:preside")
		boom := errors.New("boom")
		fail := map[string]error{"update": boom, "pretaskrestart": boom, "prekill": errPanic, "postrun": boom}
		w.hooks = []allocrunner.HookFunc{w.hookOf("bad", fail), w.hookOf("good", nil)}
		a := w.start()
		require.NoError(t, a.Update(t.Context(), a.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": "1"} })))
		time.Sleep(time.Minute)
		require.NoError(t, a.Restart(t.Context(), allocrunner.RestartRequest{}))
		time.Sleep(time.Minute)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		var got []map[string]string
		for _, e := range a.end(allocrunner.Complete).Tasks["web"].Events {
			if e.Kind == taskrunner.HookFailed {
				got = append(got, e.Attrs)
			}
		}
		require.Equal(t, []map[string]string{
			{"hook": "bad", "callback": "update", "error": "boom"},
			{"hook": "bad", "callback": "pretaskrestart", "error": "boom"},
			{"hook": "bad", "callback": "prekill", "error": "panic: hook bad"},
		}, got)
		require.Equal(t, 3, w.count("log: Task Hook Failed"))
	})
}
