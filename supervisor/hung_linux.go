// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A supervisor that is stopped, or stuck, keeps its socket and its lock: who asks
// it would wait for ever. So the wait is bounded. While a request that is to be
// answered at once or soon is under way, silence is watched, with one timer for a
// connection and none while nothing is asked:
//
//	request ── silence ──▶ a Hello is asked too ── patience ──▶ nothing came: ended
//
// Anything that comes starts the watch anew, so that slow work is no fault. To end
// it loses nothing: the next one adopts its tasks.
const (
	silenceBound = 5 * time.Second  // without a word
	hungBound    = 15 * time.Second // then it is ended
	endBound     = 5 * time.Second  // for a killed one to be gone
)

// watchSilence is called with c.mu held when one more answer is awaited.
func (c *client) watchSilence() {
	c.awaited++
	if c.awaited == 1 && c.scope != nil {
		c.heard = false
		c.pinged = false
		c.silence = time.AfterFunc(c.scope.pool.silence, c.silent)
	}
}

// answered is called with c.mu held when a call that counts is over.
func (c *client) answered(k *call) {
	if k.waits {
		return
	}
	if c.awaited--; c.awaited == 0 && c.silence != nil {
		c.silence.Stop()
	}
}

// silent is called by the timer: something was asked a while ago.
func (c *client) silent() {
	p := c.scope.pool
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.calls == nil || c.awaited == 0:
	case c.heard:
		c.heard, c.pinged = false, false
		c.silence.Reset(p.silence)
	case !c.pinged:
		c.pinged = true
		c.silence.Reset(p.hung - p.silence)
		p.spawn(func() { c.send(kHello, nil) })
	default:
		p.spawn(func() {
			_ = c.scope.endHung(p.hung)
			_ = c.f.Close() // also of one that does not die
		})
	}
}

// notAnswering names who does not answer.
func (s *Scope) notAnswering(l []proc, since time.Duration) error {
	who := "what holds " + s.dir + "/lock"
	for i, p := range l {
		if i == 0 {
			who = "pid " + itoa(p.pid)
		} else {
			who += ", " + itoa(p.pid)
		}
	}
	return failed("supervisor: scope "+s.name+": "+who+" has not answered for "+since.String(), ErrNotAnswering)
}

// endHung ends the scope's supervisor, which is silent: it is told by the lock it
// holds, its name and its user. An error says that there is none, or that it does
// not die.
func (s *Scope) endHung(since time.Duration) error {
	l := lockHolders(s.dir)
	err := s.notAnswering(l, since)
	if len(l) == 0 {
		return err
	}
	s.pool.cfg.Warn("scope " + s.name + ": it is ended, the next one adopts its tasks: " + err.Error())
	for _, p := range l {
		f, perr := openPidfd(p.pid, p.start)
		if perr != nil {
			continue // gone by itself
		}
		if holdsLock(p.pid, s.dir) {
			signalExactly(p.pid, p.start, syscall.SIGKILL)
		}
		_ = f.SetReadDeadline(time.Now().Add(endBound))
		_, _, perr = awaitPidfd(f, p.pid, p.start)
		_ = f.Close()
		if perr != nil {
			return failed("it does not die", err)
		}
	}
	return nil
}

// lockHolders returns the supervisors of this user that hold the scope's lock,
// what they have forked and is not in its exec yet included.
func lockHolders(dir string) (l []proc) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if start := startTime(pid); start != 0 && holdsLock(pid, dir) {
			l = append(l, proc{pid, start})
		}
	}
	return l
}

// holdsLock says whether pid is a supervisor and one of its descriptors is what
// locks the scope.
func holdsLock(pid int, dir string) bool {
	of := "/proc/" + itoa(pid)
	b, err := os.ReadFile(of + "/cmdline")
	var lock, st syscall.Stat_t
	if err != nil || !strings.HasPrefix(string(b), argv0+"\x00") || syscall.Lstat(dir+"/lock", &lock) != nil ||
		syscall.Stat(of, &st) != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	d, err := os.Open(of + "/fd")
	if err != nil {
		return false
	}
	fds, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, fd := range fds {
		if syscall.Stat(of+"/fd/"+fd, &st) != nil || st.Ino != lock.Ino || st.Dev != lock.Dev {
			continue
		}
		if info, err := os.ReadFile(of + "/fdinfo/" + fd); err == nil && strings.Contains(string(info), "FLOCK") {
			return true
		}
	}
	return false
}

// silentFor follows how long the lock has been held by somebody who does not
// answer.
type silentFor struct {
	since time.Time // zero: it answered last
	told  bool
}

// judge takes the outcome of one more try to attach. It returns an error when
// nothing can be done but to say so.
func (w *silentFor) judge(s *Scope, began time.Time, err error) error {
	if errors.Is(err, ErrClosed) { // it spoke: it leaves
		*w = silentFor{}
		return nil
	}
	if w.since.IsZero() {
		w.since = began
	}
	long := time.Since(w.since).Round(time.Millisecond)
	if long >= s.pool.hung {
		*w = silentFor{told: true}
		if end := s.endHung(long); end != nil && errors.Is(err, ErrNotAnswering) {
			return end
		}
		return nil
	}
	if !w.told && errors.Is(err, ErrNotAnswering) {
		w.told = true
		s.pool.cfg.Warn(s.notAnswering(lockHolders(s.dir), long).Error())
	}
	return nil
}
