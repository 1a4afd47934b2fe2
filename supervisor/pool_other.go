// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package supervisor

import (
	"context"
	"errors"
	"iter"
	"syscall"
	"time"
)

// Pool is all scopes below one runtime directory. Only Linux has them.
type Pool struct{}

// Scope is one supervisor and its tasks. Only Linux has them.
type Scope struct{}

var errSystem = &opError{"supervisor: only Linux has supervisors", errors.ErrUnsupported}

// NewPool fails: only Linux has supervisors.
func NewPool(PoolConfig) (*Pool, error) { return nil, errSystem }

// Scope returns a scope whose every call fails.
func (p *Pool) Scope(string) *Scope { return &Scope{} }

// Names fails.
func (p *Pool) Names() ([]string, error) { return nil, errSystem }

// Close does nothing.
func (p *Pool) Close() error { return nil }

// Owns is false: there are no supervisors.
func (p *Pool) Owns(int) bool { return false }

// KillMarked finds none.
func (p *Pool) KillMarked(string, string, iter.Seq[string]) (killed int, err error) { return 0, nil }

// Start fails.
func (s *Scope) Start(context.Context, Spec) (Status, error) { return Status{}, errSystem }

// Wait fails.
func (s *Scope) Wait(context.Context, string) (Status, error) { return Status{}, errSystem }

// Signal fails.
func (s *Scope) Signal(context.Context, string, syscall.Signal) error { return errSystem }

// Stop fails.
func (s *Scope) Stop(context.Context, string, syscall.Signal, time.Duration) error { return errSystem }

// Lookup fails.
func (s *Scope) Lookup(context.Context, string) (Status, error) { return Status{}, errSystem }

// List fails.
func (s *Scope) List(context.Context) ([]Status, error) { return nil, errSystem }

// Adopt fails.
func (s *Scope) Adopt(context.Context, Identity) (Status, error) { return Status{}, errSystem }

// Destroy fails.
func (s *Scope) Destroy(context.Context, string) error { return errSystem }

// Logs fails.
func (s *Scope) Logs(context.Context, LogSpec) (stdout, stderr string, err error) {
	return "", "", errSystem
}

// EndLogs fails.
func (s *Scope) EndLogs(context.Context, string) error { return errSystem }

// Release fails.
func (s *Scope) Release(context.Context) error { return errSystem }

// Exec fails.
func (s *Scope) Exec(context.Context, ExecSpec) (*Session, error) { return nil, errSystem }

// Procs returns none.
func (s *Scope) Procs(string) []int { return nil }

// Session is a command that runs beside a task. Only Linux has them.
type Session struct{}

// PID returns 0.
func (x *Session) PID() int { return 0 }

// Wait fails.
func (x *Session) Wait(context.Context) (Status, error) { return Status{}, errSystem }

// Hangup does nothing.
func (x *Session) Hangup() {}

// Close does nothing.
func (x *Session) Close() {}

// Hello fails.
func (s *Scope) Hello(context.Context) (version, pid int, err error) { return 0, 0, errSystem }

// StateRoot is nowhere.
func (s *Scope) StateRoot() string { return "" }
