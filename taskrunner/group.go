// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"time"
)

// group is the background work of one attempt. Its fields belong to the loop.
type group struct {
	launch  func(f func(context.Context)) *call
	cancel  context.CancelFunc
	members []member
	closed  bool
}

type member struct {
	name string
	*call
}

// newGroup makes a group whose work has the values of ctx and not its end.
func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &group{
		cancel: cancel,
		launch: func(f func(context.Context)) *call {
			return spawn(func() error { f(ctx); return nil })
		},
	}
}

// start adds work. What has returned is forgotten then.
func (g *group) start(name string, f func(context.Context)) bool {
	if g.closed {
		return false
	}
	left := g.members[:0:0]
	for _, m := range g.members {
		if !m.returned() || m.err != nil {
			left = append(left, m)
		}
	}
	g.members = append(left, member{name, g.launch(f)})
	return true
}

// close ends the group's context and returns who is to be waited for.
func (g *group) close() []member {
	g.closed = true
	g.cancel()
	m := g.members
	g.members = nil
	return m
}

// wait waits for all, no longer than d, and reports each that is late or panicked.
func wait(members []member, d time.Duration, report func(m member, err error)) {
	t := time.NewTimer(d)
	defer t.Stop()
	expired := false
	for _, m := range members {
		if !expired {
			select {
			case <-m.done:
			case <-t.C:
				expired = true
			}
		}
		switch {
		case !m.returned():
			report(m, errAbandoned)
		case m.err != nil:
			report(m, m.err)
		}
	}
}
