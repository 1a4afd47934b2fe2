// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskenv"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Error is what a request can be answered with; errors.Is finds it.
type Error string

// The errors.
const (
	// ErrTerminal says that the alloc has ended or is being ended, so that nothing
	// can be asked of it; nothing was changed.
	ErrTerminal Error = "allocrunner: the alloc has ended"
	// ErrNotOver says that Destroy needs an alloc whose Run has returned nil.
	ErrNotOver Error = "allocrunner: the alloc is not over; kill it and wait for Done"
	// ErrUnknownTask says that the alloc has no task of that name.
	ErrUnknownTask Error = "allocrunner: no such task"
	// ErrStale says that an update is not newer than what the alloc has: ignored.
	ErrStale Error = "allocrunner: update is not newer"
	// ErrNeedsReplacement says that an update would change what only a new alloc
	// can; see ReplaceError.
	ErrNeedsReplacement Error = "allocrunner: alloc must be replaced"
	// ErrHealthSettled says that the alloc's health is known already, or not asked
	// for any more: nothing was changed.
	ErrHealthSettled Error = "allocrunner: the alloc's health is settled"
)

func (e Error) Error() string { return string(e) }

// AllocRunner runs one alloc. Make it with New; all methods may be called from
// any goroutine.
type AllocRunner struct {
	cfg   Config
	path  state.Path
	log   hclog.Logger
	clock bootclock.Clock
	hooks *hooks
	tasks []*task
	first start

	begun      atomic.Bool
	cmds       chan func(*loop)
	poke       chan struct{} // 1-buffered: look at the tasks again
	closing    chan struct{} // closed when the loop takes nothing more
	close      func()        // closes it, once
	done       chan struct{}
	destroying chan struct{} // 1-buffered: Destroy at work
	destroyed  bool          // of whoever is destroying
	pub        atomic.Pointer[published]
}

// task is a task runner and its place in the alloc.
type task struct {
	*taskrunner.TaskRunner
	name string
}

// start is what New found.
type start struct {
	alloc    *spec.Alloc
	stored   bool // alloc is on disk as it is
	life     life
	health   health
	restored bool // an earlier Run had begun
}

type published struct {
	Snapshot
	changed chan struct{}
}

// KillRequest says why and how an alloc is ended.
type KillRequest struct {
	Reason string // for people
	// Force is the client status the alloc ends with, Complete or Failed, whatever
	// its tasks did; "" leaves it to them.
	Force Status
	// NoShutdownDelay skips the delays of the alloc and of its tasks.
	NoShutdownDelay bool
	// Poststop ends poststop tasks too (destroy, drain deadline, maximum run
	// time); otherwise they have their turn when the others are dead.
	Poststop bool
	// Grace shortens the tasks' kill timeouts; 0 leaves them, negative is none at all.
	Grace time.Duration
}

// RestartRequest says what to start again.
type RestartRequest struct {
	Task   string // "" is every task that runs
	All    bool   // with Task "": the finished ones too, in the order of a first start
	Reason string // for people
}

// New checks cfg and the hooks and loads what an earlier runner left in the
// store. It starts nothing and writes nothing. An update in cfg.Alloc that needs
// a replacement is a ReplaceError; what the store holds and cannot be read is
// state.ErrCorrupt or state.ErrTooNew.
func New(cfg Config) (*AllocRunner, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	r := &AllocRunner{
		cfg:        cfg,
		path:       path(cfg.Alloc.ID),
		log:        cfg.Log.With("alloc_id", cfg.Alloc.ID),
		clock:      cfg.Tasks.Clock,
		cmds:       make(chan func(*loop)),
		poke:       make(chan struct{}, 1),
		closing:    make(chan struct{}),
		done:       make(chan struct{}),
		destroying: make(chan struct{}, 1),
	}
	r.close = sync.OnceFunc(func() { close(r.closing) })
	if r.clock == nil {
		r.clock = bootclock.System()
	}
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("allocrunner: load alloc %s: %w", cfg.Alloc.ID, err)
	}
	for i := range r.first.alloc.Tasks {
		name := r.first.alloc.Tasks[i].Name
		tr, err := taskrunner.New(r.taskConfig(name))
		if err != nil {
			return nil, err
		}
		r.tasks = append(r.tasks, &task{tr, name})
		r.first.restored = r.first.restored || tr.Snapshot().Rev > 0
	}
	if l := &r.first.life; l.Status.Terminal() && !r.givesBack() {
		l.Done = l.Done || !slices.ContainsFunc(r.tasks, func(t *task) bool { return t.Snapshot().Phase != taskrunner.Dead })
	}
	r.pub.Store(&published{r.snapshot(r.first.alloc, r.first.life, r.first.health.Found, 1), make(chan struct{})})
	return r, nil
}

