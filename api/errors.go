// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Code says what kind of error an Error is. Codes are stable; texts are not.
type Code string

// The codes.
const (
	CodeInvalid       Code = "invalid"        // the request or what it carries is wrong
	CodeNoAlloc       Code = "no_alloc"       // no alloc of that name
	CodeAmbiguous     Code = "ambiguous"      // the name fits several allocs
	CodeNoTask        Code = "no_task"        // the alloc has no such task, or more than one
	CodeEnded         Code = "ended"          // the alloc has ended: nothing can be asked of it
	CodeNotRunning    Code = "not_running"    // no process that could be restarted or signalled
	CodeConflict      Code = "conflict"       // not possible as things are, for another reason
	CodeStale         Code = "stale"          // an older desired list than the one applied
	CodeCompacted     Code = "compacted"      // the events asked for are gone
	CodeNotDurable    Code = "not_durable"    // it is being done, but a crash would undo it: the disk failed
	CodeUnknownSignal Code = "unknown_signal" // the driver knows no such signal
	CodeExecRefused   Code = "exec_refused"   // this node runs no commands beside tasks, or not that one
	CodeNoCommand     Code = "no_command"     // the command is not there, is no program, or may not be run
	CodeNotSupported  Code = "not_supported"  // this node or driver cannot do that
	CodeUnavailable   Code = "unavailable"    // not now; try again
	CodeNoAgent       Code = "no_agent"       // nobody answers on the socket
	CodeInternal      Code = "internal"       // a fault of the agent
)

var (
	// ErrAmbiguous says that a name fits several allocs; the text lists them.
	ErrAmbiguous = errors.New("api: the name fits several allocs")
	// ErrNoTask says that the alloc has no such task, or several and none was named.
	ErrNoTask = errors.New("api: no such task")
	// ErrNoAgent says that no agent answers on the socket.
	ErrNoAgent = errors.New("api: no agent answers")
	// ErrInvalid says that what was sent is wrong; the text says where.
	ErrInvalid = errors.New("api: invalid")
)

// Error is how an error travels: as JSON, and back to the error it was, so that
// errors.Is(err, nodekeep.ErrNoAlloc) holds on both sides of the socket.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"error"`          // what went wrong
	Hint    string `json:"hint,omitempty"` // what to do
}

// Error is what went wrong and, after a colon, what to do.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + ": " + e.Hint
}

// Is says whether target is the sentinel that e's code stands for.
func (e *Error) Is(target error) bool {
	for _, k := range kinds {
		if k.code == e.Code && k.err == target {
			return true
		}
	}
	return false
}

// kinds pairs what the agent's packages return with codes and HTTP statuses.
// The first that fits counts.
var kinds = []struct {
	err    error
	code   Code
	status int
}{
	{ErrInvalid, CodeInvalid, http.StatusBadRequest},
	{ErrAmbiguous, CodeAmbiguous, http.StatusConflict},
	{ErrNoTask, CodeNoTask, http.StatusNotFound},
	{nodekeep.ErrNoAlloc, CodeNoAlloc, http.StatusNotFound},
	{nodekeep.ErrStale, CodeStale, http.StatusConflict},
	{taskrunner.ErrNotRunning, CodeNotRunning, http.StatusConflict},
	{allocrunner.ErrTerminal, CodeEnded, http.StatusConflict},
	{allocrunner.ErrUnknownTask, CodeNoTask, http.StatusNotFound},
	{taskrunner.ErrNotDurable, CodeNotDurable, http.StatusInsufficientStorage},
	{state.ErrCompacted, CodeCompacted, http.StatusGone},
	{driver.ErrUnknownSignal, CodeUnknownSignal, http.StatusBadRequest},
	{driver.ErrCommand, CodeNoCommand, http.StatusBadRequest},
	{driver.ErrTaskExited, CodeNotRunning, http.StatusConflict},
	{nodekeep.ErrExecRefused, CodeExecRefused, http.StatusForbidden},
	{driver.ErrNotImplemented, CodeNotSupported, http.StatusNotImplemented},
	{driver.ErrUnavailable, CodeUnavailable, http.StatusServiceUnavailable},
	{driver.ErrPluginGone, CodeUnavailable, http.StatusServiceUnavailable},
	{ErrNoAgent, CodeNoAgent, http.StatusServiceUnavailable},
	{context.Canceled, CodeUnavailable, http.StatusServiceUnavailable},
	{context.DeadlineExceeded, CodeUnavailable, http.StatusServiceUnavailable},
}

// packages are the prefixes of the errors of our packages.
var packages = []string{"api", "nodekeep", "allocrunner", "taskrunner", "driver", "drivermanager", "driverplugin", "pluginproc", "pluginwire", "rawexec", "exec", "container", "supervisor", "state", "spec", "allocdir", "logmon", "tail", "jobspec", "outbox"}

// toError makes err fit for the way.
func toError(err error) (*Error, int) {
	var e *Error
	if errors.As(err, &e) {
		for _, k := range kinds {
			if k.code == e.Code {
				return e, k.status
			}
		}
		return e, http.StatusInternalServerError
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &Error{Code: k.code, Message: Plain(err)}, k.status
		}
	}
	return &Error{Code: CodeInternal, Message: Plain(err)}, http.StatusInternalServerError
}

// Plain is err's text without the names of our packages in front of its parts:
// they tell a programmer where it came from, and a user nothing.
func Plain(err error) string { return plain(err.Error()) }

func plain(text string) string {
	lines := strings.Split(text, "\n") // of joined errors
	for i, line := range lines {
		parts := strings.Split(line, ": ")
		lines[i] = strings.Join(slices.DeleteFunc(parts, func(p string) bool { return slices.Contains(packages, p) }), ": ")
	}
	return strings.Join(lines, "\n")
}

func writeError(w http.ResponseWriter, err error) {
	e, status := toError(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}
