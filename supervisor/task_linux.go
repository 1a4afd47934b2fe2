// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// admit enters a task before anything else can happen: a request that came from
// an agent that is dead by now must count, or the supervisor would leave with a
// fork under way. A second Start of the same ID gets the first one's task.
func (s *server) admit(sp Spec) (t *task, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return nil, false
	}
	if t = s.tasks[sp.ID]; t == nil {
		t, first = newTask(sp, s.boot), true
		t.mark = markOf(s.dir, sp.ID)
		s.tasks[sp.ID] = t
	}
	return t, first
}

// start answers one Start once the task runs, or could not be made to.
func (s *server) start(c *conn, id uint32, t *task, first bool) {
	if first {
		gate, launch, clean := s.forks, s.launch, s.unmake
		if t.spec.Container != nil {
			gate, launch, clean = s.creators, s.contain, s.purge
		}
		gate <- struct{}{}
		t.failed = launch(t)
		<-gate
		if t.failed != nil {
			if err := clean(t); err != nil {
				println("supervisor: failed start of", t.spec.ID+":", err.Error())
			}
			s.mu.Lock()
			s.forget(t)
			s.mu.Unlock()
		}
		close(t.started)
	} else {
		<-t.started
	}
	s.mu.Lock()
	if t.failed != nil {
		c.send(newReply(id, t.failed))
	} else {
		c.send(about(id, t.st))
	}
	s.mu.Unlock()
	s.quitIfIdle() // the start failed and nobody is connected any more
}

// unmake removes what a plain start that failed may have left.
func (s *server) unmake(t *task) error { return cgroup.Remove(t.spec.Cgroup) }

