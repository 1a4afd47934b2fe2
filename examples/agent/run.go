// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/api"
)

var runCommand = command{
	name: "run", args: "FILE…", short: "runs jobs in the foreground: their events and output, each line with its task",
	long: `Each job runs on a node of its own, in DATA/run/NAMESPACE.JOB below the data
directory: jobs of "nodekeep serve" and of other runs do not see it. Look at it
with nodekeep ps --data DATA/run/NAMESPACE.JOB. When the job has ended that
directory is removed with the job's logs and files, unless --keep is given.

Ctrl-C stops the job in order, a second one kills it. When the terminal goes the
tasks stay: run the file again to attach to them. Exit code 0 if the job
completed, 1 if it failed, 130 after Ctrl-C. Drivers raw_exec and exec are on.`,
	bind: func(a *app, fs *flag.FlagSet) func(context.Context, []string) error {
		r := runConfig{}
		r.jobs.bind(fs)
		r.volumes = bindVolumes(fs)
		fs.BoolVar(&r.keep, "keep", false, "leave the job's directory with its logs and files when it has ended, and say where")
		fs.BoolVar(&r.detach, "detach", false, "leave once the tasks run; run the file again to attach to them")
		fs.Var(dirFlag{&r.runtimeDir}, "runtime-dir", "`DIR` for sockets and FIFOs, best on tmpfs; default below /run/nodekeep for root")
		return func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return usage("name a job file: nodekeep run FILE")
			}
			return a.runFiles(ctx, args, r)
		}
	},
}

// runConfig is what the flags of run say.
type runConfig struct {
	jobs       jobFlags
	detach     bool
	keep       bool
	runtimeDir string
	volumes    *volumeFlag
}

// runFiles runs each file's job under an agent of its own.
func (a *app) runFiles(ctx context.Context, files []string, cfg runConfig) error {
	data, err := a.dataDir()
	if err != nil {
		return err
	}
	parsed, err := a.parseJobs(files, cfg.jobs)
	if err == nil {
		err = checkDrivers(parsed, ownDrivers())
	}
	if err != nil {
		return err
	}
	jobs := jobsOf(parsed)
	if _, err := os.Stat(data); errors.Is(err, fs.ErrNotExist) {
		defer os.Remove(data) // if it is empty again
	}
	ctx, done := a.leaveWithAudience(ctx)
	defer done()
	log, err := a.logger(hclog.Warn)
	if err != nil {
		return err
	}
	ctx, ask, stop := askToEnd(ctx)
	defer stop()
	out := newPrinter(a, jobs)
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		r := &jobRun{
			job: job, out: out, ask: ask, detach: cfg.detach, keep: cfg.keep,
			node: nodeConfig{
				dir:     filepath.Join(data, "run", escape(job.Namespace)+"."+escape(job.ID)),
				rawExec: true, isolated: true, log: log, volumes: cfg.volumes.volumes,
			},
		}
		if cfg.runtimeDir != "" {
			r.node.runtimeDir = filepath.Join(cfg.runtimeDir, escape(job.Namespace)+"."+escape(job.ID))
		}
		wg.Go(func() { errs[i] = r.run(ctx) })
	}
	wg.Wait()
	err = runResult(ctx, ask, errs)
	a.afterRun(cfg, files, err)
	return err
}

// afterRun tells what to try next.
func (a *app) afterRun(cfg runConfig, files []string, err error) {
	names := strings.Join(files, " ")
	switch code := exitCode(0); {
	case cfg.detach && err == nil:
		a.next("nodekeep run%s %s follows it, Ctrl-C there stops it", a.dataFlag(), names)
	case err == nil:
		a.next("nodekeep serve%s --enable-raw-exec is a node that stays; with it: nodekeep apply%s %s", a.dataFlag(), a.dataFlag(), names)
	case errors.As(err, &code) && code == 1 && !cfg.keep:
		a.next("nodekeep run%s --keep %s leaves its logs and files to look at", a.dataFlag(), names)
	}
}

