// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicetest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
)

// SuiteConfig says how to make the plugin under test. It must find at least one
// healthy device.
type SuiteConfig struct {
	// New makes a configured plugin. Whatever it needs is cleaned up with t.Cleanup.
	New func(t *testing.T) device.Plugin
	// Renew returns the plugin of the next agent, after the death of this one's.
	Renew func(t *testing.T, p device.Plugin) device.Plugin
}

// Suite runs the tests that every device plugin must pass, one after the other and
// in real time.
func Suite(t *testing.T, cfg SuiteConfig) {
	for _, tc := range []struct {
		name string
		run  func(*suite)
	}{
		{"fingerprint", (*suite).fingerprint},
		{"fingerprints side by side", (*suite).sideBySide},
		{"ids stay", (*suite).idsStay},
		{"reserve", (*suite).reserve},
		{"reserve changes nothing", (*suite).repeat},
		{"reserve what is not there", (*suite).unknown},
		{"many at once", (*suite).many},
		{"stats", (*suite).stats},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			tc.run(&suite{T: t, cfg: cfg, p: cfg.New(t), limit: func() context.Context { return ctx }})
		})
	}
}

type suite struct {
	*testing.T
	cfg   SuiteConfig
	p     device.Plugin
	limit func() context.Context
}

// first returns the first fingerprint and ends the stream.
func (s *suite) first() []device.Group {
	s.Helper()
	ctx, cancel := context.WithCancel(s.limit())
	c, err := s.p.Fingerprint(ctx)
	require.NoError(s, err)
	fp, ok := recv(s, c)
	require.True(s, ok)
	require.NoError(s, fp.Err)
	cancel()
	drain(s, c)
	return fp.Groups
}

func recv[T any](s *suite, c <-chan T) (v T, ok bool) {
	s.Helper()
	select {
	case v, ok = <-c:
	case <-s.limit().Done():
		s.Fatal("nothing comes")
	}
	return v, ok
}

// drain waits for a stream to be closed.
func drain[T any](s *suite, c <-chan T) {
	s.Helper()
	for {
		if _, ok := recv(s, c); !ok {
			return
		}
	}
}

func healthy(groups []device.Group) (ids [][]string) {
	for _, g := range groups {
		var of []string
		for _, in := range g.Instances {
			if in.Healthy {
				of = append(of, in.ID)
			}
		}
		if len(of) > 0 {
			ids = append(ids, of)
		}
	}
	return ids
}

func (s *suite) fingerprint() {
	require.NotEmpty(s, s.p.Info().Name)
	began := time.Now()
	groups := s.first()
	require.Less(s, time.Since(began), 10*time.Second, "the first fingerprint comes at once")
	require.NoError(s, device.Validate(groups))
	require.NotEmpty(s, healthy(groups), "the suite needs a healthy device")
}

func (s *suite) sideBySide() {
	ctx, cancel := context.WithCancel(s.limit())
	defer cancel()
	one, err := s.p.Fingerprint(ctx)
	require.NoError(s, err)
	recv(s, one)
	require.NotEmpty(s, s.first(), "a second stream begins at the beginning too, and its end is not the first's")
	cancel()
	drain(s, one)
}

func (s *suite) idsStay() {
	before := healthy(s.first())
	if s.cfg.Renew != nil {
		s.p = s.cfg.Renew(s.T, s.p)
	}
	require.Equal(s, before, healthy(s.first()))
}

func (s *suite) reserve() {
	for _, ids := range healthy(s.first()) {
		for n := 1; n <= len(ids); n++ {
			r, err := s.p.Reserve(s.limit(), ids[:n])
			require.NoError(s, err)
			require.NotZero(s, len(r.Env)+len(r.Mounts)+len(r.Devices), "a task could not tell what it got")
			for _, d := range r.Devices {
				require.NotEmpty(s, d.HostPath)
				require.NotEmpty(s, d.TaskPath)
				require.Regexp(s, "^[rwm]+$", d.Permissions)
			}
			for _, m := range r.Mounts {
				require.NotEmpty(s, m.Source)
				require.NotEmpty(s, m.Target)
			}
		}
	}
}

// There is no call that gives back: whoever counted would run out.
func (s *suite) repeat() {
	ids := healthy(s.first())[0]
	want, err := s.p.Reserve(s.limit(), ids)
	require.NoError(s, err)
	for range 20 {
		got, err := s.p.Reserve(s.limit(), ids)
		require.NoError(s, err)
		require.Equal(s, want, got)
	}
	if s.cfg.Renew != nil {
		s.p = s.cfg.Renew(s.T, s.p)
		s.first()
		got, err := s.p.Reserve(s.limit(), ids)
		require.NoError(s, err)
		require.Equal(s, want, got, "the next agent gets the same")
	}
}

func (s *suite) unknown() {
	ids := healthy(s.first())[0]
	_, err := s.p.Reserve(s.limit(), []string{"no such device"})
	require.Error(s, err)
	_, err = s.p.Reserve(s.limit(), []string{ids[0], "no such device"})
	require.Error(s, err)
}

func (s *suite) many() {
	ids := healthy(s.first())[0]
	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for range cap(errs) {
		wg.Go(func() {
			_, err := s.p.Reserve(s.limit(), ids[:1])
			errs <- err
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(s, <-errs)
	}
}

func (s *suite) stats() {
	known := map[string]bool{}
	for _, g := range s.first() {
		known[g.ID()] = true
	}
	ctx, cancel := context.WithCancel(s.limit())
	defer cancel()
	c, err := s.p.Stats(ctx, 10*time.Millisecond)
	if errors.Is(err, driver.ErrNotImplemented) {
		return
	}
	require.NoError(s, err)
	for range 3 {
		st, ok := recv(s, c)
		require.True(s, ok)
		if errors.Is(st.Err, driver.ErrNotImplemented) {
			return
		}
		require.NoError(s, st.Err)
		for _, g := range st.Groups {
			require.True(s, known[g.Vendor+"/"+g.Type+"/"+g.Name], "statistics of an unknown group")
			for _, in := range g.Instances {
				require.False(s, in.Time.IsZero())
			}
		}
	}
	cancel()
	drain(s, c)
}
