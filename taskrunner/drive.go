// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/guard"
)

const (
	// maxTries is how often a stop or a destroy is tried before what it was to end
	// is reported as leaked.
	maxTries = 5
	// startLateness is how long a start that was cancelled is waited for: what it
	// starts after that is destroyed when it comes back.
	startLateness = 10 * time.Second
	// destroyLimit bounds one try; drivers wait for busy cgroups themselves.
	destroyLimit = 2 * time.Minute
	// stopSlack is what Stop, and the exit after it, may take beyond the grace.
	stopSlack = 10 * time.Second
	// orphanGrace is what is left of a kill timeout when agent and supervisor both
	// died while it ran: the task has had its signal, and nobody kept its time.
	orphanGrace = 3 * time.Second
	// settle is how long a recovered task is given to report an exit of before.
	settle = 100 * time.Millisecond
)

// again is the pause after the n-th failed stop or destroy.
func again(try int) time.Duration { return backoff(try, 5*time.Second, 4, 2*time.Minute) }

func (o *operation) driver(ctx context.Context) (driver.Driver, error) {
	drv, err := o.cfg.Drivers.Driver(ctx, o.task.Driver)
	if err == nil && drv == nil {
		err = fmt.Errorf("taskrunner: no driver %q", o.task.Driver)
	}
	if err != nil {
		return nil, fmt.Errorf("driver %q: %w", o.task.Driver, err)
	}
	return drv, nil
}

// prepare makes the driver's configuration and lets the driver get ready.
func (o *operation) prepare(ctx context.Context) result {
	drv, err := o.driver(ctx)
	if err != nil {
		return o.failed(ctx, DriverFailure, nil, err)
	}
	cfg, missing, err := o.taskConfig(drv)
	if err != nil {
		return o.failed(ctx, FailedValidation, nil, err)
	}
	if len(missing) > 0 {
		o.log.Warn("the task's texts use names that nobody knows; they stay as written", "names", missing)
	}
	o.out.cfg, o.out.unknown = cfg, strings.Join(missing, ", ")
	if p, ok := drv.(driver.Preparer); ok {
		ctl := &control{r: o.TaskRunner, log: o.log}
		emit := func(e driver.Event) {
			m := attrs(e.Attrs, "message", e.Message)
			if e.Err != nil {
				m = attrs(m, "error", e.Err.Error())
			}
			ctl.emit(Driver, m)
		}
		_, err := guard.Run(ctx, guard.Late, func(ctx context.Context) error { return p.Prepare(ctx, cfg, emit) })
		if err != nil {
			return o.failed(ctx, DriverFailure, nil, err)
		}
	}
	return result{}
}

// start makes the cgroup and starts the task. A start that failed leaves nothing;
// one that a kill interrupted is left to opAbort.
func (o *operation) start(ctx context.Context) result {
	drv, err := o.driver(ctx)
	if err != nil {
		return o.failedStart(ctx, err)
	}
	cfg := o.out.cfg
	if err := o.makeCgroup(drv, cfg.Cgroup); err != nil {
		return o.failedStart(ctx, driver.Recoverable(fmt.Errorf("cgroup: %w", err)))
	}
	var h *driver.Handle
	late, err := guard.Run(ctx, startLateness, func(ctx context.Context) (err error) {
		h, err = drv.Start(ctx, cfg)
		return err
	})
	switch {
	case late != nil:
		o.log.Error("driver does not return from Start and is abandoned", "stack", late.Stack())
		o.reap(ctx, drv, late)
		return result{canceled: true}
	case err == nil && h == nil:
		err = errors.New("the driver started the task but gave no handle")
	case err == nil:
		return result{handle: h, note: attrs(nil, "unknown_names", o.out.unknown)}
	case errors.Is(err, driver.ErrTaskExists) && !o.snap.Resume.Replaced:
		if leaked := o.destroy(ctx); leaked != nil || ctx.Err() != nil {
			return result{err: err, kind: DriverFailure, leaked: leaked, canceled: leaked == nil}
		}
		return result{again: true}
	}
	return o.failedStart(ctx, err)
}

