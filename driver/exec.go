// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"io"
	"sync"
	"time"
)

// Execer is a driver with Capabilities.Exec: it runs commands beside a task.
type Execer interface {
	// Exec runs a command where the task runs: as its user, in its directory, with
	// its environment and limits. It returns once the command has ended and all it
	// wrote was handed over, with its own exit code. What it left in the background
	// is not waited for: it ends with the task.
	//
	// An error with a zero result says that nothing was run: ErrTaskNotFound,
	// ErrTaskExited, ErrCommand, ErrNotImplemented (such as for TTY). When ctx
	// ends or an output fails, all the command started gets SIGHUP and, five
	// seconds later, SIGKILL, also if this process is gone by then; Exec goes on to
	// the end and returns the result together with the cause. ErrUnavailable after
	// the start says that how the command ends cannot be learned; it is ended.
	Exec(ctx context.Context, taskID string, req ExecRequest) (ExitResult, error)
}

// ExecRequest is a command to run beside a task. Its streams are used by other
// goroutines until Exec returns, one for each.
type ExecRequest struct {
	Command []string // the program and its arguments, passed as they are; without a slash it is looked for in the task's PATH
	Env     []string // added to the task's, "K=V"; wins over it

	// TTY gives the command a terminal: output comes by Stdout alone, and Stdin's
	// end is typed as Ctrl-D. Size is its first size, zero is 24 by 80.
	TTY    bool
	Size   TerminalSize
	Resize <-chan TerminalSize // later sizes; nil is none. It may be closed.

	// Stdin is what the command reads; nil is nothing. Its end is passed on and
	// ends nothing else. Exec closes it in the end, so that a Read under way
	// returns; one that does not is left behind.
	Stdin io.ReadCloser
	// Stdout and Stderr get what the command writes; nil discards. A writer that
	// blocks holds the command up.
	Stdout, Stderr io.Writer
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecOutput is how a command ended and what it wrote.
type ExecOutput struct {
	ExitResult
	Stdout, Stderr []byte
	Truncated      bool // something did not fit and was dropped
}

// Output runs a command without input. It keeps at most limit bytes of each of
// its outputs, the first ones, and takes the rest from the command's hands. With
// a timeout above 0 the error is context.DeadlineExceeded when that was over, and
// what had been written until then is returned. Errors else as of Exec.
func Output(ctx context.Context, x Execer, taskID string, command []string, timeout time.Duration, limit int) (ExecOutput, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	out, errs := &capped{limit: limit}, &capped{limit: limit}
	res, err := x.Exec(ctx, taskID, ExecRequest{Command: command, Stdout: out, Stderr: errs})
	o := ExecOutput{ExitResult: res}
	var cut [2]bool
	o.Stdout, cut[0] = out.take()
	o.Stderr, cut[1] = errs.take()
	o.Truncated = cut[0] || cut[1]
	return o, err
}

// capped keeps the first bytes and swallows the others.
type capped struct {
	limit int
	mu    sync.Mutex
	b     []byte
	cut   bool
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(p), max(0, c.limit-len(c.b)))
	c.b = append(c.b, p[:n]...)
	c.cut = c.cut || n < len(p)
	return len(p), nil
}

func (c *capped) take() ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b, c.cut
}
