// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Previous is what is known of the allocs that one takes the place of. Its
// functions are called by prerun hooks, one at a time, and may block until ctx ends.
type Previous struct {
	// Disk says that the alloc takes over their data.
	Disk bool
	// Await returns when nothing of the alloc's predecessors runs any more, with
	// their directories, the nearest first; none if no predecessor is on this node.
	Await func(ctx context.Context) ([]*allocdir.Dir, error)
	// Stream opens what allocdir's Send writes for al.PreviousAlloc on another node.
	// Nil: disks do not come from other nodes.
	Stream func(ctx context.Context, al *spec.Alloc) (io.ReadCloser, error)
	// Limits bound the stream.
	Limits allocdir.DiskLimits
	// Moved is told once nothing is wanted of the previous alloc any more.
	Moved func()
}

// DiskTakenError says why an alloc starts with an empty disk: that of the alloc it
// replaces belongs to another one, which replaces it too. It is told as an event.
type DiskTakenError struct{ AllocID, Previous, By string }

func (e *DiskTakenError) Error() string {
	return fmt.Sprintf("core: alloc %s: the disk of alloc %s went to alloc %s, which replaces it too: the tasks start with an empty one", e.AllocID, e.Previous, e.By)
}

// passed is what the previous hook remembers.
type passed struct {
	Over bool `json:"over,omitempty"` // the previous alloc has ended
}

// awaitPrevious keeps an alloc from starting beside those it replaces.
func awaitPrevious(p *Previous) allocrunner.HookFunc {
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		return &allocrunner.Hook[passed]{
			Name: "previous", Stage: allocrunner.StagePrevious,
			Prerun: func(ctx context.Context, r *allocrunner.Request, s *passed) error {
				if s.Over {
					return nil
				}
				_, err := p.Await(ctx)
				s.Over = err == nil
				return err
			},
		}, nil
	}
}

// migrated is what the migrate hook remembers.
type migrated struct {
	Done bool `json:"done,omitempty"` // also when there was nothing to move, or it failed for good
}

// migrate brings the disk of the previous alloc. From the same node it is moved,
// and that it cannot be fails the alloc: its data would be removed with the previous
// one. From another node it is fetched as well as can be; an alloc that gets none
// starts with an empty disk and an event says why (the data is still where it was).
func migrate(p *Previous) allocrunner.HookFunc {
	return func(*spec.Alloc) (allocrunner.AnyHook, error) {
		if !p.Disk {
			return nil, nil
		}
		return &allocrunner.Hook[migrated]{
			Name: "migrate", Stage: allocrunner.StageMigrate,
			Prerun: func(ctx context.Context, r *allocrunner.Request, s *migrated) error {
				if s.Done || r.Dir == nil {
					p.moved()
					return nil
				}
				if err := p.bring(ctx, r); err != nil {
					return err
				}
				s.Done = true
				if err := r.Checkpoint(); err != nil { // before the previous one may go
					return err
				}
				p.moved()
				return nil
			},
		}, nil
	}
}

func (p *Previous) moved() {
	if p.Moved != nil {
		p.Moved()
	}
}

func (p *Previous) bring(ctx context.Context, r *allocrunner.Request) error {
	tasks := make([]string, len(r.Alloc.Tasks))
	for i := range r.Alloc.Tasks {
		tasks[i] = r.Alloc.Tasks[i].Name
	}
	from, err := p.Await(ctx)
	switch {
	case err != nil:
		return err
	case len(from) > 0:
		if err := r.Dir.TakeOver(ctx, from, tasks); err != nil {
			return fmt.Errorf("core: disk of alloc %s: %w", r.Alloc.PreviousAlloc, err)
		}
		return nil
	case !r.Alloc.Settings.Disk.Migrate || p.Stream == nil:
		return nil
	}
	err = p.fetch(ctx, r, tasks)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	text := fmt.Sprintf("The disk of alloc %s did not come, the tasks start with an empty one: %v", r.Alloc.PreviousAlloc, err)
	r.Log.Warn("disk of the previous alloc did not come", "previous_alloc", r.Alloc.PreviousAlloc, "error", err)
	for _, t := range tasks {
		if err := r.Emit(ctx, t, taskrunner.TaskSetup, map[string]string{"message": text}); err != nil {
			r.Log.Warn("event lost", "task", t, "error", err)
		}
	}
	return nil
}

func (p *Previous) fetch(ctx context.Context, r *allocrunner.Request, tasks []string) error {
	if done, err := r.Dir.Received(ctx, tasks); done || err != nil {
		return err
	}
	in, err := p.Stream(ctx, r.Alloc)
	if err != nil {
		return err
	}
	if in == nil {
		return errors.New("no stream was given")
	}
	defer in.Close()
	defer context.AfterFunc(ctx, func() { _ = in.Close() })() // ends a read that hangs
	return r.Dir.Receive(ctx, in, tasks, p.Limits)
}
