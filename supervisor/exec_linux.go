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

	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// hangupGrace is from the SIGHUP to the SIGKILL of a command whose agent left.
const hangupGrace = 5 * time.Second

// usualPath is searched where a task's environment has no PATH.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// session is one command that runs beside a task: forked like it, into the same
// cgroup, in a session of its own, on three descriptors of the agent's. It lives
// as long as the connection it was asked for on; when that ends first, all it
// started is ended. Its mark is the task's with a number, so that both find it.
type session struct {
	t    *task
	mark uint64

	// Guarded by server.mu.
	st     Status
	c      *conn  // of the agent that waits
	waitID uint32 // of its kExecWait; 0 is none yet
	hungUp bool
}

// child is what the reaper knows a pid by.
type child interface {
	// over is called with the lock held when the process was reaped.
	over(s *server, how Status)
}

func (t *task) over(s *server, how Status) { s.ended(t, how) }

func (x *session) over(s *server, how Status) {
	x.st.Exited, x.st.Code, x.st.Signal = true, how.Code, how.Signal
	if x.waitID != 0 {
		x.c.send(about(x.waitID, x.st))
	}
	if !x.hungUp { // else whatever it left is still to be ended
		s.forgetSession(x)
	}
}

// forgetSession is called with the lock held.
func (s *server) forgetSession(x *session) {
	delete(x.t.execs, x.mark)
	if s.tasks[x.t.spec.ID] != x.t { // the task's D covers it
		return
	}
	if err := s.note(line("Q", x.t.spec.ID, strconv.FormatUint(x.mark, 10))); err != nil {
		println(err.Error())
	}
}

// handleExec answers what concerns the command of a connection.
func (s *server) handleExec(c *conn, r request) {
	switch {
	case (r.kind == kExec || r.kind == kExecIn) && c.run == nil:
		s.exec(c, r)
	case c.run == nil || r.kind == kExec || r.kind == kExecIn:
		c.send(newReply(r.id, ErrNotFound))
	case r.kind == kExecWait:
		s.mu.Lock()
		if c.run.waitID = r.id; c.run.st.Exited {
			c.send(about(r.id, c.run.st))
		}
		s.mu.Unlock()
	default:
		c.send(newReply(r.id, nil))
		go s.hangUp(c.run)
	}
}

// exec answers one Exec. The command's descriptors follow the frame.
func (s *server) exec(c *conn, r request) {
	fds, err := receiveFiles(c.f)
	if err != nil {
		_ = c.f.Close()
		return
	}
	defer closeAll(fds[:])
	gate, launch := s.forks, s.launchExec
	if r.kind == kExecIn {
		gate, launch = s.creators, s.launchExecIn
	}
	gate <- struct{}{}
	x, err := launch(c, r, fds)
	<-gate
	if err != nil {
		c.send(newReply(r.id, err))
		return
	}
	c.run = x
	s.mu.Lock()
	st := x.st
	st.Exited, st.Code, st.Signal = false, 0, 0 // that is ExecWait's to tell
	c.send(about(r.id, st))
	s.mu.Unlock()
}

func (s *server) launchExec(c *conn, r request, fds [3]int) (*session, error) {
	s.mu.Lock()
	t := s.tasks[r.spec.ID]
	s.mu.Unlock()
	if t == nil {
		return nil, ErrNotFound
	}
	if <-t.started; t.failed != nil {
		return nil, ErrNotFound
	}
	if t.spec.Container != nil {
		return nil, failed("supervisor: "+r.spec.ID+" is in a container", ErrUnsupported)
	}
	like, err := t.surroundings()
	if err != nil {
		return nil, err
	}
	like.Env = append(like.Env[:len(like.Env):len(like.Env)], r.spec.Env...)
	path, err := lookPath(r.spec.Path, like.Env)
	if err != nil {
		return nil, err
	}
	target, err := cgroup.JoinTarget(like.Cgroup)
	if err != nil {
		return nil, failed("supervisor: cgroup", err)
	}
	defer target.Close()
	attr := &syscall.ProcAttr{
		Dir: like.Dir, Env: like.Env,
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: credential(&like), Setctty: r.tty},
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
	}
	if attr.Dir == "" {
		attr.Dir = "/"
	}
	if r.tty && like.SetUser { // a terminal is its user's
		_ = syscall.Fchown(fds[0], like.UID, -1)
	}
	args := r.spec.Args
	if len(args) == 0 {
		args = []string{r.spec.Path}
	}
	return s.forkExec(c, t, target, like.OOMScoreAdj, path, args, attr)
}

func (s *server) forkExec(c *conn, t *task, target cgroup.Target, adj int, path string, args []string, attr *syscall.ProcAttr) (*session, error) {
	s.mu.Lock() // as in launch
	defer s.mu.Unlock()
	if !t.alive() {
		return nil, ErrExited
	}
	x := &session{t: t, c: c, mark: t.nextMark(), st: Status{ID: t.spec.ID, BootID: s.boot}}
	if err := s.note(line("R", t.spec.ID, strconv.FormatUint(x.mark, 10))); err != nil {
		return nil, err
	}
	back, err := s.lend(adj, x.mark)
	if err == nil {
		x.st.PID, err = target.ForkExec(path, args, attr)
		back()
	}
	if err != nil {
		s.forgetSession(x)
		return nil, whyNot(path, attr, err)
	}
	t.execs[x.mark] = x
	s.watch(x.st.PID, x)
	x.st.Start = startOf(x.st.PID)
	if err := s.note(x.line()); err != nil {
		println(err.Error()) // its mark finds it too
	}
	return x, nil
}

