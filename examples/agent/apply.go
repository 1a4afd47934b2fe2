// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

var applyCommand = command{
	name: "apply", args: "FILE…", short: "makes jobs the desired state of the node that serves",
	long: `An alloc that is as before is left alone; one that changed, was stopped or has
failed is replaced. All files are read and checked before the first counts.`,
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		var flags jobFlags
		flags.bind(fs)
		until := fs.String("wait", "", "wait until the allocs are `STATE`: running or complete")
		timeout := fs.Duration("timeout", 0, "wait no longer than `D`, such as 30s; the jobs go on")
		return func(ctx context.Context, args []string) error {
			switch {
			case len(args) == 0:
				return usage("name a job file: nodekeep apply FILE")
			case *until != "" && *until != "running" && *until != "complete":
				return usage("--wait %q: use running or complete", *until)
			case *timeout != 0 && *until == "":
				return usage("--timeout bounds --wait: add --wait running or --wait complete")
			}
			return a.apply(ctx, args, flags, *until, *timeout)
		}
	},
}

func (a *app) apply(ctx context.Context, files []string, flags jobFlags, until string, timeout time.Duration) error {
	jobs, err := a.parseJobs(files, flags)
	if err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	drivers, err := c.Drivers(ctx)
	if err == nil {
		err = checkDrivers(jobs, drivers)
	}
	if err != nil {
		return err
	}
	ids, err := c.Apply(ctx, jobsOf(jobs))
	if err != nil {
		return err
	}
	if until == "" {
		return a.printIDs("applied", ids)
	}
	over := map[string]bool{}
	done := reached(until)
	err = wait(ctx, c, ids, timeout, "the jobs go on; look with nodekeep ps", func(al *api.Alloc) (bool, error) {
		ok, err := done(al)
		over[al.ID] = al.Finished()
		return ok, err
	})
	switch {
	case err != nil:
		return err
	case a.json || until == "complete":
		return a.printIDs(until, ids)
	}
	for _, id := range ids {
		what := "running"
		if over[id] {
			what = "complete (has run, and runs once)"
		}
		fmt.Fprintf(a.stdout, "%s %s\n", what, id)
	}
	return nil
}

// reached tells when an alloc is running (all of its tasks have been started,
// but those that come after the others) or complete. One that failed never is. A
// batch that is complete has been running; anything else that is over is not.
func reached(until string) func(*api.Alloc) (bool, error) {
	return func(al *api.Alloc) (bool, error) {
		if al.Status == "failed" {
			return false, fmt.Errorf("alloc %s of job %s failed: %s: see nodekeep inspect %s", al.ID, al.Job, al.Description, al.ID)
		}
		if until == "running" && al.Finished() && !spec.JobType(al.Type).Batch() && !al.Gone {
			return false, fmt.Errorf("alloc %s of job %s is over and does not run: %s: apply it again to start a new one", al.ID, al.Job, al.Description)
		}
		if until == "complete" || al.Status != "running" {
			return al.Status == "complete" && al.Finished(), nil
		}
		for _, t := range al.Tasks {
			if t.State == "pending" && t.Lifecycle != spec.LifecyclePoststop {
				return false, nil
			}
		}
		return true, nil
	}
}
