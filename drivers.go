// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// DriverFunc makes a driver for an agent, once, in New. The pool is the agent's:
// a driver that runs its tasks under a supervisor shares its connections.
type DriverFunc = func(*supervisor.Pool) (driver.Driver, error)

// InProcess is the DriverFunc of a driver that needs no supervisor.
func InProcess(d driver.Driver) DriverFunc {
	return func(*supervisor.Pool) (driver.Driver, error) { return d, nil }
}

// ErrUnknownDriver says that a task names a driver this agent does not have.
var ErrUnknownDriver = drivermanager.ErrUnknownDriver

// pluginsDir is where processes of drivers have their sockets and logs, below the
// runtime directory. No scope of a supervisor has such a name.
const pluginsDir = ".plugins"

// drivers are the agent's drivers, in this process and out of it.
type drivers struct {
	*drivermanager.Manager
	log hclog.Logger
	dir string
	own map[string]bool // the drivers of this process; true for those that tell events
	// news is what drivers tell of tasks, on its way there.
	news chan func()
}

// newDrivers makes the drivers of this process and finds the programs of others.
func (a *Agent) newDrivers() (*drivers, error) {
	s := &drivers{log: a.log, dir: filepath.Join(a.id.RuntimeDir, pluginsDir), own: map[string]bool{}, news: make(chan func(), 256)}
	var own []driver.Driver
	for i, f := range a.cfg.Drivers {
		if f == nil {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d] is nil", i)
		}
		d, err := f(a.pool)
		if err != nil {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d]: %w", i, err)
		}
		name := d.Info().Name
		if _, taken := s.own[name]; taken || name == "" {
			return nil, fmt.Errorf("nodekeep: Config.Drivers[%d]: name %q is empty or taken", i, name)
		}
		_, s.own[name] = d.(driver.EventSource)
		own = append(own, d)
	}
	cfg := a.cfg.Plugins
	cfg.Launchers = append([]drivermanager.Launcher{drivermanager.InProcess(own...)}, cfg.Launchers...)
	cfg.Dir, cfg.Records, cfg.Log = s.dir, drivermanager.StateRecords(a.store), a.log.Named("driver")
	var err error
	if s.Manager, err = drivermanager.New(cfg); err != nil {
		return nil, fmt.Errorf("nodekeep: Config.Plugins: %w", err)
	}
	return s, nil
}

// drive starts drivers and device plugins. The context it returns ends when they
// cannot be run.
// letGo is called when the last runner has ended: it ends them, with their
// programs where no alloc needs those any more, and waits.
func (a *Agent) drive(ctx context.Context) (_ context.Context, letGo func() error) {
	driving, end := context.WithCancel(context.WithoutCancel(ctx))
	ctx, fail := context.WithCancelCause(ctx)
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{a.drivers.run, a.runDevices} {
		go func() {
			err := run(driving)
			if err != nil {
				fail(err)
			}
			ended <- err
		}()
	}
	return ctx, func() error {
		if !a.busy() {
			a.drivers.EndPrograms()
		}
		end()
		defer fail(nil)
		return errors.Join(<-ended, <-ended)
	}
}

// run runs the drivers until ctx ends and carries to the tasks what they tell of
// them.
func (s *drivers) run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for {
		select {
		case tell := <-s.news:
			tell()
		case err := <-ended:
			// Where programs live on it is not empty, where there were none not there.
			_ = os.Remove(s.dir)
			return err
		}
	}
}

// ready waits for the first word of all drivers, for a bounded time.
func (s *drivers) ready(ctx context.Context) {
	silent := s.Ready(ctx)
	if ctx.Err() == nil && len(silent) > 0 {
		s.log.Warn("drivers are silent, going on without them", "programs", silent)
	}
}

// events is the task hook that makes what a driver tells of the task an event of it.
func (s *drivers) events(_ *spec.Alloc, t *spec.Task) (taskrunner.AnyHook, error) {
	if tells, own := s.own[t.Driver]; own && !tells {
		return nil, nil
	}
	type none struct{}
	cancel := func() {}
	return &taskrunner.Hook[none]{
		Name: "driver_events", Stage: taskrunner.StageLogs,
		Prestart: func(_ context.Context, r *taskrunner.Request, _ *none) (c taskrunner.Contribution, err error) {
			emit := r.Emit
			cancel = s.Subscribe(r.Alloc.ID, r.Task.Name, func(e driver.Event) {
				select {
				case s.news <- func() { emit(taskrunner.Driver, eventAttrs(e)) }:
				default:
					s.log.Warn("drivers tell more than can be written down; an event is dropped", "task_id", e.TaskID, "message", e.Message)
				}
			})
			return c, nil
		},
		Stop: func(context.Context, *taskrunner.Request, *none) error { cancel(); return nil },
	}, nil
}

// eventAttrs are the facts of an event of a driver; the message and the error are
// ours to name.
func eventAttrs(e driver.Event) map[string]string {
	m := make(map[string]string, len(e.Attrs)+2)
	for k, v := range e.Attrs {
		m[k] = v
	}
	m["message"] = e.Message
	if e.Err != nil {
		m["error"] = e.Err.Error()
	}
	return m
}

// knownDrivers lists the tasks whose drivers this node does not have. A program
// that is just starting may be any driver: their tasks wait for it.
func (a *Agent) knownDrivers(al *spec.Alloc) error {
	var errs []error
	for i := range al.Tasks {
		if err := a.drivers.Check(al.Tasks[i].Driver); err != nil {
			errs = append(errs, fmt.Errorf("tasks[%s].driver: %w", al.Tasks[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// Drivers returns the drivers and their latest fingerprints, sorted by name.
func (a *Agent) Drivers() []DriverStatus {
	var out []DriverStatus
	for _, p := range a.drivers.Status() {
		if p.Driver != "" {
			out = append(out, driverStatus(p))
		}
	}
	slices.SortFunc(out, func(x, y DriverStatus) int { return strings.Compare(x.Name, y.Name) })
	return out
}

func driverStatus(p drivermanager.Status) DriverStatus {
	s := DriverStatus{Name: p.Driver, Version: p.Version, Attributes: p.Attributes, Description: p.Description,
		Detected: p.Health != "" && p.Health != driver.Undetected, Healthy: p.Health == driver.Healthy}
	if p.Health == "" {
		s.Description = "has not answered yet"
	}
	return s
}

// Plugins returns the programs that are drivers, or should be, those of this
// process first: also one that does not start, and why.
func (a *Agent) Plugins() []drivermanager.Status { return a.drivers.Status() }
