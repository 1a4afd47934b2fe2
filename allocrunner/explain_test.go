// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
)

// explained is the explanation as text, without its first line.
func (a *agent) explained() string {
	a.w.t.Helper()
	synctest.Wait()
	e := a.Explain(a.w.t.Context())
	var b strings.Builder
	require.NoError(a.w.t, e.Write(&b, time.Now(), nil))
	_, rest, _ := strings.Cut(b.String(), "\n")
	return "\n" + rest
}

func TestExplainLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobBatch, "init:pre web:main db:main bye:stop")
		w.alloc.Tasks[1].DependsOn = []spec.Dependency{{Task: "db", Condition: spec.DependCompleted}}
		w.alloc.Settings.MaxRun = time.Hour
		w.alloc.Settings.ShutdownDelay = 30 * time.Second
		w.lives["init"] = []drivertest.Life{fails(1), second(10)}
		slow := make(chan struct{})
		w.hooks = []allocrunner.HookFunc{func(*spec.Alloc) (allocrunner.AnyHook, error) {
			return &allocrunner.Hook[int]{Name: "network", Prerun: func(context.Context, *allocrunner.Request, *int) error {
				<-slow
				return nil
			}}, nil
		}}
		a := w.start()
		time.Sleep(3 * time.Second)
		require.Equal(t, `
  waits    hook "network" is at work: prerun, for 3s
  next     its maximum run time is over and it is ended, in 59m57s
`+strings.Join([]string{"init", "web", "db", "bye", ""}, ": pending\n    waits    the alloc's prerun hooks are not done\n    next     it is started (attempt 0)\n"), strings.ReplaceAll(a.explained(), "  task ", ""))
		close(slow)
		time.Sleep(1500 * time.Millisecond)
		text := a.explained()
		require.Contains(t, text, "task web: pending\n    waits    task \"db\" must first complete\n             └ task \"init\" must first complete\n"+
			"               └ the pause of the restart policy ends, in ")
		require.Contains(t, text, "    failed   Terminated: Exit code 1, ")
		time.Sleep(20 * time.Second)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Reason: "maintenance"}))
		text = a.explained()
		require.Contains(t, text, "  waits    its shutdown delay ends, in 30s\n  next     the alloc is being ended (killed): maintenance\n")
		require.Contains(t, text, "task web: pending\n    waits    the alloc is being ended (killed): maintenance\n")
		a.end(allocrunner.Complete)
		require.Contains(t, a.explained(), "  next     nothing: it has ended: maintenance\n")
	})
}

func TestExplainPrerun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		a := w.start()
		a.detach()
		fail := driver.Recoverable(errors.New("no address"))
		w.hooks = []allocrunner.HookFunc{w.hookOf("network", map[string]error{"prerun": fail})}
		a = w.start()
		require.Contains(t, a.explained(), `  waits    prerun hooks failed: hook "network": prerun: no address; it is tried again, in 1s`)
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{Grace: -1}))
		a.end(allocrunner.Complete)
	})
}

func TestExplainHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, spec.JobService, "web:main")
		w.alloc.DeploymentID = "d"
		w.alloc.Settings.Health = &spec.HealthPolicy{MinHealthy: 10 * time.Second, Deadline: 5 * time.Minute}
		cfg := w.config()
		c := &checks{}
		c.set(spec.CheckStatus{Name: "http", Task: "web", State: spec.CheckFailing, Output: "503"})
		cfg.Checks = c
		a := w.startWith(cfg)
		time.Sleep(time.Second)
		text := a.explained()
		require.Contains(t, text, "\n  waits    check \"http\" must pass, it is failing: 503\n  next     it counts as unhealthy if it is not healthy, in 4m59s\n")
		a.detach()
		cfg.Checks = nil
		a = w.startWith(cfg)
		require.Contains(t, a.explained(), "\n  waits    it counts as healthy if it runs on like this, in 9s\n")
		time.Sleep(20 * time.Second)
		require.NotContains(t, a.explained(), "healthy", "it is found out")
		require.NoError(t, a.Kill(t.Context(), allocrunner.KillRequest{}))
		a.end(allocrunner.Complete)
	})
}