func (s *server) launch(t *task) error {
	sp := &t.spec
	s.mu.Lock()
	r := record{spec: *sp, mark: t.mark, st: t.st}
	err := s.note(r.lines())
	if err == nil {
		err = s.mendFor(t)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	fds := [3]int{-1, -1, -1}
	defer func() {
		for _, fd := range fds {
			if fd >= 0 {
				_ = syscall.Close(fd)
			}
		}
	}()
	for i, path := range []string{"", sp.Stdout, sp.Stderr} {
		if fds[i], err = openFor(path); err != nil {
			return err
		}
	}
	target, err := cgroup.OpenTarget(sp.Cgroup)
	if err != nil {
		return failed("supervisor: cgroup", err)
	}
	defer target.Close()
	attr := &syscall.ProcAttr{
		Dir: sp.Dir, Env: sp.Env, Sys: &syscall.SysProcAttr{Setsid: true, Credential: credential(sp)},
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	argv := sp.Args
	if len(argv) == 0 {
		argv = []string{sp.Path}
	}
	s.mu.Lock() // the reaper must not meet a pid that is not in byPID yet
	defer s.mu.Unlock()
	return s.fork(t, target, argv, attr)
}

// fork is called with the lock held. What the child inherits of us and must not
// be ours is set before and set back after.
func (s *server) fork(t *task, target cgroup.Target, argv []string, attr *syscall.ProcAttr) error {
	mark := t.mark
	if t.spec.Cgroup != "" {
		mark = 0 // that holds it
	}
	back, err := s.lend(t.spec.OOMScoreAdj, mark)
	if err != nil {
		return err
	}
	pid, err := target.ForkExec(t.spec.Path, argv, attr)
	back()
	if err != nil {
		return whyNot(t.spec.Path, attr, err)
	}
	s.watch(pid, t)
	t.st.PID = pid
	if f := procStat(pid); f != nil { // it may be a zombie already, but it is not reaped
		t.st.Start, _ = strconv.ParseUint(f[statStart], 10, 64)
	}
	if err := s.note(line("S", t.spec.ID, itoa(pid), strconv.FormatUint(t.st.Start, 10))); err != nil {
		println(err.Error()) // the next supervisor would end it, this one knows it
	}
	return nil
}

// watch has the reaper look for a child. Called with the lock held.
func (s *server) watch(pid int, c child) {
	s.byPID[pid] = c
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// whyNot names what is missing or closed: the kernel's errno is the same for the
// program, its interpreter and the directory.
func whyNot(path string, attr *syscall.ProcAttr, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, derr := os.Stat(attr.Dir); derr != nil {
			return failed("supervisor: working directory", derr)
		}
		if _, perr := os.Stat(path); perr == nil {
			return &os.PathError{Op: "supervisor: start", Path: path + " (its interpreter or loader)", Err: err}
		}
	case errors.Is(err, fs.ErrPermission) && attr.Sys != nil && attr.Sys.Credential != nil:
		if dir := closedTo(attr.Sys.Credential, attr.Dir); dir != "" {
			return &os.PathError{Op: "supervisor: working directory " + attr.Dir + ": the task's user may not enter", Path: dir, Err: err}
		}
	}
	return &os.PathError{Op: "supervisor: start", Path: path, Err: err}
}

// closedTo returns the topmost directory on the way to dir, itself included, that
// the user may not enter; "" if there is none.
func closedTo(c *syscall.Credential, dir string) string {
	for i := 1; i <= len(dir); i++ {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		var st syscall.Stat_t
		if syscall.Stat(dir[:i], &st) != nil {
			return ""
		}
		bits := st.Mode
		switch {
		case c.Uid == 0:
			return ""
		case st.Uid == c.Uid:
			bits >>= 6
		case st.Gid == c.Gid || slices.Contains(c.Groups, st.Gid):
			bits >>= 3
		}
		if bits&1 == 0 {
			return dir[:i]
		}
	}
	return ""
}

// lend gives this process what the child is to inherit, and returns how to take
// it back: an oom_score_adj and, unless it is 0, a mark.
func (s *server) lend(adj int, mark uint64) (back func(), err error) {
	lent := adj != s.ownAdj
	if lent {
		if err := writeAdj(adj); err != nil {
			if adj != 0 { // 0 is also what nobody asked for
				return nil, failed("supervisor: oom_score_adj "+itoa(adj), err)
			}
			lent = false
		}
	}
	var unmark func()
	if mark != 0 {
		unmark = setMark(mark)
	}
	return func() {
		if lent {
			_ = writeAdj(s.ownAdj)
		}
		if mark != 0 {
			unmark()
		}
	}, nil
}

func credential(sp *Spec) *syscall.Credential {
	if !sp.SetUser {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(sp.UID), Gid: uint32(sp.GID)}
	for _, g := range sp.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	// Becoming oneself needs no right; setting groups does.
	if os.Geteuid() != 0 && sp.UID == os.Geteuid() && sp.GID == os.Getegid() {
		c.NoSetGroups = true
	}
	return c
}

// openFor opens what a task writes to. A FIFO is opened O_RDWR: then it always
// has a reader, a write never raises SIGPIPE, and when we die the task merely
// blocks once 64 KiB are waiting, until the next supervisor reads on. The
// descriptor blocks, as a task expects.
func openFor(path string) (int, error) {
	flags := syscall.O_CLOEXEC | syscall.O_NOCTTY | syscall.O_NOFOLLOW
	if path == "" {
		path = "/dev/null"
		flags |= syscall.O_RDWR
	} else {
		var st syscall.Stat_t
		switch err := syscall.Lstat(path, &st); {
		case err == nil && st.Mode&syscall.S_IFMT == syscall.S_IFIFO:
			flags |= syscall.O_RDWR
		default:
			flags |= syscall.O_WRONLY | syscall.O_APPEND | syscall.O_CREAT
		}
	}
	fd, err := syscall.Open(path, flags, 0o644)
	if err != nil {
		return -1, &os.PathError{Op: "supervisor: open for the task", Path: path, Err: err}
	}
	return fd, nil
}

// reap is the only caller of wait4. It sleeps in the kernel while children
// live, and on kick while there are none.
func (s *server) reap() {
	for {
		pid, err := peekChild()
		if err != nil { // ECHILD
			<-s.kick
			continue
		}
		s.mu.Lock()
		var ws syscall.WaitStatus
		if n, _ := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); n == pid {
			if t := s.byPID[pid]; t != nil { // else an orphan that came to us as subreaper
				delete(s.byPID, pid)
				t.over(s, decodeStatus(ws))
			}
		}
		s.mu.Unlock()
	}
}

func decodeStatus(ws syscall.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return Status{Code: ws.ExitStatus()}
}

// unseen is the exit of a process whose end nobody was told.
func unseen(why string) Status { return Status{Code: -1, Err: why} }

// ended takes the end of the main process. Whether it was for want of memory is
// read now, while the cgroup is there. Called with the lock held.
func (s *server) ended(t *task, how Status) {
	n, ok := cgroup.OOMKills(t.groups...)
	how.OOMKilled = ok && n > 0
	s.exited(t, how)
}

// exited holds the result back until the pumps have read what the process
// wrote. Everything it wrote is in the pipe by now, so the pumps need no timer
// to know when they have it all. Called with the lock held.
func (s *server) exited(t *task, how Status) {
	t.reaped = true
	t.res = t.st
	t.res.Exited, t.res.Code, t.res.Signal, t.res.Err, t.res.OOMKilled = true, how.Code, how.Signal, how.Err, how.OOMKilled
	if t.killer != nil {
		t.killer.Stop()
	}
	streams := s.streamsOf(t)
	t.pending = len(streams) + 1
	for _, st := range streams {
		st.pump.Drain(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.drained(t)
		})
	}
	s.drained(t)
}

func (s *server) drained(t *task) {
	if t.pending--; t.pending == 0 {
		s.finish(t)
	}
}

// finish makes an exit known. Called with the lock held.
func (s *server) finish(t *task) {
	t.st = t.res
	if err := s.note(exitLine(t.st)); err != nil {
		println(err.Error())
	}
	for _, w := range t.waiters {
		w.c.send(about(w.id, t.st))
	}
	t.waiters = nil
	close(t.done)
	s.recordExit(t)
	if s.term {
		go s.quitIfIdle()
	}
}

