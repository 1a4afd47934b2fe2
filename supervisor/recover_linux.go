// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodekeep/nodekeep/internal/cgroup"
)

const (
	restarted = "machine restarted"
	notSeen   = "exit not seen"
)

// openJournal takes over what an earlier supervisor of this scope left behind.
// We hold the lock, so that one is dead, and so is every fork of its that had
// not become a task: a child holds the lock until its exec.
func (s *server) openJournal() error {
	old, err := os.ReadFile(s.dir + "/journal")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("journal", err)
	}
	j := parseJournal(string(old))
	s.mu.Lock()
	defer s.mu.Unlock()
	unheld := map[string]bool{}
	for _, l := range j.logs {
		for i := range suffixes {
			path := s.fifoPath(l.ID, i)
			unheld[path] = nobodyHolds(path)
		}
		p := &pair{spec: l}
		if err := s.openPair(p); err != nil {
			println(err.Error())
		}
	}
	for id, r := range j.tasks {
		if r.spec.Container != nil && !s.takeOver(r) {
			continue
		}
		if r.spec.Container == nil && r.st.PID == 0 && (r.st.BootID != s.boot || !s.findUnfinished(r)) {
			continue
		}
		t := newTask(r.spec, r.st.BootID)
		t.mark, t.st, t.loose = r.mark, r.st, r.loose
		t.st.Adopted = true
		s.tasks[id] = t
	}
	if len(old) > 0 {
		err = s.renewJournal()
	} else {
		s.jr, err = os.OpenFile(s.dir+"/journal", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		s.limit = journalLimit
	}
	if err != nil {
		return failed("journal", err)
	}
	for id, t := range s.tasks {
		close(t.started)
		switch {
		case t.st.Exited:
			close(t.done)
		case t.st.BootID != s.boot:
			s.exited(t, unseen(restarted))
		default:
			if startOf(t.st.PID) != t.st.Start { // ended, who knows when
				t.st.OutputLost = unheld[t.spec.Stdout] || unheld[t.spec.Stderr]
			}
			s.resume(t, j.tasks[id].killAt)
			s.resumeExecs(t, j.tasks[id].execs)
		}
	}
	return nil
}

// findUnfinished is for a task whose supervisor died between B and S: whatever
// was forked is in the cgroup or carries the mark, and runs its program by now,
// since it holds our lock no more. Its main process leads a session and is the
// oldest that does; it is known from here on as if S had been written, for it
// must not run twice. What has no such process did nothing that can be
// continued: it is ended, and false.
func (s *server) findUnfinished(r *record) bool {
	var main proc
	look := func(pid int, start uint64) {
		st := procStat(pid)
		if st == nil || st[statState] == "Z" || st[statState] == "X" || st[statSession] != itoa(pid) || s.isOlder(pid) {
			return
		}
		if main.pid == 0 || start < main.start || start == main.start && pid < main.pid {
			main = proc{pid, start}
		}
	}
	if r.spec.Cgroup == "" {
		members(r.mark, 0, 0, look)
	} else {
		for _, pid := range cgroup.Procs(r.spec.Cgroup) {
			look(pid, startTime(pid))
		}
	}
	if main.pid == 0 || main.start == 0 {
		s.endUnknown(r)
		return false
	}
	println("supervisor: unfinished start of", r.spec.ID+": its process is adopted, pid", main.pid)
	r.st.PID, r.st.Start = main.pid, main.start
	return true
}

func (s *server) endUnknown(r *record) {
	var err error
	if r.spec.Cgroup != "" {
		err = cgroup.Remove(r.spec.Cgroup)
	} else if left := sweepAll(r.mark); left > 0 {
		err = errors.New(itoa(left) + " processes do not die")
	}
	if err != nil {
		println("supervisor: unfinished start of", r.spec.ID+":", err.Error())
	}
}

// resume follows a journaled task again, and carries on a stop.
func (s *server) resume(t *task, killAt int64) {
	f, err := openPidfd(t.st.PID, t.st.Start)
	if err != nil {
		s.ended(t, unseen(notSeen))
		return
	}
	s.follow(t)
	s.watchExit(t, f)
	if killAt != 0 {
		s.armKill(t, killAt)
	}
}

// watchExit waits for the end of a process that is not our child: the pidfd says
// when, and the kernel may say how.
func (s *server) watchExit(t *task, f *os.File) {
	go func() {
		defer func() { _ = f.Close() }()
		ws, known, err := awaitPidfd(f, t.st.PID, t.st.Start)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err != nil:
			s.ended(t, unseen(notSeen+": "+err.Error()))
		case !known:
			s.ended(t, unseen(notSeen+": not our child, and the kernel does not tell"))
		default:
			s.ended(t, decodeStatus(ws))
		}
	}()
}

func (s *server) answerAdopt(c *conn, r request) {
	s.mu.Lock()
	t := s.tasks[r.ident.ID]
	s.mu.Unlock()
	if t != nil {
		<-t.started
	}
	t, err := s.adopt(r.ident)
	if err != nil {
		c.refuse(r.id, err)
		s.quitIfIdle()
		return
	}
	s.mu.Lock()
	c.send(about(r.id, t.st))
	s.mu.Unlock()
}