func (o *operation) failedStart(ctx context.Context, err error) result {
	if ctx.Err() != nil {
		return result{canceled: true}
	}
	o.endBackground()
	// The driver promises to leave nothing; the cgroup is ours in any case.
	if leaked := o.destroy(ctx); leaked != nil || ctx.Err() != nil {
		return result{err: err, kind: DriverFailure, leaked: leaked, canceled: leaked == nil}
	}
	return result{err: err, kind: DriverFailure}
}

// makeCgroup makes a fresh cgroup. That of a start intent of an earlier agent may
// already hold the task. So may one in which something runs although nobody here
// has begun this attempt, if the state is older than what runs: a driver whose
// starts can be repeated finds it.
func (o *operation) makeCgroup(drv driver.Driver, path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err == nil {
		if o.leftover || drv.Info().Capabilities.IdempotentStart && len(cgroup.Procs(path)) > 0 {
			return nil
		}
	}
	return o.cfg.Cgroups.Make(path)
}

// reap destroys what an abandoned start brings to life after all, unless an agent
// that comes later has it by now.
func (o *operation) reap(ctx context.Context, drv driver.Driver, late *guard.Call) {
	ref := o.ref()
	ctx = context.WithoutCancel(ctx)
	guard.Spawn(func() error {
		if <-late.Done(); late.Err() != nil || o.detached.Load() {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, destroyLimit)
		defer cancel()
		return drv.Destroy(ctx, ref, true)
	})
}

func (o *operation) ref() driver.TaskRef {
	return driver.TaskRef{ID: o.taskID(), Handle: o.snap.Handle, Scope: o.cfg.Scope, Cgroup: o.cgroup()}
}

// destroy ends all that is left of the attempt and removes its cgroup. It tries
// again for minutes; the error says that something is still there.
func (o *operation) destroy(ctx context.Context) error {
	for try := 1; ; try++ {
		err := o.destroyOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return nil // interrupted: whoever interrupted has it done again
		}
		o.log.Warn("task cannot be destroyed", "try", try, "error", err)
		if try == maxTries {
			return err
		}
		if sleep(ctx, again(try)) != nil {
			return nil
		}
	}
}

func (o *operation) destroyOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, destroyLimit)
	defer cancel()
	late, err := guard.Run(ctx, guard.Late, func(ctx context.Context) error {
		drv, err := o.driver(ctx)
		if err != nil {
			return err
		}
		return drv.Destroy(ctx, o.ref(), true)
	})
	if late != nil {
		o.log.Error("driver does not return from Destroy and is abandoned", "stack", late.Stack())
	}
	if errors.Is(err, driver.ErrTaskNotFound) {
		err = nil
	}
	if path := o.cgroup(); err == nil && path != "" {
		err = o.cfg.Cgroups.Remove(path)
	}
	return err
}

// wait waits for the exit; that is where most tasks spend their life, so nothing
// stands between the operation's goroutine and the driver.
func (o *operation) wait(ctx context.Context) result {
	if o.snap.Phase == Stopping {
		return o.waitStopped(ctx)
	}
	drv, err := o.driver(ctx)
	if err != nil {
		return result{err: err, canceled: ctx.Err() != nil}
	}
	exit, err := drv.Wait(ctx, o.snap.Handle.TaskID)
	return waited(ctx, exit, err)
}

// waitStopped does not wait for ever: an exit record that nobody will write is
// not needed to end the task.
func (o *operation) waitStopped(ctx context.Context) result {
	wctx, cancel := context.WithTimeout(ctx, o.snap.Resume.Grace.Left(o.cfg.Clock.Now())+stopSlack)
	defer cancel()
	var exit driver.ExitResult
	late, err := guard.Run(wctx, guard.Late, func(ctx context.Context) error {
		drv, err := o.driver(ctx)
		if err == nil {
			exit, err = drv.Wait(ctx, o.snap.Handle.TaskID)
		}
		return err
	})
	if ctx.Err() == nil && (late != nil || err != nil && wctx.Err() != nil) {
		return unseen(errors.New("the task was stopped and nobody reports how it ended"))
	}
	return waited(ctx, exit, err)
}