// line is the fact that a command runs.
func (x *session) line() []byte {
	return line("R", x.t.spec.ID, strconv.FormatUint(x.mark, 10), itoa(x.st.PID), strconv.FormatUint(x.st.Start, 10))
}

// nextMark returns the task's mark with a number no other command has. Called
// with the lock held.
func (t *task) nextMark() uint64 {
	if t.execs == nil {
		t.execs = map[uint64]*session{}
	}
	if t.execN == 0 { // another one in each supervisor: what an earlier one's command left may carry it
		t.execN = uint64(bootTime())
	}
	for {
		t.execN++
		if n := t.execN & execBits; n != 0 && t.execs[t.mark&^execBits|n] == nil {
			return t.mark&^execBits | n
		}
	}
}

// surroundings are what a task was started with. One that was adopted without a
// record of it tells them itself, by its process: what it has become counts then.
func (t *task) surroundings() (Spec, error) {
	if t.spec.Path != "" {
		return t.spec, nil
	}
	like, proc := t.spec, "/proc/"+itoa(t.st.PID)
	env, err := os.ReadFile(proc + "/environ")
	status, serr := os.ReadFile(proc + "/status")
	dir, derr := os.Readlink(proc + "/cwd")
	if err = errors.Join(err, serr, derr); err != nil || startOf(t.st.PID) != t.st.Start {
		return like, errors.Join(ErrExited, err)
	}
	like.Dir, like.OOMScoreAdj = dir, adjOf(t.st.PID)
	if len(env) > 0 {
		like.Env = strings.Split(strings.TrimSuffix(string(env), "\x00"), "\x00")
	}
	like.SetUser, like.UID, like.GID = true, -1, -1
	for l := range strings.Lines(string(status)) {
		key, rest, _ := strings.Cut(l, ":")
		f := strings.Fields(rest)
		switch {
		case key == "Uid" && len(f) > 1: // the effective one
			like.UID = int(num(f[1]))
		case key == "Gid" && len(f) > 1:
			like.GID = int(num(f[1]))
		case key == "Groups":
			for _, g := range f {
				like.Groups = append(like.Groups, int(num(g)))
			}
		}
	}
	if like.UID < 0 || like.GID < 0 {
		return like, errors.New("supervisor: " + proc + "/status names no user")
	}
	return like, nil
}

// lookPath finds a command that has no slash in the PATH of env. What is relative
// to a directory of ours is none of the task's.
func lookPath(name string, env []string) (string, error) {
	if name == "" || strings.Contains(name, "/") {
		return name, nil
	}
	path := usualPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	err := error(syscall.ENOENT)
	for _, dir := range strings.Split(path, ":") {
		if dir == "" || dir[0] != '/' {
			continue
		}
		st, serr := os.Stat(dir + "/" + name)
		switch {
		case serr != nil || st.IsDir():
		case st.Mode()&0o111 == 0:
			err = syscall.EACCES
		default:
			return dir + "/" + name, nil
		}
	}
	return "", &os.PathError{Op: "supervisor: look in " + path + " for", Path: name, Err: err}
}

// hangUp ends a command nobody waits for any more, and all it started: SIGHUP
// now, SIGKILL later. A command that has ended owes nobody anything: what it left
// in the background is the task's.
func (s *server) hangUp(x *session) {
	s.mu.Lock()
	if x.hungUp || x.st.Exited {
		s.mu.Unlock()
		return
	}
	x.hungUp = true
	s.mu.Unlock()
	sweep(x.mark, x.st.PID, x.st.Start, syscall.SIGHUP)
	time.AfterFunc(hangupGrace, func() {
		if sweep(x.mark, x.st.PID, x.st.Start, syscall.SIGKILL) > 0 {
			if left := sweepAll(x.mark); left > 0 {
				println("supervisor: processes of a command in", x.t.spec.ID, "do not die:", itoa(left))
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forgetSession(x)
	})
}

// resumeExecs ends the commands of an earlier supervisor: nobody can be told any
// more how they end.
func (s *server) resumeExecs(t *task, execs map[uint64]proc) {
	for mark, p := range execs {
		x := &session{t: t, mark: mark, st: Status{ID: t.spec.ID, PID: p.pid, Start: p.start, BootID: t.st.BootID}}
		if t.execs == nil {
			t.execs = map[uint64]*session{}
		}
		t.execs[mark] = x
		go s.hangUp(x)
	}
}

// receiveFiles takes the three descriptors that follow an Exec. Any other number
// is closed and an error.
func receiveFiles(f *os.File) (fds [3]int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return fds, err
	}
	var one [1]byte
	oob := make([]byte, syscall.CmsgSpace(4*8))
	n, oobn, flags := 0, 0, 0
	rerr := rc.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, err = syscall.Recvmsg(int(fd), one[:], oob, syscall.MSG_CMSG_CLOEXEC)
			if err != syscall.EINTR {
				return err != syscall.EAGAIN
			}
		}
	})
	if err = errors.Join(rerr, err); err != nil {
		return fds, err
	}
	var got []int
	msgs, _ := syscall.ParseSocketControlMessage(oob[:oobn])
	for i := range msgs {
		l, _ := syscall.ParseUnixRights(&msgs[i])
		got = append(got, l...)
	}
	if n != 1 || len(got) != 3 || flags&syscall.MSG_CTRUNC != 0 {
		closeAll(got)
		return fds, errors.New("supervisor: three descriptors must follow")
	}
	return [3]int(got), nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}
