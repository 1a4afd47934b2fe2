// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package driverplugin is the wire of task drivers that are programs of their own,
// in both directions. Any driver built for the same wire runs under nodekeep, and
// a driver served here runs under other agents of it.
//
//	func main() { driverplugin.Serve(&mydriver{}) }          // a whole driver
//
//	nodekeep.Config{Plugins: drivermanager.Config{                  // all drivers there
//		Launchers: []drivermanager.Launcher{driverplugin.Dir("/opt/plugins")}}}
//
//	agent                                    plugin
//	Launch ── exec, handshake line ────────▶ Serve
//	       ── who are you, schema, config ─▶
//	driver.Driver ══ gRPC, unix socket ════▶ driver.Driver
//	log file ◀── JSON lines on stderr ────── Logger
//
// What our contract has and the common wire has not (idempotent starts, a proof
// with Destroy, Prepare, which error it is) two nodekeep programs tell each other
// beside it; others neither see it nor miss it. Where a foreign driver is weaker
// than the contract, the package says so: Stop returns when the exit is known, and
// Wait is opened before it; Destroy makes the task known first.
package driverplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

var (
	// ErrLaunch says that a program did not become a plugin; the text says why and
	// what it wrote.
	ErrLaunch = pluginproc.ErrLaunch
	// ErrStale says that the process of a record is gone, or another one by now.
	ErrStale = pluginproc.ErrStale
	// ErrVersion says that plugin and agent have no version of the wire in common.
	ErrVersion = pluginwire.ErrVersion
	// ErrIdentity says that a plugin is no driver or does not say properly which.
	ErrIdentity = pluginwire.ErrIdentity
)

// meetTimeout bounds all questions before a driver can be used. Each may be slow
// in a driver that looks for its engine; none may be for ever.
const meetTimeout = 30 * time.Second

// Plugin is a driver's process; it implements drivermanager.Plugin.
type Plugin struct {
	proc   *pluginproc.Proc
	remote *remote
	once   sync.Once
}

// Launch starts the driver at path and configures it. It blocks until the driver
// can be used or ctx ends. After an error no process of it is left.
func Launch(ctx context.Context, path string, l drivermanager.Launch) (*Plugin, error) {
	proc, err := pluginproc.Launch(ctx, pluginproc.Spec{Path: path, Args: l.Args, Env: l.Env, Dir: l.Dir, Log: l.Log})
	if err != nil {
		return nil, err
	}
	p := &Plugin{proc: proc}
	if err = p.meet(ctx, l.Node, func(ctx context.Context, b *pluginwire.Base) error { return b.Configure(ctx, l.Config, l.Node) }); err != nil {
		how := ""
		if status.Code(err) == codes.Unavailable && soon(proc.Done()) {
			how = " (it ended: " + proc.How() + ")"
		}
		if errors.Is(err, pluginwire.ErrKind) {
			err = fmt.Errorf("%w: %w", drivermanager.ErrOtherKind, err)
		}
		// It had no task yet: there is nothing to be patient for.
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return nil, errors.Join(fmt.Errorf("%w: %s: %w%s", ErrLaunch, path, err, how), proc.Close(ended))
	}
	return p, nil
}

// soon waits a moment for c.
func soon(c <-chan struct{}) bool {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// Reattach connects to a driver that an earlier agent launched, which keeps the
// configuration it got then. The record is what Record returned. ErrStale says
// that the process is gone; it may still be there after any other error.
func Reattach(ctx context.Context, raw json.RawMessage, l drivermanager.Launch) (*Plugin, error) {
	var rec pluginproc.Record
	if err := json.Unmarshal(raw, &rec); err != nil {
		return nil, fmt.Errorf("%w: the record cannot be read: %w", ErrStale, err)
	}
	proc, err := pluginproc.Reattach(ctx, rec, l.Log)
	if err != nil {
		return nil, err
	}
	p := &Plugin{proc: proc}
	err = p.meet(ctx, l.Node, func(ctx context.Context, _ *pluginwire.Base) error {
		_, err := grpc_health_v1.NewHealthClient(proc.Conn()).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
		return err
	})
	if err != nil {
		proc.Detach()
		return nil, fmt.Errorf("driverplugin: reattach pid %d: %w", rec.Pid, err)
	}
	return p, nil
}

// meet gets to know the driver; then lets it be set up.
func (p *Plugin) meet(ctx context.Context, node *driver.Node, setUp func(context.Context, *pluginwire.Base) error) error {
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	base, err := pluginwire.Meet(ctx, p.proc.Conn(), pluginpb.PluginType_DRIVER)
	if err != nil {
		return err
	}
	if err := setUp(ctx, base); err != nil {
		return err
	}
	p.remote, err = meet(ctx, base, p.proc.Conn(), p.proc.Done(), node)
	return err
}

// Driver is the driver. Its calls end with driver.ErrPluginGone when the process
// ends. Beside driver.Driver it implements all optional parts of the contract;
// those that the driver has not answer driver.ErrNotImplemented.
func (p *Plugin) Driver() driver.Driver { return p.remote }

// Record is what Reattach needs. It says who the process is beyond doubt.
func (p *Plugin) Record() json.RawMessage {
	raw, err := json.Marshal(p.proc.Record())
	if err != nil {
		return nil // numbers and texts can always be written
	}
	return raw
}

// PID is the process's.
func (p *Plugin) PID() int { return p.proc.Record().Pid }

// Done is closed when the process has ended.
func (p *Plugin) Done() <-chan struct{} { return p.proc.Done() }

// How says how it ended, for people.
func (p *Plugin) How() string { return p.proc.How() }

// Close ends the driver's process in order, or with SIGKILL when it does not go in
// seconds, and blocks until it is gone; ctx shortens the patience. Tasks are left
// as they are. Closing again is no error.
func (p *Plugin) Close(ctx context.Context) error {
	err := p.proc.Close(ctx)
	p.once.Do(p.remote.close)
	return err
}

// Detach ends the connection. The process lives on, and so do its tasks.
func (p *Plugin) Detach() {
	p.proc.Detach()
	p.once.Do(p.remote.close)
}