// alive says whether t's pid is still t's: our child and not reaped, or, for an
// adopted task, the same start time. The answer holds while the lock is held.
func (t *task) alive() bool {
	return t.st.PID > 1 && t.st.Start != 0 && !t.st.Exited && !t.reaped && (!t.st.Adopted || startTime(t.st.PID) == t.st.Start)
}

// signal reaches the main process only. A task that has ended is no error.
// Called with the lock held.
func (s *server) signal(t *task, sig syscall.Signal) error {
	if !t.alive() {
		return nil
	}
	if err := syscall.Kill(t.st.PID, sig); err != nil && err != syscall.ESRCH {
		return failed("supervisor: signal "+itoa(int(sig)), err)
	}
	return nil
}

// stop sends the signal and arms the kill; a second one can only bring it
// nearer. Called with the lock held.
func (s *server) stop(t *task, sig syscall.Signal, grace time.Duration) error {
	err := s.signal(t, sig)
	if t.st.Exited || t.reaped {
		return err
	}
	s.armKill(t, bootTime()+int64(grace))
	return err
}

func (s *server) armKill(t *task, at int64) {
	if t.killer != nil && at >= t.killAt {
		return
	}
	if t.killer != nil {
		t.killer.Stop()
	}
	t.killAt = at
	if err := s.note(line("K", t.spec.ID, strconv.FormatInt(at, 10))); err != nil {
		println(err.Error())
	}
	t.killer = time.AfterFunc(time.Duration(at-bootTime()), func() { s.killAll(t) })
}

// killAll ends everything of the task: its process group while the main process
// keeps that number taken, its cgroup, or else all that carries its mark.
func (s *server) killAll(t *task) {
	s.killGroup(t)
	if t.spec.Cgroup != "" {
		cgroup.KillEach(t.groups)
		return
	}
	s.mu.Lock()
	pid, start := t.st.PID, t.st.Start
	if t.st.BootID != s.boot {
		pid = 0 // says nothing any more
	}
	s.mu.Unlock()
	// What one forked while it was looked for is found the next time.
	if sweep(t.mark, pid, start, syscall.SIGKILL) > 0 {
		if left := sweepAll(t.mark); left > 0 {
			println("supervisor:", left, "processes of", t.spec.ID, "do not die")
		}
	}
}

func (s *server) killGroup(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.alive() {
		_ = syscall.Kill(-t.st.PID, syscall.SIGKILL)
	}
}

// extinct says whether nothing can be left of a task whose main process we have
// reaped. Its orphans would have come to us, the subreaper, and whoever hides
// behind another descendant hides behind a child of ours. So it is enough that
// all our children are main processes; the list of them is short, while the
// search for a mark goes through all processes of the machine.
func (s *server) extinct(t *task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.st.Adopted { // its orphans went to somebody else
		return false
	}
	pids, ok := children()
	for _, pid := range pids {
		_, main := s.byPID[pid].(*task)
		ok = ok && main
	}
	return ok
}

// destroy ends whatever is left of the task and forgets it. The lock is not
// held while it waits: the reaper has to go on for the wait to end.
func (s *server) destroy(t *task) error {
	<-t.started
	if t.failed != nil {
		return nil
	}
	s.killGroup(t)
	cgroup.KillEach(t.groups)
	bound := time.NewTimer(destroyBound)
	defer bound.Stop()
	select {
	case <-t.done:
	case <-bound.C:
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.reaped {
			return errors.New("supervisor: the last output of " + t.spec.ID + " cannot be written: the log's disk hangs")
		}
		return errors.New("supervisor: " + t.spec.ID + " does not die, pid " + itoa(t.st.PID))
	}
	if t.spec.Cgroup != "" {
		if err := cgroup.RemoveEach(t.groups); err != nil {
			return failed("supervisor: cgroup", err)
		}
	} else if !s.extinct(t) {
		if left := sweepAll(t.mark); left > 0 {
			return errors.New("supervisor: " + itoa(left) + " processes of " + t.spec.ID + " do not die")
		}
	}
	if t.spec.Container != nil {
		if err := os.RemoveAll(s.stateDir(t.spec.ID)); err != nil {
			return failed("supervisor: state of the container", err)
		}
	}
	s.mu.Lock()
	s.forget(t)
	s.mu.Unlock()
	s.quitIfIdle()
	return nil
}

// forget drops a task that is over. Called with the lock held.
func (s *server) forget(t *task) {
	if t.killer != nil {
		t.killer.Stop()
	}
	for _, w := range t.waiters { // of a start that failed
		w.c.send(newReply(w.id, ErrNotFound))
	}
	t.waiters = nil
	s.restoreStreams(t)
	if s.tasks[t.spec.ID] != t {
		return
	}
	delete(s.tasks, t.spec.ID)
	if t.spec.ExitDir != "" { // maybe an earlier supervisor wrote it
		_ = os.Remove(exitFile(t.spec.ExitDir, t.spec.ID))
	}
	if err := s.note(line("D", t.spec.ID)); err != nil {
		println(err.Error())
	}
	s.emptyJournal()
}
