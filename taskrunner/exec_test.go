// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// plain is a driver without anything that is optional.
type plain struct{ driver.Driver }

// sources gives another driver at each call, as after the restart of a plugin.
type source func() driver.Driver

func (s source) Driver(context.Context, string) (driver.Driver, error) { return s(), nil }

func TestExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Gated = true }
		a := w.start()
		in := io.NopCloser(strings.NewReader("hello"))
		_, err := a.Exec(t.Context(), driver.ExecRequest{Command: []string{"cat"}, Stdin: in})
		require.ErrorIs(t, err, taskrunner.ErrNotRunning)
		require.Empty(t, w.fake.Commands(), "nothing was run")

		a.SetGate(true)
		a.phase(taskrunner.Running)
		out, err := driver.Output(t.Context(), execer{a}, "", []string{"cat"}, 0, 3)
		require.NoError(t, err)
		require.Empty(t, out.Stdout)
		var text strings.Builder
		in = io.NopCloser(strings.NewReader("hello"))
		res, err := a.Exec(t.Context(), driver.ExecRequest{Command: []string{"cat"}, Stdin: in, Stdout: &text})
		require.NoError(t, err)
		require.True(t, res.OK())
		require.Equal(t, "hello", text.String())

		// One that is at work when the task ends, ends with it.
		w.fake.Command = func(ctx context.Context, _ driver.TaskConfig, _ driver.ExecRequest) (driver.ExitResult, error) {
			<-ctx.Done()
			return driver.ExitResult{}, nil
		}
		time.AfterFunc(time.Second, func() { w.fake.Exit("a1/web/0", driver.ExitResult{Code: 1}) })
		res, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"hang"}})
		require.NoError(t, err)
		require.Equal(t, 9, res.Signal)
		w.fake.Command = func(context.Context, driver.TaskConfig, driver.ExecRequest) (driver.ExitResult, error) { panic("oops") }
		a.phase(taskrunner.Pending)
		_, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"late"}})
		require.ErrorIs(t, err, taskrunner.ErrNotRunning, "between two attempts")
		a.killNow()
		a.end()
		_, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"late"}})
		require.ErrorIs(t, err, taskrunner.ErrNotRunning)
	})
}

// execer makes a runner what Output takes.
type execer struct{ *agent }

func (e execer) Exec(ctx context.Context, _ string, req driver.ExecRequest) (driver.ExitResult, error) {
	return e.agent.Exec(ctx, req)
}

// What the driver cannot, and a driver that is another one by now.
func TestExecDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var now driver.Driver = w.fake
		w.edit = func(c *taskrunner.Config) { c.Drivers = source(func() driver.Driver { return now }) }
		a := w.start()
		a.phase(taskrunner.Running)
		now = plain{w.fake}
		_, err := a.Exec(t.Context(), driver.ExecRequest{Command: []string{"x"}})
		require.ErrorIs(t, err, driver.ErrNotImplemented)
		for _, err := range a.Stats(t.Context(), 0) {
			require.ErrorIs(t, err, driver.ErrNotImplemented)
		}
		now = panicking{w.fake}
		_, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"x"}})
		require.ErrorContains(t, err, "oops")
		now = w.fake
		_, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"x"}})
		require.NoError(t, err)
		w.fake.Capabilities = &driver.Capabilities{IdempotentStart: true, SendSignals: true}
		_, err = a.Exec(t.Context(), driver.ExecRequest{Command: []string{"x"}})
		require.ErrorIs(t, err, driver.ErrNotImplemented, "a driver that says it cannot")
		a.killNow()
		a.end()
	})
}

type panicking struct{ *drivertest.Fake }

func (panicking) Exec(context.Context, string, driver.ExecRequest) (driver.ExitResult, error) {
	panic("oops")
}

// Samples go on over restarts of the task and of its driver, with the pauses that
// are promised, and end with the task.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.task().Resources.MemoryMB = 64
		w.fake.Usage = func(n int) driver.Usage {
			return driver.Usage{Pids: n, CPU: driver.CPUUsage{Ticks: math.NaN(), Percent: math.Inf(1), UserPercent: 5}}
		}
		a := w.start()
		a.phase(taskrunner.Running)
		began := time.Now()
		var at []time.Duration
		for u, err := range a.Stats(t.Context(), 2*time.Second) {
			require.NoError(t, err)
			require.Zero(t, u.CPU.Ticks)
			require.Zero(t, u.CPU.Percent)
			require.InDelta(t, 5, u.CPU.UserPercent, 0)
			require.Equal(t, uint64(64<<20), u.Memory.Allocated)
			require.Equal(t, uint64(64<<20), u.Memory.AllocatedMax)
			at = append(at, time.Since(began))
			switch len(at) {
			case 2: // the driver's process dies: asked again after 1 s and 2
				w.fake.Break(driver.ErrPluginGone)
			case 3: // the task exits and is started again after 15 s and more
				w.fake.Exit("a1/web/0", driver.ExitResult{Code: 1})
			case 5:
				w.fake.Fail(drivertest.Stats, 4, driver.ErrUnavailable) // 1 s, then 2, 4, 5 and 5
				w.fake.Break(driver.ErrPluginGone)
			case 6:
				a.killNow()
			}
		}
		require.Len(t, at, 6, "it ends with the task")
		require.Equal(t, []time.Duration{0, 2 * time.Second}, at[:2])
		require.Contains(t, []time.Duration{time.Second, 3 * time.Second}, at[2]-at[1], "after one pause, or two: the task is recovered meanwhile")
		require.GreaterOrEqual(t, at[3]-at[2], 15*time.Second)
		require.Equal(t, 17*time.Second, at[5]-at[4])
		a.end()
		for range a.Stats(t.Context(), 0) {
			t.Error("a sample of a dead task")
		}
	})
}

// Nothing is measured while nobody reads, and a reader that goes is noticed.
func TestStatsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.edit = func(c *taskrunner.Config) { c.Gated = true }
		a := w.start()
		time.Sleep(time.Hour)
		require.Zero(t, w.fake.Count(drivertest.Stats))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute-time.Millisecond)
		defer cancel()
		time.AfterFunc(30*time.Second, func() { a.SetGate(true) })
		n := 0
		for range a.Stats(ctx, 0) {
			n++
		}
		require.Equal(t, 30, n, "from the start of the task on, each second")
		for range a.Stats(t.Context(), 0) {
			break
		}
		synctest.Wait()
		require.Equal(t, 2, w.fake.Count(drivertest.Stats))
		a.detach()
		for range a.Stats(ctx, 0) {
			t.Error("a sample after the end of ctx")
		}
		b := w.start()
		b.phase(taskrunner.Running)
		b.killNow()
		b.end()
	})
}
