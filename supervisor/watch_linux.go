// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	settle  = 20 * time.Millisecond  // after a removal, before the scope is made again
	longest = time.Minute            // that grows to, when it cannot be made or does not stay
	recheck = 100 * time.Millisecond // whether it stayed
)

// handleSignals ends a supervisor that is asked to go once no task of its runs:
// exits are to be remembered until then. Handlers, unlike ignored signals, are
// not inherited by tasks. SIGIO says that something was removed from the scope.
func (s *server) handleSignals() {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGIO)
	watched := s.keepName(s.watchDir()) // something may have happened before
	for sig := range ch {
		switch sig {
		case syscall.SIGTERM, syscall.SIGINT:
			s.mu.Lock()
			s.term = true
			s.mu.Unlock()
			s.quitIfIdle()
		case syscall.SIGIO:
			watched = s.keepName(watched)
		}
	}
}

// watchDir asks for a signal when a name in the scope is removed or moved. It is
// the directory notification of old, not inotify: of that a user may have 128 on
// a whole host, and there may be a thousand of us. -1 is none.
func (s *server) watchDir() int {
	const fNotify, dnDelete, dnRename, dnMultishot = 1026, 0x8, 0x10, 0x80000000
	fd, err := syscall.Open(s.dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if _, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), fNotify, dnDelete|dnRename|dnMultishot); e != 0 {
		println("supervisor: the scope is not watched:", e.Error())
		_ = syscall.Close(fd)
		return -1
	}
	return fd
}

// keepName makes the scope again if its socket was removed under us, so that the
// next agent finds the tasks. Whoever removed it is given time to finish.
func (s *server) keepName(watched int) int {
	for pause := settle; ; pause = min(2*pause, longest) {
		s.mu.Lock()
		fine := s.leaving || s.intact()
		s.mu.Unlock()
		if fine {
			return watched
		}
		time.Sleep(pause)
		s.mu.Lock()
		if s.leaving {
			s.mu.Unlock()
			return watched
		}
		println("supervisor: the scope was removed, making it again")
		err := s.remake()
		s.mu.Unlock()
		if errors.Is(err, errBusyLock) {
			// Another supervisor has the name by now; tasks are found by proof.
			println("supervisor: another one has taken over")
			os.Exit(3)
		}
		if watched >= 0 {
			_ = syscall.Close(watched)
		}
		watched = s.watchDir()
		if err != nil {
			println("supervisor:", err.Error())
		}
		time.Sleep(recheck)
	}
}

// intact says whether a new agent would find us.
func (s *server) intact() bool {
	if !s.ours() {
		return false
	}
	for _, n := range []string{"/sock", "/journal"} {
		if _, err := os.Lstat(s.dir + n); err != nil {
			return false
		}
	}
	return true
}

// remake makes directory, lock, journal, FIFOs and socket again. Called with the
// lock held.
func (s *server) remake() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if !s.ours() {
		lock, err := takeLock(s.dir)
		if err != nil {
			return err
		}
		_ = syscall.Close(s.lock)
		s.lock = lock
	}
	if err := s.renewJournal(); err != nil {
		return err
	}
	for _, p := range s.pairs {
		if err := s.mendPair(p); err != nil {
			return err
		}
	}
	l, err := listen(s.dir)
	if err == nil {
		err = syscall.SetNonblock(l, true)
	}
	if err != nil {
		return err
	}
	s.listen(os.NewFile(uintptr(l), "listen"))
	return nil
}

// remakeStream gives a stream a FIFO under its name again. A task that runs has
// the old one open: that goes on being read until the task is forgotten.
func (s *server) remakeStream(p *pair, i int) error {
	if err := s.makeIO(p.spec.UID); err != nil {
		return err
	}
	st := p.streams[i]
	r, keep, err := makeFIFO(st.path, p.spec)
	if err != nil {
		return err
	}
	_ = syscall.Close(st.keep)
	st.keep = keep
	for _, t := range s.tasks {
		if (t.spec.Stdout == st.path || t.spec.Stderr == st.path) && t.st.PID != 0 && !t.st.Exited {
			st.away = true
			return r.Close()
		}
	}
	st.read(r)
	return nil
}
