// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// impatient shortens the bounds of silence.
func (r *rig) impatient() {
	r.p.silence, r.p.hung = 100*time.Millisecond, 2*time.Second
}

func (r *rig) warned(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.warns, "\n"), text)
}

// stopped stops the supervisor and waits until it is.
func (r *rig) stopped() int {
	r.t.Helper()
	pid := r.pid()
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	eventually(r.t, "the stop", func() bool { st := procStat(pid); return st != nil && st[statState] == "T" })
	return pid
}

// A supervisor that is stopped is ended, its task adopted: for an agent that
// finds it so, and for one that was connected. Other scopes never wait.
func TestHungSupervisor(t *testing.T) {
	for _, how := range []string{"agent restarted", "agent alive", "socket gone too"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.impatient()
			st := r.start(r.sh("a", counter))
			r.waitLog("a.stdout", "line 3\n")
			other := r.p.Scope("other")
			if _, err := other.List(t.Context()); err != nil {
				t.Fatal(err)
			}
			pid := r.stopped()
			if how != "agent alive" {
				r.agent()
				r.impatient()
				other = r.p.Scope("other")
			}
			if how == "socket gone too" {
				_ = syscall.Unlink(r.dir + "/sock")
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if st, err := r.Lookup(t.Context(), "a"); err != nil || st.Exited || !st.Adopted {
					t.Errorf("%+v %v", st, err)
				}
			})
			if _, err := other.List(t.Context()); err != nil {
				t.Error(err)
			}
			wg.Wait()
			gone(t, pid)
			if !r.warned("scope s: it is ended") || !r.warned("pid "+itoa(pid)) {
				t.Errorf("warnings: %q", r.warns)
			}
			n := checkLines(t, "a", r.log("a.stdout"))
			r.waitLog("a.stdout", "line "+itoa(n+5)+"\n")
			if now, err := r.Adopt(t.Context(), Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID}); err != nil || now.Exited {
				t.Errorf("%+v %v", now, err)
			}
			if err := r.Stop(t.Context(), "a", syscall.SIGTERM, time.Minute); err != nil {
				t.Error(err)
			}
			r.wait("a")
			checkLines(t, "a", r.log("a.stdout"))
		})
	}
}

// Slow work is no silence, and waiting for an exit asks for no answer.
func TestSlowIsNotHung(t *testing.T) {
	r := newRig(t)
	r.p.silence, r.p.hung = 20*time.Millisecond, 10*time.Second
	r.start(r.sh("a", "sleep 0.5; exit 3"))
	pid := r.pid()
	if st := r.wait("a"); st.Code != 3 || r.pid() != pid {
		t.Errorf("%+v", st)
	}
	r.Scope.mu.Lock()
	c := r.c
	r.Scope.mu.Unlock()
	eventually(t, "no answer awaited, no timer", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.awaited == 0 && !c.silence.Stop()
	})
}

// What holds the lock and is no supervisor is named as far as it is known, and
// left alone.
func TestHungStranger(t *testing.T) {
	s := oldServer(t, func(request) *enc { return nil })
	s.pool.silence, s.pool.hung = 20*time.Millisecond, 60*time.Millisecond
	_, err := s.List(t.Context())
	if !errors.Is(err, ErrNotAnswering) || !strings.Contains(err.Error(), "scope s") || !strings.Contains(err.Error(), s.dir+"/lock") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Wait(ctx, "a"); err == nil {
		t.Fatal("answered")
	}
}
