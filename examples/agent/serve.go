// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
)

var serveCommand = command{
	name: "serve", short: "runs a node: its jobs come by apply, its API is on a unix socket",
	long: `Prints "ready" on stdout once it serves and has found its tasks again. It ends
with Ctrl-C or SIGTERM, or when its terminal or the reader of its output goes,
and leaves the tasks running: the next serve takes them over. Stop tasks with
"nodekeep stop". Under systemd use KillMode=process.`,
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		raw := fs.Bool("enable-raw-exec", false, "run plain processes without isolation (driver raw_exec)")
		isolated := fs.Bool("enable-exec", true, "run isolated processes (driver exec), where this machine can")
		noExec := fs.Bool("disable-exec", false, "refuse nodekeep exec on this node")
		runtimeDir := ""
		fs.Var(dirFlag{&runtimeDir}, "runtime-dir", "`DIR` for sockets and FIFOs, best on tmpfs; default below /run/nodekeep for root")
		plugins, devices, volumes := bindPlugins(fs), bindDevices(fs), bindVolumes(fs)
		return func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usage("serve takes no arguments: apply jobs to it with nodekeep apply FILE")
			}
			dir, err := a.dataDir()
			if err != nil {
				return err
			}
			cfg, err := plugins()
			if err != nil {
				return err
			}
			found, err := devices(cfg)
			if err != nil {
				return err
			}
			return a.serve(ctx, nodeConfig{dir: dir, runtimeDir: runtimeDir, rawExec: *raw, isolated: *isolated, keepBin: *isolated, noExec: *noExec, plugins: cfg, devices: found, volumes: volumes.volumes})
		}
	},
}

// serve runs the node until somebody asks it to leave.
func (a *app) serve(ctx context.Context, cfg nodeConfig) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, done := a.leaveWithAudience(ctx)
	defer done()
	if cfg.log, err = a.logger(hclog.Info); err != nil {
		return err
	}
	n, err := openNode(ctx, cfg)
	if err != nil {
		return err
	}
	err = n.run(ctx, func(ctx context.Context) error {
		fmt.Fprintln(a.stdout, "ready")
		a.next("in another terminal: nodekeep apply%s FILE, then nodekeep ps%s", a.dataFlag(), a.dataFlag())
		<-ctx.Done()
		return nil
	})
	if err == nil {
		cfg.log.Info("detached: the tasks go on, and the next serve takes them over")
	}
	return err
}
