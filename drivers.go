// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

// DriverFunc makes a driver for an agent, once, in New. The pool is the agent's:
// a driver that runs its tasks under a supervisor shares its connections.
type DriverFunc = func(*supervisor.Pool) (driver.Driver, error)

// InProcess is the DriverFunc of a driver that needs no supervisor.
func InProcess(d driver.Driver) DriverFunc {
	return func(*supervisor.Pool) (driver.Driver, error) { return d, nil }
}

// ErrUnknownDriver says that a task names a driver this agent does not have.
var ErrUnknownDriver = errors.New("nodekeep: unknown driver")

// fingerprintWait bounds how long a node waits for the first word of its drivers.
const fingerprintWait = time.Minute

// drivers holds the agent's drivers and their latest fingerprints.
type drivers struct {
	log    hclog.Logger
	byName map[string]driver.Driver // never changes after New
	order  []string

	mu     sync.Mutex
	latest map[string]driver.Fingerprint
}

func newDrivers(funcs []DriverFunc, pool *supervisor.Pool, log hclog.Logger) (*drivers, error) {
	s := &drivers{log: log, byName: map[string]driver.Driver{}, latest: map[string]driver.Fingerprint{}}
	for i, f := range funcs {
		if f == nil {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d] is nil", i)
		}
		d, err := f(pool)
		if err != nil {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d]: %w", i, err)
		}
		name := d.Info().Name
		if name == "" || s.byName[name] != nil {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d]: name %q is empty or taken", i, name)
		}
		s.byName[name] = d
		s.order = append(s.order, name)
	}
	slices.Sort(s.order)
	return s, nil
}

// Driver returns the driver of that name (taskrunner.Drivers).
func (s *drivers) Driver(_ context.Context, name string) (driver.Driver, error) { return s.find(name) }

func (s *drivers) find(name string) (driver.Driver, error) {
	if d := s.byName[name]; d != nil {
		return d, nil
	}
	have := strings.Join(s.order, ", ")
	if have == "" {
		have = "none"
	}
	return nil, fmt.Errorf("%w %q: this node has %s", ErrUnknownDriver, name, have)
}

// watch follows every driver's fingerprint until ctx ends, and calls first once
// each has said its first word or a minute has passed. It returns when all
// streams have ended.
func (s *drivers) watch(ctx context.Context, first func()) {
	var streams sync.WaitGroup
	words := make(chan string, len(s.order))
	for _, name := range s.order {
		streams.Go(func() { s.follow(ctx, name, words) })
	}
	timeout := time.NewTimer(fingerprintWait)
	defer timeout.Stop()
	silent := map[string]bool{}
	for _, name := range s.order {
		silent[name] = true
	}
	for len(silent) > 0 {
		select {
		case name := <-words:
			delete(silent, name)
			continue
		case <-timeout.C:
		case <-ctx.Done():
		}
		break
	}
	for name := range silent {
		s.log.Warn("driver is silent, going on without it", "driver", name, "waited", fingerprintWait)
	}
	first()
	streams.Wait()
}

func (s *drivers) follow(ctx context.Context, name string, words chan<- string) {
	told := false
	tell := func(fp driver.Fingerprint) {
		s.mu.Lock()
		old := s.latest[name]
		s.latest[name] = fp
		s.mu.Unlock()
		if !told || old.Health != fp.Health || old.Description != fp.Description {
			s.log.Info("driver", "driver", name, "health", fp.Health, "description", fp.Description)
		}
		if !told {
			words <- name
			told = true
		}
	}
	ch, err := s.byName[name].Fingerprint(ctx)
	if err != nil {
		tell(driver.Fingerprint{Health: driver.Unhealthy, Description: err.Error()})
		return
	}
	for fp := range ch {
		tell(fp)
	}
}

// status returns all drivers, sorted by name.
func (s *drivers) status() []DriverStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]DriverStatus, 0, len(s.order))
	for _, name := range s.order {
		fp, ok := s.latest[name]
		st := DriverStatus{Name: name, Version: s.byName[name].Info().Version, Attributes: fp.Attributes,
			Detected: ok && fp.Health != driver.Undetected, Healthy: fp.Health == driver.Healthy, Description: fp.Description}
		if !ok {
			st.Description = "has not answered yet"
		}
		out = append(out, st)
	}
	return out
}
