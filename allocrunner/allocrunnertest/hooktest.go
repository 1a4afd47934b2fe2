// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package allocrunnertest proves that a hook of allocs keeps its promises: it is
// driven through whole lives of an alloc, with a crash of the agent before and
// after every single write, and with a disk that fails at each.
//
//	life       up ─ update ─ restart ─ agent restarts ─ stop ─ Destroy
//	crash n    the same; the agent dies at its nth write, the next one goes on
//	disk n     the same; the disk fails for a while from the nth write on
//	refused    a later prerun hook fails: what was taken is given back
//	short      the agent restarts before the first task ran, then a stop
//
// All of it happens in virtual time (testing/synctest), with drivertest.Fake and
// a store in memory, so a hook that waits for an hour costs nothing, and a
// goroutine that it leaves behind fails the test.
package allocrunnertest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
)

// Config says what is tested. Setup is required.
type Config struct {
	// Setup makes the world outside the hook, such as a pool of ports, and returns
	// the hook and a func that lists what the hook has taken from that world and
	// not given back. It is called anew for every life, inside its virtual time.
	Setup func(t testing.TB) (hook allocrunner.HookFunc, left func() []string)
	// Alloc is what is run; nil is a service with one task. Its tasks' driver is
	// "fake"; the alloc must still live when nobody has stopped it for an hour.
	Alloc *spec.Alloc
	// Script says what the tasks do; nil: they run until they are stopped.
	Script func(n int, cfg driver.TaskConfig) drivertest.Life
}

// HookTest runs all lives as subtests of t.
func HookTest(t *testing.T, cfg Config) {
	t.Run("life", func(t *testing.T) { cfg.life(t, none) })
	for name, wrap := range map[string]func(n int) wrapper{
		"crash before": crashBefore, "crash after": crashAfter, "disk fails": diskFails,
	} {
		t.Run(name, func(t *testing.T) {
			for n, met := 1, true; met && !t.Failed(); n++ {
				t.Run(fmt.Sprint(n), func(t *testing.T) { met = cfg.life(t, wrap(n)) })
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := cfg.stage(t)
			s.hooks = append(s.hooks, func(*spec.Alloc) (allocrunner.AnyHook, error) {
				return &allocrunner.Hook[struct{}]{Name: "allocrunnertest", Stage: allocrunner.StageHealth + 1, Prerun: refuse}, nil
			})
			s.agent(none)
			s.wait(time.Second)
			s.over(allocrunner.Failed)
		})
	})
	t.Run("short", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := cfg.stage(t)
			s.fake.Slow(drivertest.Prepare, time.Hour)
			s.agent(none)
			s.wait(time.Second)
			s.restart(none)
			s.stop()
			s.over(allocrunner.Complete)
		})
	})
}

// life plays the whole life; met says whether what wrap does to the store happened.
func (cfg Config) life(t *testing.T, wrap wrapper) (met bool) {
	synctest.Test(t, func(t *testing.T) {
		s := cfg.stage(t)
		s.agent(wrap)
		for _, step := range []func(){
			func() {},
			s.update,
			func() { s.try(s.Restart(t.Context(), allocrunner.RestartRequest{All: true, Reason: "test"})) },
			func() { s.restart(s.wrap) },
			s.stop,
		} {
			step()
			if s.crashed(time.Minute) {
				step()
				s.wait(time.Minute)
			}
		}
		s.over(allocrunner.Complete)
		met = s.met()
	})
	return met
}

// wrapper makes the store of an agent: what fails in it, and when it has.
type wrapper struct {
	store func(state.Store) state.Store
	// met says that the failure has happened; crashed is closed by a crash.
	met     func(state.Store) bool
	crashed func(state.Store) <-chan struct{}
}

var none = wrapper{}

func crashes(make func(state.Store) *statetest.Crash) wrapper {
	return wrapper{
		store:   func(s state.Store) state.Store { return make(s) },
		crashed: func(s state.Store) <-chan struct{} { return s.(*statetest.Crash).Crashed() },
	}
}

func crashBefore(n int) wrapper {
	return crashes(func(s state.Store) *statetest.Crash { return statetest.CrashAt(s, n) })
}

func crashAfter(n int) wrapper {
	return crashes(func(s state.Store) *statetest.Crash { return statetest.CrashAfter(s, n) })
}

func diskFails(n int) wrapper {
	return wrapper{
		store: func(s state.Store) state.Store {
			return statetest.Faulty(s, statetest.Faults{Err: syscall.ENOSPC, At: n, For: 5})
		},
		met: func(s state.Store) bool { return s.(*statetest.Fault).Updates() >= n },
	}
}

var errRefused = errors.New("allocrunnertest: refused")
