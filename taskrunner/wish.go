// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"fmt"
	"maps"
	"time"

	"github.com/nodekeep/nodekeep/internal/bootclock"
)

// Wishes become part of the snapshot by these pure functions; next then converges
// on them.

// wishKill accepts a kill. A later one can only shorten what is left.
func (s Snapshot) wishKill(req KillRequest, p params) (Snapshot, effect) {
	if s.Kill != nil {
		return s.wishHarderKill(req, p)
	}
	s.Kill = &req
	if s.Final {
		return s, durable
	}
	if req.Kind != "" {
		s.note(p.now.Wall, req.Kind, attrs(nil, "reason", req.Reason))
	}
	switch s.Phase {
	case Starting, Running, Stopping:
		s.Resume.Killing = true
		s.note(p.now.Wall, Killing, attrs(nil, "reason", req.Reason, "grace", s.grace(p).String()))
		if s.Phase == Stopping {
			s.shorten(p)
		}
	case Exited: // the attempt has ended; there is just no next one
		s.endKilled(p)
	}
	return s, durable
}

func (s Snapshot) wishHarderKill(req KillRequest, p params) (Snapshot, effect) {
	k := *s.Kill
	if req.NoShutdownDelay && !k.NoShutdownDelay {
		k.NoShutdownDelay = true
		if s.Phase == Running && !s.Resume.Delay.IsZero() {
			s.note(p.now.Wall, SkippingDelay, nil)
		}
	}
	if req.Grace != 0 && (k.Grace == 0 || req.Grace < k.Grace) {
		k.Grace = req.Grace
	}
	if k == *s.Kill || s.Final {
		return s, same
	}
	s.Kill = &k
	if s.Phase == Stopping {
		s.shorten(p)
	}
	return s, durable
}

// shorten brings a grace that is running to what the kill allows from now on.
func (s *Snapshot) shorten(p params) {
	if s.Kill.Grace != 0 && s.grace(p) < s.Resume.Grace.Left(p.now) {
		s.Resume.Grace = bootclock.Deadline{From: p.now, Delay: s.grace(p)}
	}
}

// wishRestart accepts a restart, or says that there is nothing to restart.
func (s Snapshot) wishRestart(req RestartRequest, linger bool, p params) (Snapshot, effect, error) {
	switch {
	case s.Kill != nil:
		return s, same, ErrNotRunning
	case s.Resume.Leaked:
		return s, same, fmt.Errorf("%w: something of its last attempt may still run; end it by hand", ErrNotRunning)
	case s.Restarting != nil && (s.Phase == Running || s.Phase == Stopping):
		return s, same, nil
	case s.Phase == Running:
		s.Restarting = &req
		s.note(p.now.Wall, RestartSignaled, attrs(nil, "reason", req.Reason))
		return s, durable, nil
	case !req.AlsoDead || s.Final && !linger:
		return s, same, ErrNotRunning
	case s.Final:
		if s.Restarting != nil {
			return s, same, nil
		}
		s.Restarting = &req
		s.note(p.now.Wall, RestartSignaled, attrs(nil, "reason", req.Reason))
		return s, durable, nil
	case s.Backoff.IsZero():
		return s, same, nil
	}
	s.Backoff = bootclock.Deadline{}
	s.note(p.now.Wall, RestartSignaled, attrs(nil, "reason", req.Reason))
	return s, durable, nil
}

// note adds an event. The ring is cut when it is written.
func (s *Snapshot) note(at time.Time, k Kind, attrs map[string]string) {
	s.Seq++
	// A copy: what was published shares the old one.
	s.Events = append(s.Events[:len(s.Events):len(s.Events)], Event{Seq: s.Seq, Time: at, Kind: k, Attrs: attrs})
}

// trim keeps the last n events.
func (s Snapshot) trim(n int) Snapshot {
	if over := len(s.Events) - n; over > 0 {
		s.Events = append([]Event(nil), s.Events[over:]...)
	}
	return s
}

// attrs adds pairs to a copy of m, without the empty ones. It may be nil.
func attrs(m map[string]string, kv ...string) map[string]string {
	m = maps.Clone(m)
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] != "" {
			if m == nil {
				m = map[string]string{}
			}
			m[kv[i]] = kv[i+1]
		}
	}
	return m
}