// errFailed says that a job ended and had failed; it was told already.
var errFailed = errors.New("the job failed")

// runResult makes one exit code of how the jobs ended.
func runResult(ctx context.Context, ask *wishes, errs []error) error {
	var l *leave
	if errors.As(context.Cause(ctx), &l) {
		return l.code()
	}
	failed := false
	var real []error
	for _, err := range errs {
		if errors.Is(err, errFailed) {
			failed = true
		} else if err != nil {
			real = append(real, err)
		}
	}
	switch sig := ask.signal(); {
	case len(real) > 0:
		return errors.Join(real...)
	case sig != nil:
		return (&leave{sig}).code()
	case failed:
		return exitCode(1)
	}
	return nil
}

// wishes are what the user asked for with Ctrl-C (or SIGTERM).
type wishes struct {
	stop, kill chan struct{} // closed by the first and the second

	mu    sync.Mutex
	first os.Signal
}

func (w *wishes) signal() os.Signal {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// askToEnd turns the first signal into a wish to stop, the second into one to
// kill; the third ends the context, whatever is left.
func askToEnd(ctx context.Context) (context.Context, *wishes, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &wishes{stop: make(chan struct{}), kill: make(chan struct{})}
	sigs := make(chan os.Signal, 3)
	signal.Notify(sigs, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; n < 3; n++ {
			select {
			case sig := <-sigs:
				switch n {
				case 0:
					w.mu.Lock()
					w.first = sig
					w.mu.Unlock()
					close(w.stop)
				case 1:
					close(w.kill)
				case 2:
					cancel(&leave{sig})
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, w, func() {
		cancel(nil)
		<-done
		signal.Stop(sigs)
	}
}

// jobRun is one job in the foreground.
type jobRun struct {
	job    api.Job
	node   nodeConfig
	out    *printer
	ask    *wishes
	detach bool
	keep   bool
}

// run runs the job to its end or until ctx ends, and removes the data directory
// of a job that has ended.
func (r *jobRun) run(ctx context.Context) error {
	_, err := os.Stat(r.node.dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	n, err := openNode(ctx, r.node)
	if errors.Is(err, errBusy) {
		return fmt.Errorf("job %s is being run by another process: look with nodekeep ps --data %s, or stop that one first", r.job.ID, r.node.dir)
	}
	if err != nil {
		return r.cleanup(fresh, err)
	}
	keep := true
	err = n.run(ctx, func(ctx context.Context) (err error) {
		keep, err = r.body(ctx, n)
		return err
	})
	return r.cleanup(!keep || fresh && errors.Is(err, api.ErrInvalid), err)
}

// cleanup removes the data directory where nothing of the job is left.
func (r *jobRun) cleanup(remove bool, err error) error {
	if !remove {
		return err
	}
	rerr := os.RemoveAll(r.node.dir)
	_ = os.Remove(filepath.Dir(r.node.dir)) // if it was the last
	return errors.Join(err, rerr)
}

// body runs the job on the node; keep says that something of it is left there.
func (r *jobRun) body(ctx context.Context, n *node) (keep bool, err error) {
	c := api.Dial(socketPath(n.dir))
	defer c.Close()
	if allFinished(n.agent.Allocs()) { // of an earlier run that could not clean up
		if err := r.forget(ctx, n); err != nil {
			return true, err
		}
	}
	_, after, err := n.agent.EventBounds()
	if err != nil {
		return true, err
	}
	list, err := c.Apply(ctx, []api.Job{r.job})
	if err != nil {
		return true, err
	}
	ids := make([]string, 0, len(r.job.Allocs))
	for _, al := range list {
		if al.Change != api.ChangeStopped {
			ids = append(ids, al.ID)
		}
	}
	if r.detach {
		return true, r.leave(ctx, c, ids)
	}
	followCtx, stopFollowing := context.WithCancel(ctx)
	defer stopFollowing()
	f := newFollower(r.out, c, r.job, ids)
	f.start(followCtx, after)
	failed, err := r.end(ctx, c, ids)
	if err != nil {
		stopFollowing()
		f.wait()
		return true, err
	}
	f.finish(ctx)
	if r.keep {
		r.tellKept()
	} else if err := r.forget(ctx, n); err != nil {
		return true, err
	}
	if failed {
		return r.keep, errFailed
	}
	return r.keep, nil
}

// tellKept says where the job's directory is.
func (r *jobRun) tellKept() {
	if r.out.json {
		r.out.printJSON(map[string]string{"job": r.job.ID, "kept": r.node.dir})
	}
	r.out.say("job %s is kept in %s: logs in alloc/*/alloc/logs; running its file again begins anew and removes it", r.job.ID, r.node.dir)
}

// leave waits until the tasks run and says how to come back.
func (r *jobRun) leave(ctx context.Context, c *api.Client, ids []string) error {
	if err := wait(ctx, c, ids, 0, "", reached("running")); err != nil {
		return withReason(ctx, c, err)
	}
	r.out.say("job %s runs; run its file again to attach to it", r.job.ID)
	return nil
}

// end waits until the allocs have finished, carrying out what the user asks for
// meanwhile, and tells how the job ended.
func (r *jobRun) end(ctx context.Context, c *api.Client, ids []string) (failed bool, err error) {
	last := map[string]api.Alloc{}
	over := make(chan error, 1)
	go func() {
		over <- wait(ctx, c, ids, 0, "", func(al *api.Alloc) (bool, error) {
			last[al.ID] = *al
			return al.Finished(), nil
		})
	}()
	stop, kill := r.ask.stop, r.ask.kill
	for {
		select {
		case err := <-over:
			if err != nil {
				return false, err
			}
			return r.tell(ids, last), nil
		case <-stop:
			stop = nil
			r.out.say("stopping job %s; Ctrl-C again kills it", r.job.ID)
			err = each(ids, func(id string) error { _, err := c.Stop(ctx, id, false); return err })
		case <-kill:
			kill = nil
			r.out.say("killing job %s", r.job.ID)
			err = each(ids, func(id string) error { _, err := c.Kill(ctx, id); return err })
		}
		if err != nil {
			r.out.say("job %s: %s", r.job.ID, api.Plain(err))
		}
	}
}

// each calls f with every id. An alloc that is gone needs nothing any more.
func each(ids []string, f func(id string) error) error {
	var errs []error
	for _, id := range ids {
		if err := f(id); err != nil && !errors.Is(err, nodekeep.ErrNoAlloc) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// jobResult is how --json tells the end of a job.
type jobResult struct {
	Job    string `json:"job"`
	Result string `json:"result"` // completed, failed or stopped
	Reason string `json:"reason,omitempty"`
}

// tell prints how the job ended and returns whether it failed.
func (r *jobRun) tell(ids []string, last map[string]api.Alloc) (failed bool) {
	why := ""
	for _, id := range ids {
		if al := last[id]; al.Status != "complete" {
			failed = true
			why = fmt.Sprintf(": %s: %s", al.Name, al.Description)
		}
	}
	result := "completed"
	switch {
	case failed:
		result = "failed"
		r.out.verdict(false, "job %s failed%s", r.job.ID, why)
	case r.ask.signal() != nil:
		result = "stopped"
		r.out.verdict(true, "job %s stopped", r.job.ID)
	default:
		r.out.verdict(true, "job %s completed", r.job.ID)
	}
	if r.out.json {
		r.out.printJSON(jobResult{r.job.ID, result, strings.TrimPrefix(why, ": ")})
	}
	return failed
}

// forget takes the job's allocs off the node and waits until nothing is left.
func (r *jobRun) forget(ctx context.Context, n *node) error {
	if err := n.store.Clear(ctx); err != nil {
		return err
	}
	for {
		changed := n.agent.Changed()
		left := 0
		for _, st := range n.agent.Allocs() {
			if !st.Gone {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func allFinished(list []nodekeep.AllocStatus) bool {
	for _, st := range list {
		if !st.Done && !st.Gone {
			return false
		}
	}
	return len(list) > 0
}
