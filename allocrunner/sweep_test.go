// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/allocrunner/allocrunnertest"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
)

// leases is a pool whose takers are known by name: taking and giving twice is the
// same as once.
type leases struct {
	mu   sync.Mutex
	held map[string]int
}

func (l *leases) take(who string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[who] == 0 {
		l.held[who] = 8000 + len(l.held)
	}
	return l.held[who]
}

func (l *leases) give(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, who)
}

// leaseHook takes a lease for the alloc and registers it as a service while it runs.
func leaseHook(pool, registry *leases) allocrunner.HookFunc {
	type lease struct{ Port int }
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		return &allocrunner.Hook[lease]{
			Name: "lease",
			Prerun: func(_ context.Context, r *allocrunner.Request, l *lease) error {
				if l.Port = pool.take(r.Alloc.ID); r.Checkpoint() != nil {
					return r.Checkpoint()
				}
				registry.take(r.Alloc.ID)
				r.Go("watch", func(ctx context.Context) { <-ctx.Done() })
				return nil
			},
			Prekill: func(_ context.Context, r *allocrunner.Request, _ *lease) error { registry.give(r.Alloc.ID); return nil },
			Postrun: func(_ context.Context, r *allocrunner.Request, l *lease) error {
				pool.give(r.Alloc.ID)
				l.Port = 0
				return nil
			},
		}, nil
	}
}

// A crash before and after every write, and a failing disk at every write, through
// a life with prestart, leader, sidecar and poststop, restarts and a stop: no task
// lives twice or is left, leases balance, statuses keep their order, the end is
// the same.
func TestCrashSweep(t *testing.T) {
	w := newWorld(t, spec.JobService, "init:pre proxy:preside lead:main+leader web:main tail:postside bye:stop")
	w.alloc.Settings.ShutdownDelay = 7 * time.Second
	w.alloc.Tasks[3].ShutdownDelay = 3 * time.Second
	for i := range w.alloc.Tasks {
		w.alloc.Tasks[i].Restart.Attempts = 20
	}
	allocrunnertest.HookTest(t, allocrunnertest.Config{
		Alloc: w.alloc,
		Script: func(_ int, cfg driver.TaskConfig) drivertest.Life {
			switch cfg.Name {
			case "init", "bye":
				return second(2)
			case "web": // a crash of its own in every second attempt
				if cfg.Owner.Attempt%2 == 0 {
					return fails(20)
				}
			}
			return drivertest.Life{Run: drivertest.Forever, Term: time.Second}
		},
		Setup: func(testing.TB) (allocrunner.HookFunc, func() []string) {
			pool, registry := &leases{held: map[string]int{}}, &leases{held: map[string]int{}}
			return leaseHook(pool, registry), func() []string {
				var left []string
				for _, l := range []*leases{pool, registry} {
					for who, port := range l.held {
						left = append(left, fmt.Sprintf("%s: %d", who, port))
					}
				}
				return left
			}
		},
	})
}