func waited(ctx context.Context, exit driver.ExitResult, err error) result {
	switch {
	case err == nil:
		return result{exit: &exit}
	case ctx.Err() != nil:
		return result{canceled: true}
	case errors.Is(err, driver.ErrTaskNotFound):
		return unseen(err)
	}
	return result{err: err}
}

func unseen(err error) result {
	return result{exit: &driver.ExitResult{Code: -1, Err: "exit not seen: " + err.Error()}}
}

// delay is the shutdown delay, or less if the task exits.
func (o *operation) delay(ctx context.Context) result {
	left := o.snap.Resume.Delay.Left(o.cfg.Clock.Now())
	dctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if drv, err := o.driver(dctx); err == nil {
		exit, err := drv.Wait(dctx, o.snap.Handle.TaskID)
		if err == nil {
			return result{exit: &exit}
		}
	}
	<-dctx.Done() // an error of Wait does not end the delay
	return result{canceled: ctx.Err() != nil}
}

// stop sends the stop signal and waits for the end that the driver brings about. A
// signal that the driver does not know, or that it keeps failing with, is replaced
// by the driver's own: a task can always be ended.
func (o *operation) stop(ctx context.Context) result {
	id, signal := o.snap.Handle.TaskID, o.task.KillSignal
	for try := 1; ; try++ {
		grace := o.snap.Resume.Grace.Left(o.cfg.Clock.Now())
		if o.orphan {
			grace = min(grace, orphanGrace)
		}
		err := o.stopOnce(ctx, id, signal, grace)
		switch {
		case err == nil || errors.Is(err, driver.ErrTaskNotFound):
			return result{}
		case ctx.Err() != nil:
			return result{canceled: true}
		case try == maxTries:
			res := unseen(err)
			res.leaked = err
			return res
		}
		o.log.Warn("task cannot be stopped", "try", try, "error", err)
		if unknown := errors.Is(err, driver.ErrUnknownSignal); signal != "" && (unknown || try > 1) {
			if signal = ""; unknown {
				continue
			}
		}
		if exit := o.exitWithin(ctx, id, again(try)); exit != nil {
			return result{exit: exit}
		}
	}
}

func (o *operation) stopOnce(ctx context.Context, id, signal string, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace+stopSlack)
	defer cancel()
	late, err := guard.Run(ctx, guard.Late, func(ctx context.Context) error {
		drv, err := o.driver(ctx)
		if err != nil {
			return err
		}
		return drv.Stop(ctx, id, signal, grace)
	})
	if late != nil {
		o.log.Error("driver does not return from Stop and is abandoned", "stack", late.Stack())
	}
	return err
}

// exitWithin waits for the exit for all of d, nil if it does not come.
func (o *operation) exitWithin(ctx context.Context, id string, d time.Duration) *driver.ExitResult {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var exit driver.ExitResult
	late, err := guard.Run(ctx, guard.Late, func(ctx context.Context) error {
		drv, err := o.driver(ctx)
		if err == nil {
			exit, err = drv.Wait(ctx, id)
		}
		return err
	})
	if err == nil && late == nil {
		return &exit
	}
	<-ctx.Done()
	return nil
}

