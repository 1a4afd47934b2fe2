// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"syscall"
	"time"
)

// request is a decoded frame of an agent. Which fields mean something depends
// on the kind; spec.ID names the task of all kinds that concern one.
type request struct {
	kind     uint8
	id       uint32
	spec     Spec
	ident    Identity
	maxSize  int64
	maxFiles int
	files    string // base name
	signal   syscall.Signal
	grace    time.Duration
	tty      bool
}

// reply is a decoded frame of a supervisor.
type reply struct {
	id             uint32
	version, pid   int
	err            error
	stdout, stderr string
	statuses       []Status
}

func (s *Spec) encode(e *enc) {
	e.str(tTask, s.ID).str(tPath, s.Path).str(tDir, s.Dir).str(tStdout, s.Stdout).str(tStderr, s.Stderr).
		str(tCgroup, s.Cgroup).str(tExitDir, s.ExitDir).
		container(s.Container).flag(tSetUser, s.SetUser).num(tUID, int64(s.UID)).num(tGID, int64(s.GID)).num(tOOMAdj, int64(s.OOMScoreAdj))
	for _, g := range s.Groups {
		e.field(tGroup, itoa(g))
	}
	for _, a := range s.Args {
		e.field(tArg, a)
	}
	for _, v := range s.Env {
		e.field(tEnv, v)
	}
}

func (i *Identity) encode(e *enc) {
	e.str(tTask, i.ID).num(tPID, int64(i.PID)).num(tStart, int64(i.Start)).str(tBootID, i.BootID).
		str(tCgroup, i.Cgroup).str(tStdout, i.Stdout).str(tStderr, i.Stderr).str(tExitDir, i.ExitDir).flag(tIsolated, i.Isolated)
}

func (x *ExecSpec) encode(e *enc) {
	e.str(tTask, x.Task).container(x.Container).str(tPath, x.Path).flag(tTTY, x.TTY)
	for _, a := range x.Args {
		e.field(tArg, a)
	}
	for _, v := range x.Env {
		e.field(tEnv, v)
	}
}

func (e *enc) container(c *Container) *enc {
	if c == nil {
		return e
	}
	return e.str(tCreator, c.Creator).field(tSpec, string(c.Spec))
}

func (l *LogSpec) encode(e *enc) {
	e.str(tTask, l.ID).str(tFiles, l.Task).str(tDir, l.Dir).num(tMaxSize, l.MaxSize).num(tMaxFiles, int64(l.MaxFiles)).
		num(tUID, int64(l.UID)).num(tGID, int64(l.GID))
}

func (r *request) logSpec() LogSpec {
	return LogSpec{ID: r.spec.ID, Task: r.files, Dir: r.spec.Dir, MaxSize: r.maxSize, MaxFiles: r.maxFiles, UID: r.spec.UID, GID: r.spec.GID}
}

func (s *Status) encode(e *enc) {
	e.field(tTask, s.ID).num(tPID, int64(s.PID)).num(tStart, int64(s.Start)).str(tBootID, s.BootID).
		flag(tExited, s.Exited).num(tCode, int64(s.Code)).num(tSignal, int64(s.Signal)).
		flag(tOOM, s.OOMKilled).str(tExitErr, s.Err).flag(tAdopted, s.Adopted).flag(tLost, s.OutputLost)
}

func decodeRequest(b []byte) (r request, ok bool) {
	if len(b) < 5 {
		return r, false
	}
	r.kind, r.id = b[0], get32(b[1:])
	ok = each(b[5:], func(tag uint8, v string, n int64) {
		if !r.spec.set(tag, v, n) {
			r.set(tag, v, n)
		}
	})
	s := &r.spec
	if (r.kind == kContain || r.kind == kExecIn) && s.Container == nil {
		s.Container = &Container{}
	}
	r.ident.ID, r.ident.Cgroup, r.ident.Stdout, r.ident.Stderr, r.ident.ExitDir = s.ID, s.Cgroup, s.Stdout, s.Stderr, s.ExitDir
	return r, ok
}

