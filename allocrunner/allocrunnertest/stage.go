// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunnertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// stage is one life of an alloc: what outlives agents, and the agent of now.
type stage struct {
	*allocrunner.AllocRunner
	t     testing.TB
	alloc *spec.Alloc
	hooks []allocrunner.HookFunc
	left  func() []string
	fake  *drivertest.Fake
	mem   state.Store

	wrap   wrapper
	store  state.Store   // the agent's
	dead   chan struct{} // closed when the agent is
	cancel context.CancelFunc
	ran    chan error
	fell   bool // the store has failed as it should

	mu       sync.Mutex
	statuses []allocrunner.Status
}

func (cfg Config) stage(t testing.TB) *stage {
	hook, left := cfg.Setup(t)
	s := &stage{t: t, alloc: cfg.Alloc, hooks: []allocrunner.HookFunc{hook}, left: left, mem: state.Memory()}
	s.fake = &drivertest.Fake{Script: cfg.Script}
	if s.alloc == nil {
		s.alloc = &spec.Alloc{ID: "test", JobID: "job", Group: "group", Tasks: []spec.Task{{Name: "main", Driver: "fake"}}}
	}
	return s
}

// agent starts an agent whose store fails as wrap says.
func (s *stage) agent(wrap wrapper) {
	s.t.Helper()
	s.wrap, s.store, s.dead = wrap, s.mem, make(chan struct{})
	if wrap.store != nil {
		s.store = wrap.store(s.mem)
	}
	r, err := allocrunner.New(allocrunner.Config{
		Alloc: s.alloc, Store: s.store, Hooks: s.hooks, Record: s.record,
		Tasks: taskrunner.Config{Drivers: mortal{s.fake, s.dead}},
	})
	if err != nil {
		s.t.Fatalf("new agent: %v", err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	s.AllocRunner, s.cancel, s.ran = r, cancel, make(chan error, 1)
	go func(ran chan error) { ran <- r.Run(ctx) }(s.ran)
}

// record holds statuses to their order.
func (s *stage) record(_ state.Tx, _, new allocrunner.Snapshot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.statuses); n == 0 || s.statuses[n-1] != new.Status {
		s.statuses = append(s.statuses, new.Status)
	}
	return nil
}

// crashed lets time pass. If the agent crashes meanwhile it is buried, and the
// next one, with a good disk, is there.
func (s *stage) crashed(d time.Duration) bool {
	s.t.Helper()
	if s.wrap.crashed == nil {
		s.wait(d)
		return false
	}
	select {
	case <-s.wrap.crashed(s.store):
	case <-time.After(d):
		return false
	}
	s.fell = true
	close(s.dead)
	s.detach()
	s.agent(none)
	s.wait(d)
	return true
}

func (s *stage) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *stage) detach() {
	s.t.Helper()
	s.cancel()
	if err := <-s.ran; err != nil && !errors.Is(err, context.Canceled) {
		s.t.Fatalf("Run returned %v", err)
	}
	s.fake.Forget()
}

// restart is a restart of the agent; the store goes on failing as it did.
func (s *stage) restart(wrap wrapper) {
	s.t.Helper()
	store := s.store
	if s.met() {
		s.fell, wrap = true, none
	}
	if wrap.store != nil {
		wrap.store = func(state.Store) state.Store { return store }
	}
	s.detach()
	s.agent(wrap)
}

func (s *stage) met() bool {
	switch {
	case s.fell:
		return true
	case s.wrap.crashed != nil:
		select {
		case <-s.wrap.crashed(s.store):
			return true
		default:
			return false
		}
	}
	return s.wrap.met != nil && s.wrap.met(s.store)
}

func (s *stage) update() {
	s.change(func(a *spec.Alloc) { a.Meta = map[string]string{"changed": "yes"} })
}

func (s *stage) stop() { s.change(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop }) }

func (s *stage) change(f func(*spec.Alloc)) {
	s.t.Helper()
	next := s.Snapshot().Alloc.Clone()
	next.ModifyIndex++
	f(next)
	s.try(s.Update(s.t.Context(), next))
}

// try accepts what a request may answer while the disk fails or after a crash.
func (s *stage) try(err error) {
	s.t.Helper()
	for _, fine := range []error{nil, taskrunner.ErrClosed, taskrunner.ErrNotDurable, taskrunner.ErrNotRunning,
		allocrunner.ErrTerminal, allocrunner.ErrStale, statetest.ErrCrash, state.ErrCommit} {
		if errors.Is(err, fine) {
			return
		}
	}
	s.t.Errorf("request: %v", err)
}

// over waits for the end and destroys the alloc, through a crash if need be, and
// checks that nothing is left of it.
func (s *stage) over(want allocrunner.Status) {
	s.t.Helper()
	var err error
	for tries := 0; !s.destroyed(); tries++ {
		if now := s.Snapshot(); tries > 100 || err != nil && !s.met() {
			s.t.Fatalf("the alloc does not go away: it is %s (%s), done: %v, destroyed: %v", now.Status, now.Description, now.Done, err)
		}
		if s.Snapshot().Done {
			err = s.Destroy(s.t.Context())
		}
		if !s.destroyed() {
			s.crashed(time.Minute)
		}
	}
	s.cancel()
	<-s.ran //nolint:errcheck // only that it ended matters
	got := s.Snapshot()
	if got.Status != want || !got.Done {
		s.t.Errorf("the alloc ended as %s (%s), done: %v; want %s", got.Status, got.Description, got.Done, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	order := []allocrunner.Status{allocrunner.Pending, allocrunner.Running, want}
	if !slices.IsSortedFunc(s.statuses, func(a, b allocrunner.Status) int { return slices.Index(order, a) - slices.Index(order, b) }) ||
		s.statuses[len(s.statuses)-1] != want {
		s.t.Errorf("statuses went %v", s.statuses)
	}
	if left := s.left(); len(left) > 0 {
		s.t.Errorf("the hook has left %q", left)
	}
	s.fake.Check(s.t)
}

// destroyed says that the store knows nothing of the alloc any more.
func (s *stage) destroyed() bool {
	gone := false
	if err := s.mem.View(func(tx state.Tx) error {
		gone = !slices.Contains(tx.Nodes(state.Path{"v1", "alloc"}), s.alloc.ID)
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return gone
}

func refuse(context.Context, *allocrunner.Request, *struct{}) error { return errRefused }

// mortal is the driver as an agent sees it: when the agent is dead it cannot act
// any more, however much of it is still in memory.
type mortal struct {
	*drivertest.Fake
	dead chan struct{}
}

func (m mortal) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if _, err := m.Fake.Driver(ctx, name); err != nil {
		return nil, err
	}
	return m, nil
}

func (m mortal) gone() error {
	select {
	case <-m.dead:
		return driver.ErrUnavailable
	default:
		return nil
	}
}

func (m mortal) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := m.gone(); err != nil {
		return nil, err
	}
	return m.Fake.Start(ctx, cfg)
}

func (m mortal) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Fake.Stop(ctx, id, signal, grace)
}

func (m mortal) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Fake.Destroy(ctx, ref, force)
}