// taskConfig is the configuration of one task's runner.
func (r *AllocRunner) taskConfig(name string) taskrunner.Config {
	c := r.cfg.Tasks
	c.Alloc, c.Task, c.Store, c.Dir = r.first.alloc, name, r.cfg.Store, r.cfg.Dir
	c.Scope = r.first.life.Scope
	if r.cfg.ScopePerTask {
		c.Scope += "/" + name
	}
	c.Parent = taskrunner.Parent{Gated: true, Linger: true, Shared: r.hooks.readers()}
	c.Clock = r.clock
	c.Log = r.cfg.Log
	c.Env = func(a *spec.Alloc) taskenv.Builder {
		e := r.cfg.Env
		e.Alloc, e.Task = a, name
		return taskenv.New(e)
	}
	c.Observe = func(taskrunner.Snapshot) { r.wake() }
	c.Record = nil
	if f := r.cfg.RecordTask; f != nil {
		c.Record = func(tx state.Tx, old, new taskrunner.Snapshot) error { return f(tx, name, old, new) }
	}
	return c
}

func (r *AllocRunner) wake() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// Run drives the alloc until it is over and returns nil, or until ctx ends and
// returns its cause; the tasks live on then. It may be called once, also for an
// alloc that has ended: left-overs are cleaned up. It returns at most 5 s after
// ctx ended, whatever hooks and drivers do.
func (r *AllocRunner) Run(ctx context.Context) error {
	if !r.begun.CompareAndSwap(false, true) {
		return errors.New("allocrunner: Run may be called once")
	}
	defer close(r.done)
	defer r.close()
	return newLoop(r).run(ctx)
}

// Done is closed when Run has returned.
func (r *AllocRunner) Done() <-chan struct{} { return r.done }