func (r *request) set(tag uint8, v string, n int64) {
	switch tag {
	case tPID:
		r.ident.PID = int(n)
	case tStart:
		r.ident.Start = uint64(n)
	case tBootID:
		r.ident.BootID = v
	case tMaxSize:
		r.maxSize = n
	case tMaxFiles:
		r.maxFiles = int(n)
	case tFiles:
		r.files = v
	case tSignal:
		r.signal = syscall.Signal(n)
	case tGrace:
		r.grace = time.Duration(n)
	case tTTY:
		r.tty = n != 0
	case tIsolated:
		r.ident.Isolated = n != 0
	}
}

func (s *Spec) contained() *Container {
	if s.Container == nil {
		s.Container = &Container{}
	}
	return s.Container
}

func (s *Spec) set(tag uint8, v string, n int64) bool {
	switch tag {
	case tTask:
		s.ID = v
	case tPath:
		s.Path = v
	case tArg:
		s.Args = append(s.Args, v)
	case tEnv:
		s.Env = append(s.Env, v)
	case tDir:
		s.Dir = v
	case tStdout:
		s.Stdout = v
	case tStderr:
		s.Stderr = v
	case tCgroup:
		s.Cgroup = v
	case tExitDir:
		s.ExitDir = v
	case tCreator:
		s.contained().Creator = v
	case tSpec:
		s.contained().Spec = []byte(v)
	case tSetUser:
		s.SetUser = n != 0
	case tUID:
		s.UID = int(n)
	case tGID:
		s.GID = int(n)
	case tGroup:
		s.Groups = append(s.Groups, int(n))
	case tOOMAdj:
		s.OOMScoreAdj = int(n)
	default:
		return false
	}
	return true
}

func decodeReply(b []byte) (r reply, ok bool) {
	if len(b) < 5 || b[0] != kReply {
		return r, false
	}
	r.id = get32(b[1:])
	var re remoteError
	ok = each(b[5:], func(tag uint8, v string, n int64) {
		switch tag {
		case tErr:
			re.text = v
		case tErrCode:
			re.code = int(n)
		case tErrno:
			re.errno = syscall.Errno(n)
		case tVersion:
			r.version = int(n)
		case tStdout:
			r.stdout = v
		case tStderr:
			r.stderr = v
		case tTask:
			r.statuses = append(r.statuses, Status{ID: v})
		default:
			if len(r.statuses) > 0 {
				r.statuses[len(r.statuses)-1].set(tag, v, n)
			} else if tag == tPID {
				r.pid = int(n)
			}
		}
	})
	if re.text != "" {
		r.err = &re
	}
	return r, ok
}

func (s *Status) set(tag uint8, v string, n int64) {
	switch tag {
	case tPID:
		s.PID = int(n)
	case tStart:
		s.Start = uint64(n)
	case tBootID:
		s.BootID = v
	case tExited:
		s.Exited = n != 0
	case tCode:
		s.Code = int(n)
	case tSignal:
		s.Signal = int(n)
	case tOOM:
		s.OOMKilled = n != 0
	case tExitErr:
		s.Err = v
	case tAdopted:
		s.Adopted = n != 0
	case tLost:
		s.OutputLost = n != 0
	}
}

// sentinels are the errors that keep their identity over the wire; the index is
// the code, frozen like a tag.
var sentinels = [...]error{1: ErrNotFound, 2: ErrNotProved, 3: ErrBusy, 4: ErrUnsupported, 5: ErrExited, 6: ErrProgram}

// remoteError is an error as a supervisor told it. errors.Is finds the sentinel
// and the errno, so a missing program is fs.ErrNotExist at the agent too.
type remoteError struct {
	text  string
	code  int
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() []error {
	var l []error
	if e.code > 0 && e.code < len(sentinels) {
		l = append(l, sentinels[e.code])
	}
	if e.errno != 0 {
		l = append(l, e.errno)
	}
	return l
}

// newReply builds the answer to request id; err nil is success.
func newReply(id uint32, err error) *enc {
	e := newFrame(kReply, id)
	if err == nil {
		return e
	}
	e.field(tErr, err.Error())
	for code, s := range sentinels {
		if s != nil && errors.Is(err, s) {
			e.num(tErrCode, int64(code))
		}
	}
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		e.num(tErrno, int64(errno))
	}
	return e
}

// opError adds what was being done to an error.
type opError struct {
	op  string
	err error
}

func (e *opError) Error() string { return e.op + ": " + e.err.Error() }
func (e *opError) Unwrap() error { return e.err }

func failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &opError{op, err}
}