// adopt makes a task known by what its process proves, or by the record of its
// exit; a task that is known is returned if it is the same.
func (s *server) adopt(i Identity) (*task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tasks[i.ID]; t != nil {
		if t.st.PID != i.PID || t.st.Start != i.Start || t.st.BootID != i.BootID {
			return nil, failed("supervisor: "+i.ID+" has another process, pid "+itoa(t.st.PID), ErrNotProved)
		}
		return t, nil
	}
	if s.leaving {
		return nil, errLeaving
	}
	sp := Spec{ID: i.ID, Cgroup: i.Cgroup, Stdout: i.Stdout, Stderr: i.Stderr, ExitDir: i.ExitDir}
	if i.Isolated {
		sp.Container = &Container{}
	}
	t := newTask(sp, i.BootID)
	t.st.PID, t.st.Start, t.st.Adopted, t.loose = i.PID, i.Start, true, i.Isolated
	t.mark = markOf(s.dir, i.ID)
	f, err := s.prove(t)
	st, recorded := readExit(t.spec.ExitDir, t.st)
	if f == nil && !recorded {
		return nil, failed("supervisor: adopt "+i.ID+": "+err.Error(), ErrNotProved)
	}
	t.recorded = recorded
	s.tasks[i.ID] = t
	close(t.started)
	r := record{spec: t.spec, loose: t.loose, mark: t.mark, st: t.st}
	if err := s.note(r.lines()); err != nil {
		println(err.Error())
	}
	if f != nil {
		s.follow(t)
		s.watchExit(t, f)
		return t, nil
	}
	s.exited(t, st)
	return t, nil
}

// prove opens the process that the task's identity names.
func (s *server) prove(t *task) (*os.File, error) {
	if t.st.BootID != s.boot {
		return nil, errors.New(restarted)
	}
	f, err := openPidfd(t.st.PID, t.st.Start)
	if err != nil {
		return nil, errors.New("pid " + itoa(t.st.PID) + " is gone or another process")
	}
	if m, _ := markedWith(t.st.PID); m != 0 {
		t.mark = m
	}
	s.endOlder(t.st.PID)
	return f, nil
}

// endOlder ends an earlier supervisor of this scope that is still the parent of
// a task: its lock file was removed, so it does not know of us, and two must
// neither hold one task nor read one pipe.
func (s *server) endOlder(pid int) {
	st := procStat(pid)
	if st == nil {
		return
	}
	parent, _ := strconv.Atoi(st[statParent])
	start := startOf(parent)
	if parent <= 1 || parent == os.Getpid() || !s.isOlder(parent) {
		return
	}
	f, err := openPidfd(parent, start)
	if err != nil || !s.isOlder(parent) {
		return
	}
	defer func() { _ = f.Close() }()
	println("supervisor: ending an earlier one of this scope, pid", parent)
	_ = syscall.Kill(parent, syscall.SIGKILL)
	_, _, _ = awaitPidfd(f, parent, start)
}

func (s *server) isOlder(pid int) bool { return serverOf(pid) == s.dir }

// serverOf returns the scope that a process of this user is a supervisor of, ""
// if it is none.
func serverOf(pid int) string {
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
	name, dir, ok := strings.Cut(strings.TrimSuffix(string(b), "\x00"), "\x00")
	if err != nil || !ok || name != argv0 {
		return ""
	}
	var st syscall.Stat_t
	if syscall.Stat("/proc/"+itoa(pid), &st) != nil || int(st.Uid) != os.Geteuid() {
		return ""
	}
	return dir
}

// An exit that no agent was there to hear is also written to the task's ExitDir,
// which outlives the machine. The agent asks for it with Adopt.

func exitFile(dir, id string) string {
	return dir + "/" + shortName(id) + ".exit"
}

// recordExit writes an exit that is not acknowledged, if nobody is connected.
// Called with the lock held.
func (s *server) recordExit(t *task) {
	if s.conns > 0 || t.spec.ExitDir == "" || !t.st.Exited || t.recorded {
		return
	}
	if err := writeExit(t.spec.ExitDir, t.st); err != nil {
		println("supervisor: exit record:", err.Error())
		return
	}
	t.recorded = true
}

func writeExit(dir string, st Status) error {
	name := exitFile(dir, st.ID)
	_ = os.Remove(name + ".new")
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	b := append(line(exitKey, st.ID, itoa(st.PID), strconv.FormatUint(st.Start, 10), st.BootID), exitLine(st)...)
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		_ = os.Remove(name + ".new")
		return err
	}
	if d, err := os.Open(dir); err == nil { // the name has to be on disk too
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// readExit returns the record of exactly that process, if there is one that only
// a supervisor of this user can have written.
func readExit(dir string, want Status) (Status, bool) {
	if dir == "" {
		return Status{}, false
	}
	f, err := os.OpenFile(exitFile(dir, want.ID), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Status{}, false
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > 64<<10 {
		return Status{}, false
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return Status{}, false
	}
	b := make([]byte, fi.Size())
	n, _ := f.Read(b)
	return parseExit(string(b[:n]), want)
}
