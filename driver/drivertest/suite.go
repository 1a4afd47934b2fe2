// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
)

// SuiteConfig says how to make the driver under test and what its tasks are
// configured with. All but Ignore, Bad, Shell and Left are
// required.
type SuiteConfig struct {
	// New makes a driver as an agent that has just started does. Whatever it needs
	// is made per test and cleaned up with t.Cleanup.
	New func(t *testing.T) driver.Driver
	// Renew drops d as the death of its agent would, its tasks untouched, and
	// returns the driver of the next agent.
	Renew func(t *testing.T, d driver.Driver) driver.Driver
	// Task makes a complete configuration of that ID, but for Config.
	Task func(t *testing.T, d driver.Driver, id string) driver.TaskConfig

	Sleep json.RawMessage                // runs for an hour, obeys SIGTERM at once
	Exit  func(code int) json.RawMessage // ends at once with the code
	// Terminated is how Sleep ends by SIGTERM; zero is 143 and signal 15. With an init
	// before the program, it is the init's exit.
	Terminated driver.ExitResult
	// Ignore runs for an hour and ignores SIGTERM from its first instant; nil: the
	// driver's tasks cannot.
	Ignore json.RawMessage
	// Bad cannot be started, such as a command that does not exist.
	Bad json.RawMessage
	// Shell is a command of the task that runs the script given as next argument,
	// such as /bin/sh -c; nil: nothing is tested of Exec.
	Shell []string
	// Left lists what is left of a task on the machine: processes, cgroups, mounts,
	// files. Called after Destroy and after a failed start; it must be empty.
	Left func(t *testing.T, cfg driver.TaskConfig) []string
}

// Suite runs the tests that every driver must pass. They run one after the other
// and in real time.
func Suite(t *testing.T, cfg SuiteConfig) {
	for _, tc := range []struct {
		name string
		run  func(*suite)
	}{
		{"info and fingerprint", (*suite).fingerprint},
		{"exit codes", (*suite).exitCodes},
		{"death by signal", (*suite).signalDeath},
		{"stop escalates", (*suite).escalation},
		{"stop of an ended task", (*suite).stopEnded},
		{"start is idempotent", (*suite).idempotentStart},
		{"failed start leaves nothing", (*suite).failedStart},
		{"recover a running task", (*suite).recoverRunning},
		{"recover a task that ended meanwhile", (*suite).recoverEnded},
		{"recover what is gone", (*suite).recoverGone},
		{"wait many times", (*suite).waitMany},
		{"wait ends with its context", (*suite).waitContext},
		{"destroy", (*suite).destroy},
		{"destroy by proof", (*suite).destroyByProof},
		{"destroy without proof", (*suite).destroyUnproven},
		{"unknown task", (*suite).unknown},
		{"signals", (*suite).signals},
		{"many at once", (*suite).many},
		{"exec", (*suite).exec},
		{"exec ends", (*suite).execEnds},
		{"exec on a terminal", (*suite).execTTY},
		{"many execs", (*suite).execMany},
		{"stats", (*suite).stats},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tc.run(&suite{T: t, cfg: cfg, d: cfg.New(t), limit: func() context.Context { return ctx }})
		})
	}
}

// suite is one test's state. limit is a context that no step may outlast.
type suite struct {
	*testing.T
	cfg   SuiteConfig
	d     driver.Driver
	limit func() context.Context
}

func (s *suite) task(id string, config json.RawMessage) driver.TaskConfig {
	c := s.cfg.Task(s.T, s.d, id)
	require.Equal(s, id, c.ID)
	c.Config = config
	return c
}

// start starts a task and has it destroyed in the end, whatever happens.
func (s *suite) start(c driver.TaskConfig) *driver.Handle {
	s.Helper()
	h, err := s.d.Start(s.limit(), c)
	require.NoError(s, err)
	require.NotNil(s, h)
	require.Equal(s, c.ID, h.TaskID)
	require.Equal(s, s.d.Info().Name, h.Driver)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.limit()), 30*time.Second)
		defer cancel()
		err := s.d.Destroy(ctx, ref(c, h), true)
		if err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
			s.Errorf("destroy %s: %v", c.ID, err)
		}
		s.left(c)
	})
	return h
}

func ref(c driver.TaskConfig, h *driver.Handle) driver.TaskRef {
	return driver.TaskRef{ID: c.ID, Handle: h, Scope: c.Scope, Cgroup: c.Cgroup}
}

func (s *suite) wait(id string) driver.ExitResult {
	s.Helper()
	res, err := s.d.Wait(s.limit(), id)
	require.NoError(s, err)
	return res
}

