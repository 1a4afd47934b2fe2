// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

var applyCommand = command{
	name: "apply", args: "FILE…", short: "makes jobs the desired state of the node that serves",
	long: `Says of each alloc what becomes of it: new, unchanged, updated (in place, what runs
goes on), replaced (another alloc took its place, for it changed in what cannot be
changed while it runs, has failed or is over) or stopped. All files are read and
checked before the first counts.`,
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
	list, err := c.Apply(ctx, jobsOf(jobs))
	if err != nil {
		return err
	}
	rows := make([]appliedRow, len(list))
	var ids []string
	for i, al := range list {
		if rows[i] = (appliedRow{Applied: al}); al.Change != api.ChangeStopped {
			ids = append(ids, al.ID)
		}
	}
	if until == "" {
		return a.printApplied(rows)
	}
	last := map[string]api.Alloc{}
	done := reached(until)
	err = wait(ctx, c, ids, timeout, "the jobs go on; look with nodekeep ps", func(al *api.Alloc) (bool, error) {
		last[al.ID] = *al
		return done(al)
	})
	err = withReason(ctx, c, err)
	for i := range rows {
		rows[i].become(until, last)
	}
	if err != nil && a.json { // what was applied stands all the same
		return errors.Join(a.printJSON(rows), err)
	}
	if err != nil {
		return err
	}
	return a.printApplied(rows)
}

// appliedRow is what "apply --json" prints of an alloc; with --wait also where that
// did not get what it waited for.
type appliedRow struct {
	api.Applied
	// With --wait. Reached is empty where the state was not reached; Status is what
	// the alloc was when the wait ended, and Error why it will not get there.
	Reached string `json:"reached,omitempty"`
	Status  string `json:"status,omitempty"`
	Error   string `json:"error,omitempty"`
}

// become fills in what the wait for a state saw last of the alloc.
func (r *appliedRow) become(until string, last map[string]api.Alloc) {
	al, ok := last[r.ID]
	if !ok || r.Change == api.ChangeStopped {
		return
	}
	r.Status = string(al.Status)
	switch ok, err := reached(until)(&al); {
	case err != nil:
		r.Error = al.Description
	case ok && until == "running" && al.Finished():
		r.Reached = "complete" // it has run, and runs once
	case ok:
		r.Reached = until
	}
}

// printApplied says what became of which alloc.
func (a *app) printApplied(rows []appliedRow) error {
	if a.json {
		return a.printJSON(rows)
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.stdout, "nothing to do")
	}
	tw := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		line := []string{string(r.Change), clean(fmt.Sprintf("%s.%s[%d]", r.Job, r.Group, r.Index)), clean(r.ID)}
		if r.Reached != "" {
			line = append(line, r.Reached)
		}
		fmt.Fprintln(tw, strings.Join(line, "\t"))
	}
	err := tw.Flush()
	if len(rows) > 0 {
		a.next("nodekeep ps%s; nodekeep logs%s -f %s", a.dataFlag(), a.dataFlag(), rows[0].Job)
	}
	return err
}

// failedAlloc is an alloc that will not be as it was wanted.
type failedAlloc struct {
	id   string
	text string // what it is
	why  string
	next string // what to do
}

func (e *failedAlloc) Error() string { return e.text + ": " + e.why + ": " + e.next }

// withReason adds to the error of an alloc that failed what its tasks failed of.
func withReason(ctx context.Context, c *api.Client, err error) error {
	var f *failedAlloc
	if !errors.As(err, &f) {
		return err
	}
	in, ierr := c.Inspect(ctx, f.id)
	if ierr != nil {
		return err // the first one is the one to know
	}
	if why := lastFailure(in); why != "" {
		f.why += ": " + why
	}
	return err
}

// lastFailure is the latest event that tells what went wrong with a task that has
// failed; empty if none is known.
func lastFailure(in api.Inspection) string {
	for _, t := range in.Tasks {
		if !t.Failed {
			continue
		}
		events := in.Events[t.Name]
		for i := len(events) - 1; i >= 0; i-- {
			switch e := events[i]; taskrunner.Kind(e.Kind) {
			case taskrunner.Terminated, taskrunner.DriverFailure, taskrunner.SetupFailure, taskrunner.FailedValidation,
				taskrunner.FailedArtifact, taskrunner.FailedRestoring, taskrunner.HookFailed, taskrunner.AllocUnhealthy, taskrunner.Leaked:
				return e.Kind + ": " + e.Message
			}
		}
	}
	return ""
}

// reached tells when an alloc is running (all of its tasks have been started,
// but those that come after the others) or complete. One that failed never is. A
// batch that is complete has been running; anything else that is over is not.
func reached(until string) func(*api.Alloc) (bool, error) {
	return func(al *api.Alloc) (bool, error) {
		if al.Status == "failed" {
			return false, &failedAlloc{al.ID, fmt.Sprintf("alloc %s of job %s failed", al.ID, al.Job), al.Description, "see nodekeep inspect " + al.ID}
		}
		if until == "running" && al.Finished() && !spec.JobType(al.Type).Batch() && !al.Gone {
			return false, &failedAlloc{al.ID, fmt.Sprintf("alloc %s of job %s is over and does not run", al.ID, al.Job), al.Description, "apply it again to start a new one"}
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
