// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"context"
	"time"
)

// Group is background work with one end. Its methods are called by one
// goroutine, its owner.
type Group struct {
	launch func(func(context.Context)) *Call
	cancel context.CancelFunc
	work   []Member
	closed bool
}

// Member is one piece of a group's work.
type Member struct {
	Name string
	*Call
}

// NewGroup makes a group whose work has the values of ctx and not its end.
func NewGroup(ctx context.Context) *Group {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &Group{
		cancel: cancel,
		launch: func(f func(context.Context)) *Call {
			return Spawn(func() error { f(ctx); return nil })
		},
	}
}

// Start adds work, unless the group is closed. What has returned well is
// forgotten then.
func (g *Group) Start(name string, f func(context.Context)) bool {
	if g.closed {
		return false
	}
	left := g.work[:0:0]
	for _, m := range g.work {
		if !m.Returned() || m.err != nil {
			left = append(left, m)
		}
	}
	g.work = append(left, Member{name, g.launch(f)})
	return true
}

// Closed says whether Close was called.
func (g *Group) Closed() bool { return g.closed }

// Close ends the context of the work and returns what must be waited for.
func (g *Group) Close() []Member {
	g.closed = true
	g.cancel()
	work := g.work
	g.work = nil
	return work
}

// Wait waits for all, no longer than d, and reports what is late or panicked.
func Wait(work []Member, d time.Duration, report func(Member, error)) {
	t := time.NewTimer(d)
	defer t.Stop()
	expired := false
	for _, m := range work {
		if !expired {
			select {
			case <-m.done:
			case <-t.C:
				expired = true
			}
		}
		if err := m.Err(); err != nil {
			report(m, err)
		}
	}
}