func (s *suite) left(c driver.TaskConfig) {
	s.Helper()
	if s.cfg.Left != nil {
		if left := s.cfg.Left(s.T, c); len(left) > 0 {
			s.Errorf("left of %s: %q", c.ID, left)
		}
	}
}

// renew plays the restart of the agent.
func (s *suite) renew() {
	s.Helper()
	s.d = s.cfg.Renew(s.T, s.d)
}

func (s *suite) fingerprint() {
	require.NotEmpty(s, s.d.Info().Name)
	ctx, cancel := context.WithCancel(s.limit())
	defer cancel()
	c, err := s.d.Fingerprint(ctx)
	require.NoError(s, err)
	select {
	case fp, ok := <-c:
		require.True(s, ok)
		require.NotEmpty(s, fp.Health)
	case <-s.limit().Done():
		s.Fatal("no first fingerprint")
	}
	cancel()
	for {
		select {
		case _, ok := <-c:
			if !ok {
				return
			}
		case <-s.limit().Done():
			s.Fatal("the channel is not closed when the context ends")
		}
	}
}

func (s *suite) exitCodes() {
	for _, code := range []int{0, 1, 7, 255} {
		c := s.task("exit/code/"+string(rune('a'+code%26)), s.cfg.Exit(code))
		s.start(c)
		require.Equal(s, driver.ExitResult{Code: code}, s.wait(c.ID))
		require.NoError(s, s.d.Destroy(s.limit(), ref(c, nil), false), "an ended task needs no force")
		_, err := s.d.Wait(s.limit(), c.ID)
		require.ErrorIs(s, err, driver.ErrTaskNotFound)
		s.left(c)
	}
}

func (s *suite) signalDeath() {
	c := s.task("signal/death/0", s.cfg.Sleep)
	s.start(c)
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", 30*time.Second))
	res := s.wait(c.ID)
	require.Equal(s, s.terminated(), res)
	require.False(s, res.OK())
}

// terminated is how Sleep ends by SIGTERM.
func (s *suite) terminated() driver.ExitResult {
	if s.cfg.Terminated != (driver.ExitResult{}) {
		return s.cfg.Terminated
	}
	return driver.ExitResult{Code: 128 + 15, Signal: 15}
}

func (s *suite) escalation() {
	if s.cfg.Ignore == nil {
		s.Skip("tasks of this driver cannot ignore the stop signal")
	}
	c := s.task("stop/escalation/0", s.cfg.Ignore)
	s.start(c)
	const grace = 300 * time.Millisecond
	began := time.Now()
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", grace))
	require.GreaterOrEqual(s, time.Since(began), grace, "killed before its time")
	require.Equal(s, driver.ExitResult{Code: 128 + 9, Signal: 9}, s.wait(c.ID))

	// The escalation goes on when the caller is gone.
	c = s.task("stop/escalation/1", s.cfg.Ignore)
	s.start(c)
	ctx, cancel := context.WithTimeout(s.limit(), grace/10)
	defer cancel()
	require.Error(s, s.d.Stop(ctx, c.ID, "SIGTERM", grace))
	require.Equal(s, driver.ExitResult{Code: 128 + 9, Signal: 9}, s.wait(c.ID))
}

func (s *suite) stopEnded() {
	c := s.task("stop/ended/0", s.cfg.Exit(3))
	s.start(c)
	s.wait(c.ID)
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", time.Second))
	require.Equal(s, driver.ExitResult{Code: 3}, s.wait(c.ID), "a stop that came too late changes nothing")
}

func (s *suite) idempotentStart() {
	c := s.task("start/twice/0", s.cfg.Sleep)
	h := s.start(c)
	again, err := s.d.Start(s.limit(), c)
	if !s.d.Info().Capabilities.IdempotentStart {
		require.ErrorIs(s, err, driver.ErrTaskExists)
		return
	}
	require.NoError(s, err)
	require.Equal(s, h, again)

	// Also for the next agent, which knows of the intent but not of its success.
	s.renew()
	again, err = s.d.Start(s.limit(), c)
	require.NoError(s, err)
	require.Equal(s, h.PID, again.PID, "a second process was started")
}

func (s *suite) failedStart() {
	if s.cfg.Bad == nil {
		s.Skip("nothing is too bad for this driver")
	}
	c := s.task("start/failed/0", s.cfg.Bad)
	for range 3 {
		_, err := s.d.Start(s.limit(), c)
		require.Error(s, err)
	}
	_, err := s.d.Wait(s.limit(), c.ID)
	require.ErrorIs(s, err, driver.ErrTaskNotFound)
	s.left(c)
	c.Config = s.cfg.Exit(0)
	s.start(c)
	require.Equal(s, driver.ExitResult{}, s.wait(c.ID), "the same ID starts with a good configuration")
}
