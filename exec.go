// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// ErrExecRefused says that this node runs no commands beside tasks, or not that
// one. Nothing was run.
var ErrExecRefused = errors.New("nodekeep: exec is refused on this node")

// ExecPolicy says which commands may be run beside tasks by Agent.Exec. The zero
// value allows all.
type ExecPolicy struct {
	Disabled bool
	// Allow is asked before anything is run; its error is the reason told. nil
	// allows. It may be called from many goroutines at once.
	Allow func(ctx context.Context, call ExecCall) error
}

// ExecCall is a command that somebody wants to run beside a task.
type ExecCall struct {
	AllocID, Task string
	By            string // who asks: a peer, a token's name; for the log and for ExecPolicy.Allow
	Command       []string
	TTY           bool
}

// Exec runs a command beside a task of an alloc and returns when it has ended,
// with its own exit code; see driver.Execer for what it is given and how it is
// ended. call.Command and call.TTY are set from req. Who asked, what, where and
// how it ended is logged. A policy that forbids it is ErrExecRefused, an alloc that
// has ended allocrunner.ErrTerminal, a task that does not run
// taskrunner.ErrNotRunning.
func (a *Agent) Exec(ctx context.Context, call ExecCall, req driver.ExecRequest) (driver.ExitResult, error) {
	call.Command, call.TTY = req.Command, req.TTY
	log := a.log.With("alloc_id", call.AllocID, "task", call.Task, "by", call.By, "command", call.Command, "tty", call.TTY)
	if err := a.mayExec(ctx, call); err != nil {
		if req.Stdin != nil {
			_ = req.Stdin.Close()
		}
		log.Warn("exec refused", "reason", err)
		return driver.ExitResult{}, err
	}
	log.Info("exec asked for")
	began := time.Now()
	res, err := a.exec(ctx, call, req)
	result := "ended"
	if err != nil {
		result = err.Error()
	}
	log.Info("exec is over", "result", result, "exit_code", res.Code, "signal", res.Signal, "took", time.Since(began))
	return res, err
}

func (a *Agent) mayExec(ctx context.Context, call ExecCall) error {
	p := a.cfg.Exec
	if p.Disabled {
		return fmt.Errorf("%w: it is switched off", ErrExecRefused)
	}
	if p.Allow != nil {
		if err := p.Allow(ctx, call); err != nil {
			return fmt.Errorf("%w: %w", ErrExecRefused, err)
		}
	}
	return nil
}

func (a *Agent) exec(ctx context.Context, call ExecCall, req driver.ExecRequest) (driver.ExitResult, error) {
	r, err := a.live(call.AllocID)
	if err != nil {
		if req.Stdin != nil {
			_ = req.Stdin.Close()
		}
		return driver.ExitResult{}, err
	}
	return r.Exec(ctx, call.Task, req)
}
