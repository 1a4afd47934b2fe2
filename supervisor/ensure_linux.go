// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ensureBound is how long somebody may hold the lock without answering: an agent
// that is starting a supervisor, or a supervisor that is leaving.
const ensureBound = time.Minute

// releaseTries bounds how often Release asks supervisors that end unasked.
const releaseTries = 20

// errBusyLock says that somebody holds the lock: a supervisor, or an agent that
// is starting one.
var errBusyLock = errors.New("supervisor: the scope is locked")

// ensure connects to the scope's supervisor and starts one if there is none. Two
// callers, in one process or in two, never make two: whoever holds the lock may
// start one, and the supervisor inherits the locked file.
func (s *Scope) ensure() (*client, error) {
	end := time.Now().Add(ensureBound)
	var silent silentFor
	for pause := 2 * time.Millisecond; ; pause = min(pause*5/4, 200*time.Millisecond) {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return nil, failed("supervisor: make the scope", err)
		}
		if err := checkOwner(s.dir); errors.Is(err, os.ErrNotExist) { // just removed
			continue
		} else if err != nil {
			return nil, err
		}
		lock, err := takeLock(s.dir)
		switch {
		case err == nil:
			c, err := s.launch(lock)
			_ = syscall.Close(lock)
			return c, err
		case errors.Is(err, os.ErrNotExist): // just removed
			continue
		case err != errBusyLock:
			return nil, err
		}
		began := time.Now()
		c, err := s.attach()
		if err == nil || errors.Is(err, ErrForeignScope) || s.isOver() {
			return c, err
		}
		if err := silent.judge(s, began, err); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, failed("supervisor: "+s.dir+"/lock is held but nothing answers; see who holds it", err)
		}
		t := time.NewTimer(pause) // between lock and listen, or leaving
		select {
		case <-s.stop:
			t.Stop()
			return nil, ErrClosed
		case <-t.C:
		}
	}
}

// attach connects to a running supervisor and asks whether it stays.
func (s *Scope) attach() (*client, error) {
	f, err := dial(s.dir)
	if err != nil {
		return nil, err
	}
	c, err := s.open(newClient(s, f, 0))
	if err != nil {
		return nil, err
	}
	r, err := c.send(kHello, nil).within(s.pool.silence, s.stop)
	if err == nil && r.version < 1 {
		err = errors.New("supervisor: what listens in " + s.dir + " is no supervisor")
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// takeLock locks the scope. What it locked may have been removed meanwhile: then
// it is another file's lock now, and the next try decides.
func takeLock(dir string) (int, error) {
	const flags = syscall.O_RDWR | syscall.O_CREAT | syscall.O_CLOEXEC | syscall.O_NOFOLLOW
	for {
		lock, err := syscall.Open(dir+"/lock", flags, 0o600)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: dir + "/lock", Err: err}
		}
		err = syscall.Flock(lock, syscall.LOCK_EX|syscall.LOCK_NB)
		var st syscall.Stat_t
		if err == nil && syscall.Fstat(lock, &st) == nil && st.Nlink > 0 {
			return lock, nil
		}
		_ = syscall.Close(lock)
		switch err {
		case nil, syscall.EINTR:
		case syscall.EWOULDBLOCK:
			return -1, errBusyLock
		default:
			return -1, &os.PathError{Op: "lock", Path: dir + "/lock", Err: err}
		}
	}
}

// launch starts a supervisor. It binds the socket and connects to it before
// there is anybody to accept: requests wait in the backlog while the supervisor
// starts, and one whose agent dies here finds a closed connection and leaves,
// without a timer.
func (s *Scope) launch(lock int) (*client, error) {
	select {
	case s.pool.launches <- struct{}{}:
		defer func() { <-s.pool.launches }()
	case <-s.stop:
		return nil, ErrClosed
	}
	l, err := listen(s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = syscall.Close(l) }()
	conn, err := dial(s.dir)
	if err != nil {
		return nil, err
	}
	pid, err := s.fork(l, lock)
	if err != nil {
		_ = conn.Close()
		_ = syscall.Unlink(s.dir + "/sock")
		return nil, failed("supervisor: start "+s.pool.exe, err)
	}
	reapSupervisors(0, false)
	return s.open(newClient(s, conn, pid))
}

func (s *Scope) fork(l, lock int) (int, error) {
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Close(null) }()
	log, err := syscall.Open(s.dir+"/log", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Close(log) }()
	// A supervisor of a few tasks never gets near 16 MiB, so it never collects,
	// and its periodic collection, the one timer of an idle Go process, is off.
	// GOMAXPROCS is always set: the runtime need not look at cgroups and mounts
	// for it, nor watch for changes.
	env := []string{cookieKey + "=" + cookie, "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	if s.pool.cfg.Wide {
		env = append(env, "GOGC=50", "GOMAXPROCS=2")
	} else {
		env = append(env, "GOGC=off", "GOMEMLIMIT=16MiB", "GOMAXPROCS=1")
	}
	attr := &syscall.ProcAttr{
		Dir:   "/",
		Env:   append(env, s.pool.cfg.Env...),
		Files: []uintptr{uintptr(null), uintptr(null), uintptr(log), uintptr(l), uintptr(lock)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	for _, exe := range s.pool.programs() {
		var pid int
		if pid, err = syscall.ForkExec(exe, []string{argv0, s.dir}, attr); err != syscall.ENOENT {
			return pid, err
		}
	}
	return 0, err
}

// warnEnd tells that a supervisor ended unasked, with the end of what it said.
func (s *Scope) warnEnd() {
	text := "scope " + s.name + ": the supervisor ended; the next one adopts its tasks"
	if l := s.logTail(2048); l != "" {
		text += "; the end of its log: " + l
	}
	s.pool.cfg.Warn(text)
}

// withLog adds what supervisors that keep ending had to say.
func (s *Scope) withLog(err error) error {
	if l := s.logTail(512); l != "" {
		return failed("supervisor: scope "+s.name+" keeps ending: "+l, err)
	}
	return err
}

func (s *Scope) logTail(limit int) string {
	b, err := os.ReadFile(s.dir + "/log")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b[max(0, len(b)-limit):]))
}

