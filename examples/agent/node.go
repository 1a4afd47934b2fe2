// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver/exec"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/internal/datadir"
	"github.com/nodekeep/nodekeep/state"
)

// node is an agent with its job store and its API: what serve is, and what run
// makes for one job.
type node struct {
	agent *nodekeep.Agent
	store *jobStore // from the moment of being ready on
	ln    net.Listener
	dir   string
	log   hclog.Logger
}

// nodeConfig is what the flags say of a node.
type nodeConfig struct {
	dir        string
	runtimeDir string // "" is the agent's default
	rawExec    bool
	isolated   bool // driver exec is on; where a machine has no containers it says so
	keepBin    bool // a copy of this program, which upgrades leave alone
	noExec     bool // no commands beside tasks
	plugins    drivermanager.Config
	devices    devicemanager.Config
	volumes    core.HostVolumes
	log        hclog.Logger
}

// openNode takes the data directory. Nothing runs yet; run must be called. An
// error leaves nothing open, and of a first start nothing in the directory.
func openNode(ctx context.Context, cfg nodeConfig) (_ *node, err error) {
	undo, err := datadir.Make(cfg.dir)
	defer func() {
		if err != nil {
			undo()
			err = cannotStart(cfg.dir, err)
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("the data directory cannot be made: %w: name another one with --data", err)
	}
	ln, err := api.Listen(ctx, socketPath(cfg.dir))
	if errors.Is(err, api.ErrInUse) {
		return nil, fmt.Errorf("%w: %s: use that one (nodekeep ps), stop it, or name another directory with --data", errBusy, cfg.dir)
	}
	if err != nil {
		return nil, err
	}
	agent, err := nodekeep.New(nodekeep.Config{
		DataDir:    cfg.dir,
		RuntimeDir: cfg.runtimeDir,
		Drivers:    cfg.drivers(),
		Plugins:    cfg.plugins,
		Devices:    cfg.devices,
		Storage:    nodekeep.Storage{HostVolumes: cfg.volumes},
		Exec:       nodekeep.ExecPolicy{Disabled: cfg.noExec},
		Log:        cfg.log,
	})
	if errors.Is(err, state.ErrLocked) {
		err = fmt.Errorf("%w (%w)", errBusy, err)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return &node{agent: agent, ln: ln, dir: cfg.dir, log: cfg.log}, nil
}

// drivers are those of this program. What exec tasks may do is the strictest: not
// root, no namespace of the host's, the default capabilities.
func (cfg nodeConfig) drivers() []nodekeep.DriverFunc {
	isolated := exec.Config{Disabled: !cfg.isolated}
	if cfg.keepBin {
		isolated.BinDir = filepath.Join(cfg.dir, "bin")
	}
	return []nodekeep.DriverFunc{
		rawexec.New(rawexec.Config{Enabled: cfg.rawExec, HowToEnable: "start it with nodekeep serve --enable-raw-exec"}),
		exec.New(isolated),
	}
}

// cannotStart says what helps where the data directory does not take what a node
// has to write.
func cannotStart(dir string, err error) error {
	switch {
	case errors.Is(err, errBusy):
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no permission to write to the data directory %s: name another one with --data", dir)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("the data directory %s is on a read-only file system: make it writable, or name another one with --data", dir)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of the data directory %s is full: make room on it, or name another directory with --data", dir)
	}
	return err
}

// run runs the node for as long as body runs, which is called once the node
// serves, has tried to find its tasks again and knows its jobs. Then the API
// ends, then the agent detaches: tasks live on. If the agent or the API ends
// first, body's context does, with the reason as its cause.
func (n *node) run(ctx context.Context, body func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	agentCtx, detach := context.WithCancel(context.WithoutCancel(ctx))
	defer detach()

	var agent, server sync.WaitGroup
	var agentErr, serverErr error
	agent.Go(func() {
		if agentErr = n.agent.Run(agentCtx); agentCtx.Err() != nil {
			agentErr = nil // detached
		}
		cancel(errAgentEnded)
	})
	err := n.restore(ctx)
	if err == nil {
		handler := api.Handler(api.Config{Agent: n.agent, Jobs: n.store, Version: thisVersion().Version, Log: n.log.Named("api")})
		server.Go(func() {
			if serverErr = api.Serve(ctx, n.ln, handler, n.log.Named("api")); serverErr != nil {
				cancel(serverErr)
			}
		})
		server.Go(func() { n.store.Retry(ctx) })
		err = body(ctx)
	} else {
		_ = n.ln.Close()
	}
	cancel(nil)
	server.Wait()
	detach()
	agent.Wait()
	return errors.Join(agentErr, serverErr, err)
}

// errBusy says that the data directory is another agent's.
var errBusy = errors.New("another agent uses this data directory")

var errAgentEnded = errors.New("the agent ended")

// restore waits until the agent has tried to find its allocs again, and tells it
// what is wanted.
func (n *node) restore(ctx context.Context) error {
	select {
	case <-n.agent.Ready():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var err error
	if n.store, err = openStore(filepath.Join(n.dir, "jobs"), n.agent, n.log.Named("jobs")); err != nil {
		return err
	}
	return n.store.Feed(ctx)
}
