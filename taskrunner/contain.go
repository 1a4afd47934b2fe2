// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/state"
)

// What a host hands in may panic. None of it may end the agent.

// outside runs a callback of the host.
func (l *loop) outside(f func()) {
	defer func() {
		if p := recover(); p != nil {
			l.r.log.Error("callback of the host panicked", "panic", p)
		}
	}()
	f()
}

// record is Config.Record, a panic being an error.
func (l *loop) record(tx state.Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("taskrunner: Config.Record panicked: %v", p)
		}
	}()
	return l.r.cfg.Record(tx, l.disk, l.snap)
}

// quiet is a logger whose panics are swallowed: there is nobody to tell.
type quiet struct{ hclog.Logger }

func (q quiet) With(args ...any) (l hclog.Logger) {
	defer func() {
		if recover() != nil {
			l = q
		}
	}()
	return quiet{q.Logger.With(args...)}
}

func (q quiet) Info(msg string, args ...any) {
	defer func() { _ = recover() }()
	q.Logger.Info(msg, args...)
}

func (q quiet) Warn(msg string, args ...any) {
	defer func() { _ = recover() }()
	q.Logger.Warn(msg, args...)
}

func (q quiet) Error(msg string, args ...any) {
	defer func() { _ = recover() }()
	q.Logger.Error(msg, args...)
}
