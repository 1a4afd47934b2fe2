// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
)

// ErrOtherKind is what Launch returns for a program that is a plugin, but no driver.
// It is not started again.
var ErrOtherKind = errors.New("drivermanager: not a task driver")

// Launcher finds drivers that are programs of their own and runs them. The wire is
// its business: this package links none. Methods may be called from any goroutine.
type Launcher interface {
	// List names what can be launched, sorted by name.
	List() ([]Program, error)
	// Launch starts a driver and configures it. It blocks until the driver can be
	// used or ctx ends; after an error nothing of it is left.
	Launch(ctx context.Context, name string, l Launch) (Plugin, error)
	// Reattach finds a driver again that an earlier agent launched; it keeps the
	// configuration it had. After an error its process may still be there: Remove.
	Reattach(ctx context.Context, name string, record json.RawMessage, l Launch) (Plugin, error)
	// Remove ends the process of a record, if it is still the same, and removes
	// what belongs to it. Nothing left is no error.
	Remove(record json.RawMessage) error
	// Sweep does that for all processes that were launched into directories below
	// dir and are not in keep: an agent may have died before it noted them.
	Sweep(dir string, keep []json.RawMessage) error
}

// Program is something a Launcher can launch. ID changes when the program does.
// Driver is the driver it is, if that is known before it runs.
type Program struct{ Name, ID, Driver string }

// Launch is what a driver is started with.
type Launch struct {
	// Dir is for this process alone and is made and removed with it. Keep it short:
	// it holds a socket.
	Dir    string
	Args   []string
	Env    []string        // complete, "K=V"
	Config json.RawMessage // the operator's, HCL-JSON; nil is an empty one
	Node   *driver.Node    // nil: nothing is known of it
	Log    hclog.Logger    // takes what the driver logs, at its own level
}

// Plugin is a driver's process. Methods may be called from any goroutine.
type Plugin interface {
	// Driver is usable until Done; its calls end with ErrPluginGone then.
	Driver() driver.Driver
	// PID is the process's; 0 for this one.
	PID() int
	// Record is what Reattach needs; nil where there is nothing to reattach to.
	Record() json.RawMessage
	// Done is closed when the process has ended, How says how. It is nil for a
	// driver in this process.
	Done() <-chan struct{}
	How() string
	// Close ends the process in order and blocks until it is gone; ctx shortens the
	// patience. Tasks live on where their driver can find them again.
	Close(ctx context.Context) error
	// Detach lets go of the process, which lives on.
	Detach()
}
