// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
)

const (
	creatorBound = 30 * time.Second // how long a creator may live: until it ends nobody learns of its container's end
	letGoBound   = 10 * time.Second // for a process that was made to begin
	containers   = "/ctr"           // in the scope's directory
)

// creation is one creator at work.
type creation struct {
	pid   int
	sock  *os.File
	runs  *os.File // tells whether the program runs; nil for commands
	bound *time.Timer
	done  chan struct{} // closed once it was reaped
	how   Status        // valid then
}

func (k *creation) over(_ *server, how Status) {
	k.bound.Stop()
	k.how = how
	close(k.done)
}

// unborn is a process that waits to be let go. Its end is no exit of a task.
type unborn struct {
	dead bool
	how  Status
}

func (u *unborn) over(_ *server, how Status) { u.dead, u.how = true, how }

// stateDir is where a creator keeps what it needs to know of a task.
func (s *server) stateDir(id string) string { return s.dir + containers + "/" + creator.Name(id) }

// contain has a task made by a creator, lets it go once it is in the journal, and
// leaves it to purge to clean up after an error. No program of the task's runs
// before G is written.
func (s *server) contain(t *task) error {
	go cgroup.Warm()
	s.mu.Lock()
	r := record{spec: t.spec, mark: t.mark, st: t.st}
	err := s.note(r.lines())
	if err == nil {
		err = s.mendFor(t)
	}
	s.mu.Unlock()
	if err == nil {
		err = s.purge(t)
	}
	if err != nil {
		return err
	}
	if err := syscall.Mkdir(s.dir+containers, 0o700); err != nil && err != syscall.EEXIST {
		return failed("supervisor: directory for containers", err)
	}
	fds := [3]int{-1, -1, -1}
	defer func() { closeAll(fds[:]) }()
	for i, path := range []string{"", t.spec.Stdout, t.spec.Stderr} {
		if fds[i], err = openFor(path); err != nil {
			return err
		}
	}
	mark := t.mark
	if t.spec.Cgroup != "" {
		mark = 0
	}
	k, err := s.create(creator.Create, t.spec.Container, fds, t.spec.OOMScoreAdj, mark)
	if err != nil {
		return err
	}
	defer k.end()
	defer func() { _ = k.runs.Close() }()
	res, err := s.ask(k, t.spec.Container.Spec)
	if err != nil {
		return err
	}
	return s.deliver(t, k, res)
}

// deliver enters what a creator made and lets it go.
func (s *server) deliver(t *task, k *creation, res creator.Result) error {
	u := &unborn{}
	s.mu.Lock()
	if startTime(res.PID) != res.Start {
		s.mu.Unlock()
		return errEarlyEnd
	}
	t.st.PID, t.st.Start, t.loose = res.PID, res.Start, true
	s.watch(res.PID, u)
	err := s.note(append(line("S", t.spec.ID, itoa(res.PID), strconv.FormatUint(res.Start, 10)), line("G", t.spec.ID)...))
	s.mu.Unlock()
	k.end() // or its end would be what a waiting end has to wait for
	if err == nil {
		err = letGo(s.stateDir(t.spec.ID)+"/"+creator.FIFO, res.PID, res.Start)
	}
	if err == nil {
		_ = k.runs.SetReadDeadline(time.Now().Add(letGoBound))
		if errno := creator.ReadExec(k.runs); errno != 0 {
			err = programError(errno)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPID[res.PID] == child(u) {
		delete(s.byPID, res.PID)
	}
	if err != nil {
		return err
	}
	t.spec.Container = &Container{} // what it said is done
	if u.dead {
		t.over(s, u.how)
		return nil
	}
	s.watch(res.PID, t)
	return nil
}

var errEarlyEnd = errors.New("supervisor: the container's first process ended before it could run the task's program")

// programError is an ErrProgram with its errno.
type programError syscall.Errno

func (e programError) Error() string { return ErrProgram.Error() + ": " + syscall.Errno(e).Error() }

func (e programError) Unwrap() []error { return []error{ErrProgram, syscall.Errno(e)} }

// create forks a creator, which waits for its spec.
func (s *server) create(verb string, c *Container, fds [3]int, adj int, mark uint64) (*creation, error) {
	k := &creation{done: make(chan struct{})}
	theirs, err := k.open(verb)
	if err != nil {
		return nil, failed("supervisor: socket of a creator", err)
	}
	defer closeAll(theirs)
	attr := &syscall.ProcAttr{
		Dir: "/", Env: creatorEnv(), Sys: &syscall.SysProcAttr{Setsid: true},
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2]), uintptr(theirs[0]), uintptr(s.lock)},
	}
	for _, fd := range theirs[1:] {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if os.Geteuid() == 0 {
		attr.Sys.Cloneflags = syscall.CLONE_NEWNS
	}
	s.mu.Lock() // as in launch
	defer s.mu.Unlock()
	back, err := s.lend(adj, mark)
	if err == nil {
		k.pid, err = syscall.ForkExec(c.Creator, []string{creator.Argv0, verb}, attr)
		back()
	}
	if err != nil {
		k.end()
		_ = k.runs.Close() // of none it does nothing
		return nil, &os.PathError{Op: "supervisor: start the creator", Path: c.Creator, Err: err}
	}
	k.bound = time.AfterFunc(creatorBound, func() { s.killCreator(k) })
	s.watch(k.pid, k)
	return k, nil
}

