// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package deviceplugin is the wire of device plugins that are programs of their
// own, in both directions. Any plugin built for the same wire runs under nodekeep,
// and one served here runs under other agents of it.
//
//	func main() { deviceplugin.Serve(&myplugin{}) }           // a whole plugin
//
//	nodekeep.Config{Devices: devicemanager.Config{            // all plugins there
//		Launchers: []devicemanager.Launcher{deviceplugin.Dir("/opt/plugins")}}}
//
//	agent                                     plugin
//	Launch ── exec, handshake line ─────────▶ Serve
//	       ── who are you, schema, config ──▶
//	device.Plugin ══ gRPC, unix socket ═════▶ device.Plugin
//	log file ◀── JSON lines on stderr ─────── Logger
//
// A plugin keeps nothing between calls that an agent could miss, so none is found
// again after an agent's death: the next one ends it and starts its own. What a
// plugin says is checked before anybody sees it; how much and how often is bounded.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin/devicepb"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
	"github.com/nodekeep/nodekeep/internal/pluginproc"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

var (
	// ErrLaunch says that a program did not become a plugin; the text says why and
	// what it wrote.
	ErrLaunch = pluginproc.ErrLaunch
	// ErrVersion says that plugin and agent have no version of the wire in common.
	ErrVersion = pluginwire.ErrVersion
	// ErrIdentity says that a plugin does not say properly who it is.
	ErrIdentity = pluginwire.ErrIdentity
)

const (
	// meetTimeout bounds all questions before a plugin can be used. Each may be slow
	// in one that looks for its hardware; none may be for ever.
	meetTimeout = 30 * time.Second
	// goneWait is how long a broken call waits to learn whether the process ended.
	goneWait = 3 * time.Second
)

// Plugin is a device plugin's process; it implements devicemanager.Plugin.
type Plugin struct {
	proc   *pluginproc.Proc
	remote *remote
	once   sync.Once
}

// Launch starts the plugin at path and configures it. It blocks until the plugin
// can be used or ctx ends. After an error no process of it is left. A plugin of
// drivers is devicemanager.ErrOtherKind.
func Launch(ctx context.Context, path string, l devicemanager.Launch) (*Plugin, error) {
	proc, err := pluginproc.Launch(ctx, pluginproc.Spec{Path: path, Args: l.Args, Env: l.Env, Dir: l.Dir, Log: l.Log})
	if err != nil {
		return nil, err
	}
	p := &Plugin{proc: proc}
	if err = p.meet(ctx, l); err == nil {
		return p, nil
	}
	how := ""
	if status.Code(err) == codes.Unavailable && soon(proc.Done(), time.Second) {
		how = " (it ended: " + proc.How() + ")"
	}
	if errors.Is(err, pluginwire.ErrKind) {
		err = fmt.Errorf("%w: %w", devicemanager.ErrOtherKind, err)
	}
	ended, cancel := context.WithCancel(ctx) // nothing to be patient for
	cancel()
	return nil, errors.Join(fmt.Errorf("%w: %s: %w%s", ErrLaunch, path, err, how), proc.Close(ended))
}

// soon waits for c, not for long.
func soon(c <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
		return false
	}
}

// meet gets to know the plugin and configures it.
func (p *Plugin) meet(ctx context.Context, l devicemanager.Launch) error {
	ctx, cancel := context.WithTimeout(ctx, meetTimeout)
	defer cancel()
	base, err := pluginwire.Meet(ctx, p.proc.Conn(), pluginpb.PluginType_DEVICE)
	if err != nil {
		return err
	}
	if err := base.Configure(ctx, l.Config, nil); err != nil {
		return err
	}
	p.remote = &remote{rpc: devicepb.NewDevicePluginClient(p.proc.Conn()), done: p.proc.Done(), stop: make(chan struct{}),
		info: device.Info{Name: base.Name, Version: base.Version, ConfigSchema: base.Schema}}
	return nil
}

// Device is the plugin's other side. Its calls end with driver.ErrPluginGone when
// the process ends.
func (p *Plugin) Device() device.Plugin { return p.remote }

// PID is the process's.
func (p *Plugin) PID() int { return p.proc.Record().Pid }

// Done is closed when the process has ended.
func (p *Plugin) Done() <-chan struct{} { return p.proc.Done() }

// How says how it ended, for people.
func (p *Plugin) How() string { return p.proc.How() }

// Close ends the process in order, or with SIGKILL when it does not go in seconds,
// and blocks until it is gone; ctx shortens the patience. Closing again is no
// error.
func (p *Plugin) Close(ctx context.Context) error {
	err := p.proc.Close(ctx)
	p.once.Do(p.remote.close)
	return err
}