// recover makes the task known again. What cannot be answered now is no proof of
// anything: it is asked again. Only a driver that says so makes a task lost.
func (o *operation) recover(ctx context.Context) result {
	stopping := o.snap.Kill != nil
	drv, err := o.driver(ctx)
	if err == nil {
		var late *guard.Call
		late, err = guard.Run(ctx, guard.Late, func(ctx context.Context) error { return drv.Recover(ctx, o.snap.Handle) })
		if late != nil {
			o.log.Error("driver does not return from Recover and is abandoned", "stack", late.Stack())
		}
	} else {
		err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	switch {
	case err == nil:
		return o.recoveredTask(ctx, drv)
	case ctx.Err() != nil:
		return result{canceled: true}
	case transient(err) && stopping && o.tries+1 >= maxTries:
		res := unseen(err)
		res.leaked = err
		return res
	case transient(err):
		o.log.Warn("task cannot be recovered now", "error", err)
		return result{err: err}
	}
	return result{err: err, lost: true, restored: !o.known}
}

// transient errors of Recover leave it open whether the task lives.
func transient(err error) bool {
	return errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrPluginGone) ||
		errors.Is(err, driver.ErrForeignScope) || driver.IsRecoverable(err)
}

// recoveredTask takes up a task that was found. If it has ended meanwhile there
// are no prestart and poststart hooks to run.
func (o *operation) recoveredTask(ctx context.Context, drv driver.Driver) result {
	if o.known { // only the driver had lost it
		return result{}
	}
	o.out.info, o.out.by, o.out.redo = drv.Info(), make([]Contribution, len(o.hooks)), nil
	st := o.inspect(ctx, drv)
	res := result{orphan: st.Attrs["adopted"] == "true"}
	if st.Attrs["output_lost"] == "true" {
		id := o.snap.Handle.TaskID
		o.log.Warn("the last output of the task may be lost", "task_id", id)
		(&control{r: o.TaskRunner, log: o.log}).emit(OutputLost, map[string]string{"task_id": id, "attempt": strconv.Itoa(o.snap.Attempt)})
	}
	d := settle
	switch {
	case o.snap.Phase == Stopping, st.State == "running", !o.any(cbPrestart) && !o.any(cbPoststart):
		return res
	case st.State == "exited":
		d = stopSlack
	}
	res.exit = o.exitWithin(ctx, o.snap.Handle.TaskID, d)
	return res
}

// inspect asks what the driver knows of the task, if it is one that tells.
func (o *operation) inspect(ctx context.Context, drv driver.Driver) (st driver.TaskStatus) {
	i, ok := drv.(driver.Inspector)
	if !ok {
		return st
	}
	ctx, cancel := context.WithTimeout(ctx, guard.Late)
	defer cancel()
	var got driver.TaskStatus
	late, err := guard.Run(ctx, guard.Late, func(ctx context.Context) (err error) {
		got, err = i.Inspect(ctx, o.snap.Handle.TaskID)
		return err
	})
	if late == nil && err == nil {
		st = got
	}
	return st
}

// resume settles a start intent of an earlier agent. A driver whose starts can be
// repeated gets it again; for any other, and after a reboot, whatever it left is
// destroyed.
func (o *operation) resume(ctx context.Context) result {
	drv, err := o.driver(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return result{canceled: true}
		}
		return result{err: err, canceled: true} // try again later
	}
	rebooted := o.snap.Resume.Boot != o.cfg.Clock.Now().Boot
	if drv.Info().Capabilities.IdempotentStart && !rebooted {
		return result{again: true}
	}
	leaked := o.destroy(ctx)
	if leaked == nil && ctx.Err() != nil {
		return result{canceled: true}
	}
	return result{err: errors.New("the machine was started anew while the task was being started"), leaked: leaked}
}

func (o *operation) sendSignal(ctx context.Context) result {
	drv, err := o.driver(ctx)
	if err != nil {
		return result{err: err}
	}
	s, ok := drv.(driver.Signaler)
	if !ok {
		return result{err: fmt.Errorf("driver %q: signals: %w", o.task.Driver, driver.ErrNotImplemented)}
	}
	_, err = guard.Run(ctx, guard.Late, func(ctx context.Context) error {
		return s.Signal(ctx, o.snap.Handle.TaskID, o.signal)
	})
	return result{err: err}
}
