// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/driver"
)

var execCommand = command{
	name: "exec", args: "ALLOC TASK -- COMMAND…", short: "runs a command beside a task: as its user, in its directory, with its environment",
	long: `The exit code is the command's, 127 if it cannot be run. The command ends with
this one: it gets SIGHUP and five seconds later SIGKILL. For a shell:
  nodekeep exec -it web server -- /bin/sh`,
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		tty := fs.Bool("t", false, "give the command a terminal")
		input := fs.Bool("i", false, "pass on what comes on stdin")
		both := fs.Bool("it", false, "both")
		fs.BoolVar(both, "ti", false, "both")
		return func(ctx context.Context, args []string) error {
			if len(args) < 3 {
				return usage("exec takes ALLOC, TASK and, after --, a command: see nodekeep exec --help")
			}
			return a.exec(ctx, args[0], args[1], args[2:], *tty || *both, *input || *both)
		}
	},
}

func (a *app) exec(ctx context.Context, alloc, task string, cmd []string, tty, input bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	req := driver.ExecRequest{Command: cmd, TTY: tty, Stdout: a.stdout, Stderr: a.stderr}
	if input {
		if req.Stdin, err = openInput(os.Stdin); err != nil {
			return err
		}
	}
	ctx, done := leaveOnSignal(ctx)
	defer done()
	restore := func() {}
	if tty {
		if t := a.env("TERM"); t != "" {
			req.Env = []string{"TERM=" + t}
		}
		var end func()
		if req.Size, req.Resize, end, err = followSize(ctx, os.Stdin); err != nil {
			return err
		}
		defer end()
		if input {
			if restore, err = makeRaw(os.Stdin); err != nil {
				return err
			}
		}
	}
	res, err := c.Exec(ctx, alloc, task, req)
	restore()
	var l *leave
	var e *api.Error
	switch {
	case errors.As(err, &l):
		return l.code()
	case errors.As(err, &e) && e.Code == api.CodeNoCommand:
		return &exitWith{127, err}
	case err != nil:
		return err
	case res.Err != "":
		return fmt.Errorf("nobody knows how the command ended: %s", res.Err)
	case res.Code != 0:
		return exitCode(res.Code)
	}
	return nil
}

// leaveOnSignal ends the context with the signal that asks this process to end.
func leaveOnSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-ch:
			cancel(&leave{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
		signal.Stop(ch)
	}
}
