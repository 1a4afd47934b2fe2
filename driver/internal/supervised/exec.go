// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/supervisor"
)

const (
	// execLateness is how long a command that is being ended may take. The
	// supervisor kills it after five seconds.
	execLateness = 10 * time.Second
	// feedLateness is how long a Read of Stdin may go on once it is closed.
	feedLateness = time.Second
)

// Command is how a driver has a command run beside a task.
type Command struct {
	// Spec is what to ask the supervisor for; its Files are filled in here.
	Spec func(r Record, env []string) (supervisor.ExecSpec, error)
	// Console says that a terminal is made with the command, beyond our reach, and
	// sent over the socket that is the command's first file.
	Console bool
	// Why is what an error of the start means to the caller, before it is made one of
	// the contract's; nil is nothing more.
	Why func(command string, err error) error
}

// Run is driver.Execer's Exec. The supervisor forks the command like the task, or has
// it made; its pipes or terminal are ours, and go with us.
func (t *Tasks) Run(ctx context.Context, id string, req driver.ExecRequest, c Command) (driver.ExitResult, error) {
	var none driver.ExitResult
	if req.Stdin != nil {
		defer func() { _ = req.Stdin.Close() }()
	}
	r, err := t.Task(id)
	if err != nil {
		return none, err
	}
	env, err := t.checkCommand(req)
	if err != nil {
		return none, err
	}
	spec, err := c.Spec(r, env)
	if err != nil {
		return none, err
	}
	s, err := openStreams(t.prefix, req, c.Console)
	if err != nil {
		return none, driver.Recoverable(fmt.Errorf("%s: streams of a command: %w", t.prefix, err))
	}
	defer s.close()
	spec.Task, spec.TTY, spec.Files = id, req.TTY, s.child
	x, err := t.pool.Scope(r.Scope).Exec(ctx, spec)
	s.closeChild()
	if err != nil {
		if c.Why != nil {
			err = c.Why(req.Command[0], err)
		}
		return none, execError(req.Command[0], err)
	}
	defer x.Close()
	if err := s.connect(req); err != nil {
		return none, driver.Recoverable(fmt.Errorf("%s: terminal of a command: %w", t.prefix, err))
	}
	return s.run(ctx, x, req)
}

// checkCommand finds what no program can be given.
func (t *Tasks) checkCommand(req driver.ExecRequest) ([]string, error) {
	var errs []error
	if len(req.Command) == 0 || req.Command[0] == "" {
		errs = append(errs, fmt.Errorf("%w: none was named", driver.ErrCommand))
	}
	for i, arg := range req.Command {
		if strings.ContainsRune(arg, 0) {
			errs = append(errs, fmt.Errorf("%w: argument %d %q holds a NUL byte", driver.ErrCommand, i, arg))
		}
	}
	env, err := Environment(t.prefix, req.Env, nil)
	if err != nil {
		errs = append(errs, fmt.Errorf("%w: %w", driver.ErrCommand, err))
	}
	return env, errors.Join(errs...)
}

// maxVariable is what Linux takes of one variable, name and = included.
const maxVariable = 128<<10 - 1

// Environment leaves out what is denied and checks the rest, which passes as it
// is. The error lists all faults and no value: those may be secret.
func Environment(prefix string, env []string, denied func(name string) bool) ([]string, error) {
	var errs []error
	out := make([]string, 0, len(env))
	for i, kv := range env {
		name, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "":
			errs = append(errs, fmt.Errorf("%s: environment: entry %d has no name", prefix, i))
		case denied != nil && denied(name):
		case strings.ContainsRune(kv, 0):
			errs = append(errs, fmt.Errorf("%s: environment: %q holds a NUL byte, which no program can be given", prefix, name))
		case len(kv) > maxVariable:
			errs = append(errs, fmt.Errorf("%s: environment: %.64q takes %d bytes with its name, Linux allows %d", prefix, name, len(kv), maxVariable))
		default:
			out = append(out, kv)
		}
	}
	return out, errors.Join(errs...)
}

// unfit are the errors of a file that is no program, or not for the task's user.
var unfit = []error{syscall.ENOENT, syscall.EACCES, syscall.ENOEXEC, syscall.ENOTDIR, syscall.EPERM, syscall.EISDIR, syscall.ELOOP, syscall.E2BIG, syscall.ENAMETOOLONG}

func execError(command string, err error) error {
	switch {
	case errors.Is(err, supervisor.ErrExited):
		return fmt.Errorf("%w: %w", driver.ErrTaskExited, err)
	case errors.Is(err, supervisor.ErrUnsupported):
		return fmt.Errorf("%w: the task was started by an older version that cannot run commands beside it: restart it", driver.ErrUnavailable)
	case slices.ContainsFunc(unfit, func(e error) bool { return errors.Is(err, e) }):
		return fmt.Errorf("%w: %q: %w", driver.ErrCommand, command, err)
	}
	return Translate(err)
}

// run moves the command's streams until it has ended.
func (s *streams) run(ctx context.Context, x *supervisor.Session, req driver.ExecRequest) (driver.ExitResult, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	waiting, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	ended := make(chan struct{})
	var outs, helpers sync.WaitGroup
	for _, o := range s.outs {
		outs.Go(func() { o.copy(fail) })
	}
	fed := make(chan struct{})
	go func() { defer close(fed); s.feed(req.Stdin) }()
	helpers.Go(func() { s.resize(req.Resize, ended) })
	helpers.Go(func() { endWith(ctx, x, ended, giveUp) })

	st, err := x.Wait(waiting)
	cause := context.Cause(ctx)
	close(ended)
	for _, o := range s.outs {
		o.finish()
	}
	outs.Wait()
	helpers.Wait()
	s.close()
	if req.Stdin != nil {
		_ = req.Stdin.Close()
	}
	late := time.NewTimer(feedLateness)
	defer late.Stop()
	select {
	case <-fed:
	case <-late.C:
	}
	if cause == nil {
		cause = context.Cause(ctx) // an output that failed in the end
	}
	if err != nil {
		return driver.ExitResult{Code: -1, Err: "exit not seen"}, errors.Join(cause, Translate(err))
	}
	return exit(st), cause
}

// endWith ends the command when ctx ends first, and stops waiting for one that
// does not die.
func endWith(ctx context.Context, x *supervisor.Session, ended <-chan struct{}, giveUp context.CancelCauseFunc) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	x.Hangup()
	t := time.NewTimer(execLateness)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		giveUp(fmt.Errorf("the command does not die, pid %d", x.PID()))
	}
}

// feed passes on what the command shall read, and its end. What the command does
// not read any more is dropped, so that whoever writes is not held up.
func (s *streams) feed(from io.Reader) {
	if from == nil {
		return
	}
	_, err := io.Copy(s.in, from)
	if err != nil {
		_, _ = io.Copy(io.Discard, from)
		return
	}
	s.endInput()
}
