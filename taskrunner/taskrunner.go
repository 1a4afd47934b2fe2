// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// Error is what a request can be answered with; errors.Is finds it.
type Error string

// The errors.
const (
	// ErrClosed says that Run has returned, so that nobody is there to act.
	ErrClosed Error = "taskrunner: not running any more"
	// ErrNotRunning says that the task has no process that could be restarted or
	// signalled, or that it is being killed.
	ErrNotRunning Error = "taskrunner: task is not running"
	// ErrNotDurable says that the request is being carried out but is not on disk
	// yet: the store fails. It is written as soon as the store recovers.
	ErrNotDurable Error = "taskrunner: accepted, but not on disk yet"
)

func (e Error) Error() string { return string(e) }

// TaskRunner runs one task. Make it with New; all methods may be called from any
// goroutine.
type TaskRunner struct {
	cfg   Config
	path  state.Path
	log   hclog.Logger
	hooks []*bound

	started  atomic.Bool
	detached atomic.Bool // an agent that comes later owns what lives
	gate     atomic.Bool
	poke     chan struct{} // 1-buffered: look again
	cmds     chan func(*loop)
	done     chan struct{}
	restored chan struct{} // closed once what an earlier runner left was looked for
	pub      atomic.Pointer[published]
}

// published is a snapshot and the news that there is a later one.
type published struct {
	Snapshot
	changed chan struct{}
}

// New checks cfg, makes the hooks and loads what an earlier runner left in the
// store. It starts nothing. The error names all faults of cfg; what the store
// holds and cannot be read is state.ErrCorrupt or state.ErrTooNew.
func New(cfg Config) (*TaskRunner, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &TaskRunner{
		cfg:      cfg,
		path:     path(cfg.Alloc.ID, cfg.Task),
		log:      quiet{cfg.Log}.With("alloc_id", cfg.Alloc.ID, "task", cfg.Task),
		poke:     make(chan struct{}, 1),
		cmds:     make(chan func(*loop)),
		done:     make(chan struct{}),
		restored: make(chan struct{}),
	}
	r.gate.Store(!cfg.Gated)
	var err error
	if r.hooks, err = bindHooks(cfg); err != nil {
		return nil, err
	}
	snap, err := r.load()
	if err != nil {
		return nil, fmt.Errorf("taskrunner: load task %q of alloc %s: %w", cfg.Task, cfg.Alloc.ID, err)
	}
	r.pub.Store(&published{snap, make(chan struct{})})
	return r, nil
}

// Run drives the task until it is dead and returns nil, or until ctx ends and
// returns its cause; the workload lives on then. It may be called once, also for
// an alloc that is not to run any more: that is how left-overs are cleaned up.
// It returns at most 5 s after ctx ended, whatever hooks and drivers do.
func (r *TaskRunner) Run(ctx context.Context) error {
	if !r.started.CompareAndSwap(false, true) {
		return errors.New("taskrunner: Run may be called once")
	}
	defer close(r.done)
	return newLoop(r).run(ctx)
}

// Snapshot returns the latest published state. It never blocks.
func (r *TaskRunner) Snapshot() Snapshot { return r.pub.Load().Snapshot }

// Watch yields the current state and then each newer one, until Run has returned
// or ctx ends. A slow reader skips states; it always sees the last.
func (r *TaskRunner) Watch(ctx context.Context) iter.Seq[Snapshot] {
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

// Done is closed when Run has returned.
func (r *TaskRunner) Done() <-chan struct{} { return r.done }

// Restored is closed once Run has looked for the task of an earlier runner: it
// was recovered, found lost, or could not be asked for yet. Where there was none
// that is at once.
func (r *TaskRunner) Restored() <-chan struct{} { return r.restored }

// SetGate lets a pending task start, or holds the next start back. It never
// blocks, does nothing to a task that has been started, and may be called before
// Run. A runner made without Config.Gated begins with an open gate.
func (r *TaskRunner) SetGate(open bool) {
	if r.gate.Swap(open) != open {
		r.wake()
	}
}

// Update hands over a newer version of the alloc. It returns once the loop has
// taken it, before any hook has seen it; update hooks run while the task runs,
// everything else reads it at the next step. An alloc whose ModifyIndex is not
// higher than that of the last one is ignored. Without Config.Gated a desired
// status of stop or evict is a Kill. It blocks until Run is there to take it.
func (r *TaskRunner) Update(ctx context.Context, alloc *spec.Alloc) error {
	if alloc == nil || alloc.ID != r.cfg.Alloc.ID || alloc.Task(r.cfg.Task) == nil {
		return fmt.Errorf("taskrunner: update of alloc %s: not this alloc, or it has no task %q", r.cfg.Alloc.ID, r.cfg.Task)
	}
	return r.do(ctx, func(l *loop) error { return l.update(alloc) })
}

// Kill ends the task for good. It returns once the wish is on disk, long before
// the task is dead (see Watch and Done); with ErrNotDurable it is carried out
// although the disk failed. It may be called again: that can shorten what is
// left of the shutdown delay and of the grace, nothing else. A task that is dead
// already is no error. It blocks until Run is there to take it.
func (r *TaskRunner) Kill(ctx context.Context, req KillRequest) error {
	err := r.do(ctx, func(l *loop) error { return l.kill(req) })
	if errors.Is(err, ErrClosed) && r.Snapshot().Phase == Dead {
		return nil
	}
	return err
}

// Restart stops the running task and starts it again through its prestart hooks,
// without shutdown delay. It returns once the wish is on disk. Where nothing runs
// it is ErrNotRunning, unless the request is for dead tasks too.
func (r *TaskRunner) Restart(ctx context.Context, req RestartRequest) error {
	return r.do(ctx, func(l *loop) error { return l.restart(req) })
}

// Signal sends the signal of that name to the task's main process and returns
// the driver's answer: driver.ErrUnknownSignal for a name it does not know,
// driver.ErrNotImplemented where it sends none. It is ErrNotRunning where
// nothing runs. It waits for the operation that is under way.
func (r *TaskRunner) Signal(ctx context.Context, signal, reason string) error {
	answer := make(chan error, 1)
	if err := r.do(ctx, func(l *loop) error { return l.signal(signal, reason, answer) }); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.done:
		return ErrClosed
	}
}

// Emit adds an event of somebody outside to the task's. It returns once that is
// on disk; with ErrNotDurable it will be as soon as the store recovers.
func (r *TaskRunner) Emit(ctx context.Context, kind Kind, attrs map[string]string) error {
	attrs = maps.Clone(attrs)
	return r.do(ctx, func(l *loop) error {
		s := l.snap
		s.note(l.r.cfg.Clock.Now().Wall, kind, attrs)
		return l.move(s, durable)
	})
}

// do runs f in the loop and returns its answer.
func (r *TaskRunner) do(ctx context.Context, f func(*loop) error) error {
	answer := make(chan error, 1)
	select {
	case r.cmds <- func(l *loop) { answer <- f(l) }:
		return <-answer
	case <-r.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *TaskRunner) wake() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}
