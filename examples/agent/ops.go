// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/api"
)

var stopCommand = command{
	name: "stop", args: "ALLOC… | --all", short: "stops allocs and waits until nothing of them runs",
	long: "A stopped alloc stays stopped, also when the node starts again; applying its job starts a new one.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		all := fs.Bool("all", false, "every alloc of the node")
		now := fs.Bool("no-shutdown-delay", false, "skip the delay between leaving the registry and the signal")
		detach := fs.Bool("detach", false, "do not wait")
		timeout := fs.Duration("timeout", 0, "wait no longer than `D`, such as 30s; the stop goes on")
		return func(ctx context.Context, args []string) error {
			if *all == (len(args) > 0) {
				return usage("name the allocs to stop, or --all: see nodekeep stop --help")
			}
			return a.stopAllocs(ctx, args, *now, *detach, *timeout)
		}
	},
}

func (a *app) stopAllocs(ctx context.Context, refs []string, now, detach bool, timeout time.Duration) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	if refs == nil {
		list, err := c.Allocs(ctx)
		if err != nil {
			return err
		}
		for i := range list {
			if !list[i].Finished() {
				refs = append(refs, list[i].ID)
			}
		}
	}
	// All names are looked up before the first alloc is stopped.
	ids := []string{}
	for _, ref := range refs {
		in, err := c.Inspect(ctx, ref)
		if err != nil {
			return err
		}
		ids = append(ids, in.ID)
	}
	for _, id := range ids {
		if _, err := c.Stop(ctx, id, now); err != nil {
			return err
		}
	}
	if detach {
		return a.printIDs("stopping", ids)
	}
	finished := func(al *api.Alloc) (bool, error) { return al.Finished(), nil }
	if err := wait(ctx, c, ids, timeout, "the stop goes on; look with nodekeep ps", finished); err != nil {
		return err
	}
	return a.printIDs("stopped", ids)
}

// printIDs says what was done to which allocs.
func (a *app) printIDs(what string, ids []string) error {
	if a.json {
		return a.printJSON(ids)
	}
	if len(ids) == 0 {
		fmt.Fprintf(a.stdout, "nothing to do\n")
	}
	for _, id := range ids {
		fmt.Fprintf(a.stdout, "%s %s\n", what, id)
	}
	return nil
}

// lateError says that --timeout was over first.
type lateError struct {
	after time.Duration
	hint  string
}

func (e *lateError) Error() string { return fmt.Sprintf("not done after %s: %s", e.after, e.hint) }

// stuckAfter is how long a command waits for an alloc whose state cannot be
// written. Nothing of it moves meanwhile, but a disk may only be slow.
const stuckAfter = 2 * time.Second

// wait follows the allocs until each was seen to satisfy done, or one made it
// fail, or the time is over. With a hint, which says that what was asked for
// goes on without us, it also ends when a disk that fails holds it up.
func wait(ctx context.Context, c *api.Client, ids []string, timeout time.Duration, hint string, done func(*api.Alloc) (bool, error)) error {
	if len(ids) == 0 {
		return nil
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stuck := map[string]*time.Timer{}
	open := map[string]bool{}
	for _, id := range ids {
		open[id] = true
	}
	defer func() {
		for _, t := range stuck {
			t.Stop()
		}
	}()
	for al, err := range c.Watch(ctx, ids...) {
		if errors.Is(err, context.DeadlineExceeded) {
			return &lateError{timeout, hint}
		}
		if err != nil {
			return err
		}
		ok, err := done(&al)
		if err != nil {
			return err
		}
		if ok || al.Gone {
			delete(open, al.ID)
		}
		if t := stuck[al.ID]; t != nil && (ok || !al.Degraded) {
			t.Stop()
			delete(stuck, al.ID)
		} else if t == nil && !ok && al.Degraded && hint != "" {
			stuck[al.ID] = time.AfterFunc(stuckAfter, func() {
				giveUp(fmt.Errorf("alloc %s of job %s is held up: its state cannot be written: make room on the disk; %s", al.ID, al.Job, hint))
			})
		}
		if len(open) == 0 {
			return nil
		}
	}
	return errors.New("the agent stopped telling: look with nodekeep ps")
}

var restartCommand = command{
	name: "restart", args: "ALLOC [TASK]", short: "restarts the running tasks of an alloc, or one of them, and waits until they run again",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		all := fs.Bool("all", false, "tasks that have ended too, in the order of a start")
		detach := fs.Bool("detach", false, "do not wait")
		timeout := fs.Duration("timeout", 0, "wait no longer than `D`, such as 30s; the restart goes on")
		return func(ctx context.Context, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage("restart takes ALLOC and perhaps TASK: see nodekeep restart --help")
			}
			if *all && len(args) == 2 {
				return usage("--all restarts every task: leave out TASK or --all")
			}
			return a.restart(ctx, args, *all, *detach, *timeout)
		}
	},
}

