// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driver

import "errors"

var (
	// ErrTaskNotFound says that the driver knows no such task and that nothing of
	// it is left as far as the caller's proof reaches.
	ErrTaskNotFound = errors.New("driver: task not found")
	// ErrTaskExists says that a task of that ID is there already.
	ErrTaskExists = errors.New("driver: task exists")
	// ErrTaskRunning says that Destroy without force met a running task.
	ErrTaskRunning = errors.New("driver: task is running")
	// ErrTaskExited says that the task has ended, so that no command can be run in it.
	ErrTaskExited = errors.New("driver: task has exited")
	// ErrCommand says that a command for Exec cannot be run: it is not there, is no
	// program, or the task's user may not run it. The cause is in the chain.
	ErrCommand = errors.New("driver: command cannot be run")
	// ErrNotImplemented says that this driver cannot do this at all.
	ErrNotImplemented = errors.New("driver: not implemented")
	// ErrUnavailable says that the driver cannot answer now; the task may well be alive.
	ErrUnavailable = errors.New("driver: unavailable")
	// ErrPluginGone says that the driver's process ended; it is being started
	// again and the task can be recovered then.
	ErrPluginGone = errors.New("driver: plugin process is gone")
	// ErrUnknownSignal says that no such signal exists here; the text lists those that do.
	ErrUnknownSignal = errors.New("driver: unknown signal")
	// ErrForeignScope says that the task's supervisor belongs to another user.
	ErrForeignScope = errors.New("driver: supervisor belongs to another user")
)

type recoverable struct{ err error }

func (r recoverable) Error() string { return r.err.Error() }
func (r recoverable) Unwrap() error { return r.err }

// Recoverable marks err: trying again may help, so the restart policy decides.
// The mark survives wrapping. Recoverable(nil) is nil.
func Recoverable(err error) error {
	if err == nil {
		return nil
	}
	return recoverable{err}
}

// IsRecoverable says whether err or one it wraps is marked.
func IsRecoverable(err error) bool {
	var r recoverable
	return errors.As(err, &r)
}