// Release ends the supervisor of a scope that holds no task and removes the
// directory, FIFO pairs that are left included. With tasks it is ErrBusy and
// nothing is done. It is idempotent, also when no supervisor lives; afterwards
// every call on this Scope is ErrClosed, and Pool.Scope makes a new one.
func (s *Scope) Release(ctx context.Context) error {
	if s.invalid != nil {
		return s.invalid
	}
	for try := 0; !s.isOver(); try++ {
		dials, err := s.idle(ctx)
		if err != nil {
			return err
		}
		gone, err := s.remove()
		if err != nil {
			return err
		}
		if gone && s.detachAfter(dials) {
			break
		}
		if gone {
			continue
		}
		// A supervisor lives, or a journal names tasks that one must look at.
		err = s.shutdown(ctx)
		switch {
		case err == nil:
		case !errors.Is(err, ErrClosed):
			return err
		case try >= releaseTries:
			return s.withLog(err)
		default:
			s.sleep(time.Duration(try) * 5 * time.Millisecond) // one that broke is on its way out
		}
	}
	s.pool.drop(s)
	return nil
}

// idle waits for an attempt to connect that is under way, and returns how many
// there have been.
func (s *Scope) idle(ctx context.Context) (dials int, err error) {
	for {
		s.mu.Lock()
		d, dials := s.dial, s.dials
		s.mu.Unlock()
		if d == nil {
			return dials, nil
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// remove removes the directory if it is there, no supervisor lives, and none is
// needed.
func (s *Scope) remove() (gone bool, err error) {
	if err := checkOwner(s.dir); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return true, nil
		}
		return false, err
	}
	return s.clear()
}

// shutdown asks the supervisor to leave and waits until it has.
func (s *Scope) shutdown(ctx context.Context) error {
	c, err := s.connected(ctx)
	if err != nil {
		return err
	}
	s.expectEnd(c, true)
	_, err = c.send(kShutdown, nil).await(ctx, s.stop)
	if err != nil && !errors.Is(err, ErrClosed) {
		s.expectEnd(c, false)
		return err
	}
	select {
	case <-c.end:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// expectEnd says whether the end of a connection is wanted: then no other is
// made for it.
func (s *Scope) expectEnd(c *client, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.used = !yes
}

// clear removes the directory if no supervisor lives and none is needed.
func (s *Scope) clear() (bool, error) {
	lock, err := takeLock(s.dir)
	if err == errBusyLock {
		return false, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = syscall.Close(lock) }()
	b, err := os.ReadFile(s.dir + "/journal")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if j := parseJournal(string(b)); len(j.tasks) > 0 {
		return false, nil
	}
	return true, removeScope(s.dir)
}

// removeScope removes a scope's files, the lock last, by whoever holds it.
func removeScope(dir string) error {
	if des, err := os.ReadDir(dir + "/io"); err == nil {
		for _, e := range des {
			_ = syscall.Unlink(dir + "/io/" + e.Name())
		}
		_ = syscall.Rmdir(dir + "/io")
	}
	_ = os.RemoveAll(dir + containers)
	for _, n := range []string{"/sock", "/journal", "/journal.new", "/log", "/lock"} {
		_ = syscall.Unlink(dir + n)
	}
	// Somebody may have made a new lock since: then the scope lives on.
	if err := syscall.Rmdir(dir); err != nil && err != syscall.ENOENT && err != syscall.ENOTEMPTY {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// strays are supervisors this process started and disconnected from while they
// lived. They are children of the process, not of a pool, so the process keeps
// the list. A supervisor that ends closes its connection and is reaped then,
// without a thread that waits and without reaping children of the host.
var strays struct {
	sync.Mutex
	pids map[int]bool
}

// reapSupervisors gives the one that just ended (0: none) a moment to become a
// zombie, unless it was only disconnected from, and looks at the strays.
func reapSupervisors(ended int, wait bool) {
	for i := range 20 {
		if ended == 0 || reaped(ended) {
			ended = 0
			break
		}
		if !wait && i == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	strays.Lock()
	defer strays.Unlock()
	maps.DeleteFunc(strays.pids, func(pid int, _ bool) bool { return reaped(pid) })
	if ended != 0 {
		if strays.pids == nil {
			strays.pids = map[int]bool{}
		}
		strays.pids[ended] = true
	}
}

func reaped(pid int) bool {
	n, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return n == pid || err == syscall.ECHILD
}
