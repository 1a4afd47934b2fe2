// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// explained is one line for each thing to know, in the order of the text.
func (a *agent) explained() (out []string) {
	a.w.Helper()
	synctest.Wait()
	ctx, cancel := context.WithTimeout(a.w.Context(), time.Millisecond)
	defer cancel()
	e := a.Explain(ctx)
	for _, r := range e.Waiting {
		out = append(out, "waits: "+r.Text(time.Now()))
	}
	if e.Failed != nil {
		out = append(out, "failed: "+e.Failed.Text(time.Now()))
	}
	for _, r := range e.Next {
		out = append(out, "next: "+r.Text(time.Now()))
	}
	return out
}

func TestExplainLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(time.Minute, 7), forever())
		entered, leave := make(chan struct{}), make(chan struct{})
		w.hooks = []taskrunner.HookFunc{hookOf(&taskrunner.Hook[struct{}]{Name: "fetch",
			Prestart: func(context.Context, *taskrunner.Request, *struct{}) (c taskrunner.Contribution, err error) {
				close(entered)
				<-leave
				entered = make(chan struct{})
				return c, nil
			}})}
		w.edit = func(c *taskrunner.Config) { c.Gated, c.Linger = true, true }
		w.task().ShutdownDelay, w.task().KillTimeout = 20*time.Second, 10*time.Second
		w.task().KillSignal = "SIGTERM"
		a := w.start()
		require.Equal(t, []string{"waits: its alloc does not let it start yet", "next: it is started (attempt 0)"}, a.explained())
		a.SetGate(true)
		<-entered
		time.Sleep(12 * time.Second)
		require.Equal(t, []string{`waits: hook "fetch" is at work: prestart, for 12s`, "next: it is started (attempt 0)"}, a.explained())
		close(leave)
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"waits: it runs until it exits, for 0s",
			"next: if it exited with 0: restarted after 15s (exit code 0)",
			"next: if it exited with 1: restarted after 15s (exit code 1)"}, a.explained())
		time.Sleep(time.Minute + time.Second)
		got := a.explained()
		require.Len(t, got, 3)
		require.Regexp(t, `^waits: the pause of the restart policy ends, in 1\d`, got[0])
		require.Equal(t, "failed: Terminated: Exit code 7, 1s ago", got[1])
		require.Regexp(t, `^next: it is started \(attempt 1\), in 1\d`, got[2])
		e := a.Explain(t.Context())
		require.True(t, a.Snapshot().Backoff.At().Equal(e.Waiting[0].Until), "the machine's own deadline")
		time.Sleep(20 * time.Second)
		a.phase(taskrunner.Running)
		require.NoError(t, a.Kill(t.Context(), taskrunner.KillRequest{Reason: "enough"}))
		require.Equal(t, []string{"waits: its shutdown delay ends, in 20s", "failed: Terminated: Exit code 7, 21s ago", "next: it is stopped: enough"}, a.explained())
		a.end()
		require.Equal(t, []string{"failed: Terminated: Exit code 7, 41s ago", "next: nothing: it has ended: enough"}, a.explained())
	})
}

func TestExplainStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever})
		a := w.start()
		a.killNow()
		time.Sleep(4 * time.Second)
		require.Equal(t, []string{"waits: its stop signal was sent; it is killed, in 6s", "next: it is stopped"}, a.explained())
		a.end()
	})
}

// A restored task that was lost waits for the control plane, and one whose driver
// does not answer is looked for again.
func TestExplainRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(forever())
		contact := make(chan struct{})
		w.edit = func(c *taskrunner.Config) { c.FirstContact = contact }
		a := w.start()
		a.phase(taskrunner.Running)
		a.detach()
		w.fake.Fail(drivertest.Recover, 1, fmt.Errorf("%w: not now", driver.ErrUnavailable))
		w.fake.Forget()
		a = w.start()
		got := a.explained()
		require.Equal(t, "waits: finding the task again failed: driver: unavailable: not now; it is tried again, in 1s", got[0])
		w.fake.Reboot()
		time.Sleep(2 * time.Second)
		got = a.explained()
		require.Contains(t, got[0], "waits: the control plane has not spoken")
		require.Contains(t, got[1], "failed: Failed Restoring Task")
		close(contact)
		a.phase(taskrunner.Running)
		a.killNow()
		a.end()
	})
}

// stuck is a store that can fail and hang.
type stuck struct {
	state.Store
	fail flag
	hang chan struct{}
}

func (s *stuck) Update(fn func(state.Tx) error) error {
	if s.hang != nil {
		<-s.hang
	}
	if s.fail.Load() {
		return errors.Join(state.ErrCommit, syscall.ENOSPC)
	}
	return s.Store.Update(fn)
}

func TestExplainDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Script = script(exits(time.Second, 1), forever())
		disk := &stuck{Store: w.store}
		w.store = disk
		a := w.start()
		a.phase(taskrunner.Running)
		disk.fail.Store(true)
		time.Sleep(1100 * time.Millisecond)
		require.Contains(t, a.explained()[0], "waits: the state cannot be written, nothing new is done; it is tried again, in ")
		disk.fail.Store(false)
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		disk.hang = make(chan struct{})
		go a.killNow()
		require.Equal(t, "waits: its runner does not answer: the disk may hang", a.explained()[0])
		close(disk.hang)
		a.end()
	})
}