// open makes what connects us with a creator, and returns its ends.
func (k *creation) open(verb string) (theirs []int, err error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = syscall.SetNonblock(pair[0], true)
	k.sock, theirs = os.NewFile(uintptr(pair[0]), "creator"), []int{pair[1]}
	if verb == creator.Create {
		var p [2]int
		if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
			k.end()
			closeAll(theirs)
			return nil, err
		}
		_ = syscall.SetNonblock(p[0], true)
		k.runs, theirs = os.NewFile(uintptr(p[0]), "pipe"), append(theirs, p[1])
	}
	return theirs, nil
}

// creatorEnv is what whoever made the pool wants supervisors to have, and what the
// runtime of a process that ends soon needs.
func creatorEnv() []string {
	env := []string{"GOGC=off"}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GOGC=") && !strings.HasPrefix(kv, "GOMEMLIMIT=") && !strings.HasPrefix(kv, "GOMAXPROCS=") {
			env = append(env, kv)
		}
	}
	return env
}

// end tells the creator that it is not needed any more. Idempotent.
func (k *creation) end() { _ = k.sock.Close() }

func (s *server) killCreator(k *creation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byPID[k.pid] == child(k) { // so its number is its own, and its group's
		_ = syscall.Kill(-k.pid, syscall.SIGKILL)
		_ = syscall.Kill(k.pid, syscall.SIGKILL)
	}
}

// ask has the creator do its work and returns what it made. After an error it has
// ended.
func (s *server) ask(k *creation, spec []byte) (creator.Result, error) {
	werr := creator.WriteSpec(k.sock, spec)
	res, err := creator.ReadResult(k.sock)
	switch {
	case err == nil && res.Err == "":
		return res, nil
	case err == nil:
		err = &remoteError{text: res.Err, errno: res.Errno}
	case err == io.EOF || err == io.ErrUnexpectedEOF || errors.Is(err, syscall.ECONNRESET):
		err = nil // how it ended says more
	}
	k.end()
	if err == nil {
		<-k.done // it has the other end, so it is ending
		text := "exit code " + itoa(k.how.Code)
		if k.how.Signal != 0 {
			text = "signal " + itoa(k.how.Signal)
		}
		return res, errors.Join(errors.New("supervisor: the creator ended without an answer: "+text), werr)
	}
	select {
	case <-k.done:
	case <-time.After(time.Second): // it has nothing to do any more
		s.killCreator(k)
		<-k.done
	}
	return res, err
}

// letGo lets a process that waits in its FIFO begin, and returns once it does, or
// once it is clear that it began before, which is how far a supervisor that died
// may have come. The end that is opened first is what counts; opened for both ways
// it never blocks.
func letGo(fifo string, pid int, start uint64) error {
	fd, err := syscall.Open(fifo, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return &os.PathError{Op: "supervisor: let the task go", Path: fifo, Err: err}
	}
	f := os.NewFile(uintptr(fd), fifo)
	defer func() { _ = f.Close() }()
	for end := time.Now().Add(letGoBound); ; {
		_ = f.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := f.Read(make([]byte, 1))
		switch {
		case n == 1 || !waits(pid) && startTime(pid) == start:
			return os.Remove(fifo)
		case startTime(pid) != start:
			return errEarlyEnd
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end):
			return failed("supervisor: the task does not begin", err)
		}
	}
}

// waits says whether a process is libcontainer's init still.
func waits(pid int) bool {
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
	return err == nil && bytes.HasPrefix(b, []byte(creator.Argv0+"\x00"+creator.Init+"\x00"))
}

// purge ends and removes all that bears the name of a task of a creator's, whatever
// became of the creator, which must have ended. What was mounted was in a
// namespace that is gone.
func (s *server) purge(t *task) error {
	err := cgroup.RemoveEach(t.groups)
	if t.spec.Cgroup == "" {
		if left := sweepAll(t.mark); left > 0 {
			err = errors.New("supervisor: " + itoa(left) + " processes of " + t.spec.ID + " do not die")
		}
	}
	return errors.Join(err, os.RemoveAll(s.stateDir(t.spec.ID)))
}

// takeOver carries on with a task of a creator's from the journal: false if it
// never ran a program of its own. Then nothing is left of it.
func (s *server) takeOver(r *record) bool {
	switch {
	case r.st.Exited:
		return true
	case r.st.BootID != s.boot:
		return r.st.PID != 0
	case r.st.PID != 0 && r.loose:
		fifo := s.stateDir(r.spec.ID) + "/" + creator.FIFO
		if err := letGo(fifo, r.st.PID, r.st.Start); err == nil || errors.Is(err, os.ErrNotExist) || err == errEarlyEnd {
			return true // what has ended may have run
		}
	}
	t := newTask(r.spec, r.st.BootID)
	t.mark = r.mark
	if err := s.purge(t); err != nil {
		println("supervisor: unfinished start of", r.spec.ID+":", err.Error())
	}
	return false
}