func (a *app) restart(ctx context.Context, args []string, all, detach bool, timeout time.Duration) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	task := ""
	if len(args) == 2 {
		task = args[1]
	}
	before, err := c.Restart(ctx, args[0], task, all)
	if err != nil {
		return err
	}
	ids := []string{before.ID}
	if detach {
		return a.printIDs("restarting", ids)
	}
	if err := wait(ctx, c, ids, timeout, "the restart goes on; look with nodekeep ps", restarted(before, task, all)); err != nil {
		return err
	}
	return a.printIDs("restarted", ids)
}

// restarted tells when every task that was meant has a new attempt that runs or,
// where tasks end by themselves, has run.
func restarted(before api.Alloc, task string, all bool) func(*api.Alloc) (bool, error) {
	meant := map[string]int{}
	for _, t := range before.Tasks {
		if task == t.Name || task == "" && (all && t.StartedAt != nil || t.State == "running") {
			meant[t.Name] = t.Attempt
		}
	}
	return func(al *api.Alloc) (bool, error) {
		open := 0
		for _, t := range al.Tasks {
			attempt, ok := meant[t.Name]
			if !ok {
				continue
			}
			if t.State == "dead" && t.Failed {
				return false, fmt.Errorf("task %s did not come back: %s: see nodekeep inspect %s", t.Name, t.Reason, al.ID)
			}
			if t.Attempt > attempt+1 || t.Attempt > attempt && t.State != "pending" {
				continue
			}
			open++
		}
		if open > 0 && al.Finished() {
			return false, fmt.Errorf("alloc %s ended before its tasks ran again: %s: see nodekeep inspect %s", al.ID, al.Description, al.ID)
		}
		return open == 0, nil
	}
}

var gcCommand = command{
	name: "gc", short: "removes what is left of finished allocs now, their logs too",
	long: "Without it the last fifty are kept. A job of which nothing is left is forgotten: applied again, it runs again.",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usage("gc takes no arguments")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			ids, err := c.GC(ctx)
			if err != nil {
				return err
			}
			return a.printIDs("collected", ids)
		}
	},
}

var signalCommand = command{
	name: "signal", args: "-s SIG ALLOC [TASK]", short: "sends a signal to the main process of the running tasks, or of one of them",
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		sig := fs.String("s", "", "`SIG`, such as SIGHUP")
		return func(ctx context.Context, args []string) error {
			if *sig == "" {
				return usage("name the signal with -s, such as -s SIGHUP")
			}
			if len(args) < 1 || len(args) > 2 {
				return usage("signal takes ALLOC and perhaps TASK: see nodekeep signal --help")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			task := ""
			if len(args) == 2 {
				task = args[1]
			}
			al, err := c.Signal(ctx, args[0], task, *sig)
			if err != nil {
				return err
			}
			return a.printIDs("signalled", []string{al.ID})
		}
	},
}
