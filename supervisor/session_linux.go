// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// Session is a command that runs beside a task. Close it in any case.
type Session struct {
	s  *Scope
	c  *client // a connection of its own: its end is the session's
	st Status
}

// Exec runs a command beside a task and returns once it runs: as the task's user,
// in its cgroup and directory, with its environment. The command ends with the
// Session: when that is closed first, or this process dies, all the command
// started gets SIGHUP and five seconds later SIGKILL. ErrExited is the answer
// when the task has ended, ErrUnsupported that of a supervisor that is too old;
// errors.Is finds why a command cannot be run (fs.ErrNotExist). With ErrClosed it
// may have run, and was ended.
func (s *Scope) Exec(ctx context.Context, e ExecSpec) (*Session, error) {
	if e.Task == "" || e.Path == "" && e.Container == nil {
		return nil, errors.New("supervisor: ExecSpec.Task and ExecSpec.Path, or Container, must not be empty")
	}
	c, err := s.another(ctx)
	if err != nil {
		return nil, err
	}
	x := &Session{s: s, c: c}
	k := x.c.sendFiles(e)
	r, err := k.await(ctx, s.stop)
	x.st, err = one(r, err, e.Task)
	if err == nil && x.st.PID <= 0 {
		err = errors.New("supervisor: the answer names no process")
	}
	if err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// another makes one more connection to the scope's supervisor, started if need be.
// Until that has answered nothing was asked of it, so one that ends is a try: a
// socket may take connections for a moment after its supervisor was killed.
func (s *Scope) another(ctx context.Context) (*client, error) {
	for try := 0; ; try++ {
		main, err := s.connected(ctx)
		if main != nil {
			var c *client
			if c, err = s.greet(ctx); err == nil {
				return c, nil
			}
		}
		if !errors.Is(err, ErrClosed) || try >= repeats || !s.sleep(firstBackoff<<try) {
			return nil, err
		}
	}
}

func (s *Scope) greet(ctx context.Context) (*client, error) {
	f, err := dial(s.dir)
	if errors.Is(err, ErrForeignScope) {
		return nil, err
	}
	if err != nil {
		return nil, failed(err.Error(), ErrClosed)
	}
	c := newClient(s, f, 0)
	if !s.enlist(c) {
		return nil, ErrClosed
	}
	if _, err := c.send(kHello, nil).await(ctx, s.stop); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// enlist reads from c in the background and has it closed with the scope.
func (s *Scope) enlist(c *client) bool {
	s.mu.Lock()
	if !s.over {
		s.execs[c] = true
	}
	over := s.over
	s.mu.Unlock()
	if !over && s.pool.spawn(func() {
		c.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.execs, c)
	}) {
		return true
	}
	c.close()
	return false
}

// sendFiles sends an Exec and, right after it, its descriptors.
func (c *client) sendFiles(e ExecSpec) *call {
	kind := kExec
	if e.Container != nil {
		kind = kExecIn
	}
	k := c.send(kind, e.encode)
	rights := syscall.UnixRights(e.Files[:]...)
	rc, err := c.f.SyscallConn()
	if err == nil {
		var serr error
		err = rc.Write(func(fd uintptr) bool {
			serr = syscall.Sendmsg(int(fd), []byte{0}, rights, nil, syscall.MSG_NOSIGNAL)
			return serr != syscall.EAGAIN
		})
		err = errors.Join(err, serr)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		c.forgetAll(failed("supervisor: pass descriptors", err))
	}
	return k
}

// PID returns the command's process id.
func (x *Session) PID() int { return x.st.PID }

// Wait returns how the command ended. What it wrote is in its pipes and terminal
// by then. ErrClosed says that nobody can tell: the supervisor has died, and the
// next one ends the command.
func (x *Session) Wait(ctx context.Context) (Status, error) {
	r, err := x.c.send(kExecWait, naming(x.st.ID)).await(ctx, x.s.stop)
	st, err := one(r, err, x.st.ID)
	if err == nil && (!st.Exited || st.PID != x.st.PID) {
		err = errors.New("supervisor: the answer is not about the command that was asked for")
	}
	return st, err
}

// Hangup has the command ended, as Close does, and leaves it to Wait to see it.
func (x *Session) Hangup() { x.c.send(kHangup, naming(x.st.ID)) }

// Close ends the session and, if it has not ended, the command. Idempotent.
func (x *Session) Close() { x.c.close() }

// Procs returns the pids of a task that no cgroup holds, zombies excepted, those
// of commands that run beside it included: all that is in its session or carries
// its mark. It looks at every process of the machine and asks no supervisor. A
// task this Scope has neither started nor adopted has none.
func (s *Scope) Procs(id string) (pids []int) {
	s.mu.Lock()
	i, ok := s.tasks[id]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	mark := markOf(s.dir, id)
	if m, _ := markedWith(i.PID); m != 0 && startOf(i.PID) == i.Start {
		mark = m &^ execBits // the directory may have had another name
	}
	members(mark, i.PID, i.Start, func(pid int, _ uint64) { pids = append(pids, pid) })
	return pids
}