// AwaitRestored blocks until each task of an earlier Run was looked for (see
// taskrunner.TaskRunner.Restored), or Run has returned: true; or ctx has ended:
// false, if any was not.
func (r *AllocRunner) AwaitRestored(ctx context.Context) bool {
	for _, t := range r.tasks {
		select { // what is so wins over the end of ctx
		case <-t.Restored():
			continue
		case <-r.done:
			return true
		default:
		}
		select {
		case <-t.Restored():
		case <-r.done:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Snapshot returns the latest published state. It never blocks.
func (r *AllocRunner) Snapshot() Snapshot { return r.pub.Load().Snapshot }

// Watch yields the current state and then each newer one, until Run has returned
// or ctx ends. A slow reader skips states; it always sees the last.
func (r *AllocRunner) Watch(ctx context.Context) iter.Seq[Snapshot] {
	return func(yield func(Snapshot) bool) {
		for {
			p := r.pub.Load()
			if !yield(p.Snapshot) {
				return
			}
			select {
			case <-p.changed:
			case <-ctx.Done():
				return
			case <-r.done:
				if r.pub.Load() == p {
					return
				}
			}
		}
	}
}

// Update hands over a newer version of the alloc. It returns once that is on
// disk; update hooks and tasks see it afterwards, the latest one only. A desired
// status of stop or evict ends the alloc and waits for no hook. An alloc that is
// not newer is ErrStale; one that changes what cannot change in place is a
// ReplaceError, unless it is a stop, of which only the stop is taken. It blocks
// until Run is there to take it.
func (r *AllocRunner) Update(ctx context.Context, a *spec.Alloc) error {
	if a == nil || a.ID != r.cfg.Alloc.ID {
		return &ReplaceError{Fields: []string{"id"}}
	}
	a = a.WithDefaults()
	return r.do(ctx, func(l *loop) error { return l.update(a) })
}

// Kill ends the alloc for good: prekill hooks, shutdown delay, then the leader,
// the main tasks, the sidecars. It returns once the wish is on disk, long before
// the alloc is over; with taskrunner.ErrNotDurable it is carried out although the disk
// failed. A later Kill can only make it quicker and wider. It blocks until Run is
// there to take it. An alloc whose tasks are all dead is ErrTerminal.
func (r *AllocRunner) Kill(ctx context.Context, req KillRequest) error {
	if req.Force != "" && !req.Force.Terminal() {
		return fmt.Errorf("allocrunner: Kill: Force %q: allowed: %s, %s", req.Force, Complete, Failed)
	}
	return r.do(ctx, func(l *loop) error { return l.kill(req) })
}

// Restart starts tasks again. It returns once the wish is on disk; they are then
// stopped in kill order, without shutdown delays, and start again as the
// lifecycle allows. With All it begins anew, so that what runs once runs again
// and mains wait for it. Where nothing runs that was named it is
// taskrunner.ErrNotRunning, and ErrTerminal once the alloc has ended.
func (r *AllocRunner) Restart(ctx context.Context, req RestartRequest) error {
	return r.do(ctx, func(l *loop) error { return l.restart(req) })
}

// Signal sends the named signal to the main process of a task, or of every task
// that runs if task is "". It returns what the drivers answered; where nothing
// runs it is taskrunner.ErrNotRunning, and ErrTerminal once the alloc has ended.
func (r *AllocRunner) Signal(ctx context.Context, task, signal, reason string) error {
	// The task decides: by the loop's answer it might have ended.
	if r.Snapshot().Status.Terminal() {
		return ErrTerminal
	}
	var errs []error
	var asked []string
	for _, t := range r.tasks {
		if t.name != task && (task != "" || t.Snapshot().State() != taskrunner.Running) {
			continue
		}
		asked, errs = append(asked, strconv.Quote(t.name)), append(errs, t.Signal(ctx, signal, reason))
	}
	switch {
	case len(asked) == 0 && task != "":
		return fmt.Errorf("%w: %q", ErrUnknownTask, task)
	case len(asked) == 0:
		return taskrunner.ErrNotRunning
	}
	return joinAlike(asked, errs)
}

// joinAlike joins the errors of tasks; what went wrong in the same words is told
// once, with all their names.
func joinAlike(tasks []string, errs []error) error {
	names := map[string][]string{} // by text
	var all []error
	for i, err := range errs {
		if err != nil {
			if names[err.Error()] == nil {
				all = append(all, err)
			}
			names[err.Error()] = append(names[err.Error()], tasks[i])
		}
	}
	for i, err := range all {
		word := "task "
		if len(names[err.Error()]) > 1 {
			word = "tasks "
		}
		all[i] = fmt.Errorf("%s%s: %w", word, strings.Join(names[err.Error()], ", "), err)
	}
	return errors.Join(all...)
}

// Destroy removes what is left of an alloc that is over: destroy hooks, the
// directory, the state. All of it is tried; what fails is in the error, and the
// next call goes on with it. It runs in the caller's goroutine. Before Run has
// returned nil it is ErrNotOver.
func (r *AllocRunner) Destroy(ctx context.Context) error {
	select {
	case r.destroying <- struct{}{}:
		defer func() { <-r.destroying }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-r.done:
	default:
		return ErrNotOver
	}
	s := r.Snapshot()
	switch {
	case !s.Done:
		return ErrNotOver
	case r.destroyed:
		return nil
	}
	req := r.request(s.Alloc)
	var errs []error
	if s.Leftover != "" {
		errs = append(errs, r.hooks.run(ctx, postrun, req))
	}
	errs = append(errs, r.hooks.run(ctx, destroy, req))
	if r.cfg.Dir != nil {
		errs = append(errs, r.cfg.Dir.Destroy(ctx))
	}
	err := errors.Join(errs...)
	if err == nil {
		err = r.cfg.Store.Update(func(tx state.Tx) error { return tx.DeleteTree(r.path) })
	}
	if err != nil {
		return fmt.Errorf("allocrunner: destroy alloc %s: %w", r.cfg.Alloc.ID, err)
	}
	r.destroyed = true
	return nil
}

func (r *AllocRunner) request(a *spec.Alloc) Request {
	return Request{Alloc: a, Dir: r.cfg.Dir, r: r}
}

// do runs f in the loop and returns its answer once its effect can be seen.
func (r *AllocRunner) do(ctx context.Context, f func(*loop) error) error {
	cmd, answer := command(f)
	select {
	case r.cmds <- cmd:
		return <-answer
	case <-r.closing:
		return r.closed()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// send is do for hooks, which are called while the loop is there.
func (r *AllocRunner) send(f func(*loop) error) error {
	cmd, answer := command(f)
	select {
	case r.cmds <- cmd:
		return <-answer
	case <-r.closing:
		return r.closed()
	}
}

func command(f func(*loop) error) (func(*loop), <-chan error) {
	answer := make(chan error, 1)
	return func(l *loop) {
		err := f(l)
		l.publish()
		answer <- err
	}, answer
}

func (r *AllocRunner) closed() error {
	if r.Snapshot().Done {
		return ErrTerminal
	}
	return taskrunner.ErrClosed
}

func (r *AllocRunner) known(name string) bool {
	return slices.ContainsFunc(r.tasks, func(t *task) bool { return t.name == name })
}
