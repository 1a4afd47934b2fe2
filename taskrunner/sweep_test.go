// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

type counter64 = atomic.Int64

// pool is something outside that hooks lease by a key that survives.
type pool struct {
	mu     sync.Mutex
	leases map[string]int
	stops  int
	last   string // the last callback that was made
}

func (p *pool) take(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leases == nil {
		p.leases = map[string]int{}
	}
	if _, ok := p.leases[key]; !ok {
		p.leases[key] = 8000 + len(p.leases)
	}
	return p.leases[key]
}

func (p *pool) give(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leases, key)
}

func (p *pool) note(cb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = cb
	if cb == "stop" {
		p.stops++
	}
}

func (p *pool) out() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.leases))
}

type lease struct{ Port int }

// hook leases a port for the task. It runs in the agent that ends with d.
func (p *pool) hook(d *death) taskrunner.HookFunc {
	key := func(r *taskrunner.Request) string { return r.Alloc.ID + "/" + r.Task.Name }
	call := func(cb string, f func()) error {
		_, err := through(d, func() (any, error) { p.note(cb); f(); return nil, nil })
		return err
	}
	return hookOf(&taskrunner.Hook[lease]{Name: "lease",
		Prestart: func(_ context.Context, r *taskrunner.Request, l *lease) (c taskrunner.Contribution, err error) {
			err = call("prestart", func() {
				if l.Port == 0 {
					l.Port = p.take(key(r))
				}
			})
			return taskrunner.Contribution{Env: map[string]string{"PORT": fmt.Sprint(l.Port)}}, err
		},
		Poststart: func(context.Context, *taskrunner.Request, *lease) error { return call("poststart", func() {}) },
		Prekill:   func(context.Context, *taskrunner.Request, *lease) error { return call("prekill", func() {}) },
		Exited:    func(context.Context, *taskrunner.Request, *lease) error { return call("exited", func() {}) },
		Stop: func(_ context.Context, r *taskrunner.Request, _ *lease) error {
			return call("stop", func() { p.give(key(r)) })
		}})
}

// death is the end of one agent's process, at its n-th step: a call of the
// driver or of a hook begins, or its result comes back. Nothing gets through any
// more then, in either direction.
type death struct {
	at    int64 // 0: no step is the last
	steps counter64
	once  sync.Once
	dead  chan struct{}
}

func newDeath(at int) *death { return &death{at: int64(at), dead: make(chan struct{})} }

func (d *death) die() { d.once.Do(func() { close(d.dead) }) }

// step says whether the agent lives on.
func (d *death) step() error {
	if n := d.steps.Add(1); n == d.at {
		d.die()
	}
	return d.alive()
}

func (d *death) alive() error {
	select {
	case <-d.dead:
		return errors.Join(driver.ErrUnavailable, statetest.ErrCrash)
	default:
		return nil
	}
}

// through makes a call whose effect, or whose result, may be lost.
func through[T any](d *death, call func() (T, error)) (v T, err error) {
	if err := d.step(); err != nil {
		return v, err
	}
	v, err = call()
	if lost := d.step(); lost != nil {
		var zero T
		return zero, lost
	}
	return v, err
}

// mortal is the way of one agent to the driver.
type mortal struct {
	*drivertest.Fake
	*death
}

func (m *mortal) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if _, err := m.Fake.Driver(ctx, name); err != nil {
		return nil, err
	}
	return m, m.alive()
}

func (m *mortal) Start(ctx context.Context, c driver.TaskConfig) (*driver.Handle, error) {
	return through(m.death, func() (*driver.Handle, error) { return m.Fake.Start(ctx, c) })
}

func (m *mortal) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	return through(m.death, func() (driver.ExitResult, error) { return m.Fake.Wait(ctx, id) })
}

func (m *mortal) Stop(ctx context.Context, id, sig string, grace time.Duration) error {
	_, err := through(m.death, func() (any, error) { return nil, m.Fake.Stop(ctx, id, sig, grace) })
	return err
}

func (m *mortal) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	_, err := through(m.death, func() (any, error) { return nil, m.Fake.Destroy(ctx, ref, force) })
	return err
}

func (m *mortal) Recover(ctx context.Context, h *driver.Handle) error {
	_, err := through(m.death, func() (any, error) { return nil, m.Fake.Recover(ctx, h) })
	return err
}

// mortalStore fails once its agent is dead.
type mortalStore struct {
	state.Store
	*death
}

func (m mortalStore) Update(fn func(state.Tx) error) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Store.Update(fn)
}

// sweep plays scenes over agents that die.
type sweep struct {
	*world
	leases  *pool
	cgroups *cgroupLog
	reboot  bool
	lag     time.Duration // from a store's crash to the agent's death
	agents  int
	steps   int // of the last agent
	refused int // requests of the scene that were not kept on disk
}

func newSweep(t *testing.T, idempotent bool) *sweep {
	s := &sweep{world: newWorld(t), leases: &pool{}, cgroups: &cgroupLog{}}
	s.fake.Capabilities = &driver.Capabilities{IdempotentStart: idempotent}
	return s
}

// life starts an agent whose process ends with d or when its store crashes, plays
// the scene, and waits for the end of the task or of the agent.
func (s *sweep) life(d *death, disk *statetest.Crash, scene func(context.Context, *taskrunner.TaskRunner)) (died bool) {
	s.agents++
	ctx, cancel := context.WithCancelCause(s.Context())
	cfg := taskrunner.Config{Alloc: s.alloc, Task: "web", Drivers: &mortal{s.fake, d}, Store: mortalStore{disk, d},
		Hooks: []taskrunner.HookFunc{s.leases.hook(d)}, Cgroups: s.cgroups, Record: s.kinds.record}
	r, err := taskrunner.New(cfg)
	require.NoError(s, err)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	go func() {
		select {
		case <-disk.Crashed():
			time.Sleep(s.lag)
			d.die()
		case <-d.dead:
		case <-r.Done():
			return
		}
		cancel(statetest.ErrCrash)
	}()
	go scene(ctx, r)
	err = <-ended
	cancel(nil)
	synctest.Wait()
	s.steps = int(d.steps.Load())
	if err != nil {
		require.ErrorIs(s, err, statetest.ErrCrash)
		s.fake.Forget()
		if s.reboot {
			s.fake.Reboot()
		}
		return true
	}
	require.Equal(s, taskrunner.Dead, r.Snapshot().Phase)
	return false
}

// rest lets agents that do not die bring the task to its end.
func (s *sweep) rest(scene func(context.Context, *taskrunner.TaskRunner)) {
	for s.life(newDeath(0), statetest.CrashAt(s.store, 0), s.scene) {
		require.Less(s, s.agents, 10)
	}
	s.balance()
}

// balance is what must hold when the task is dead, however often its agent died.
func (s *sweep) balance() {
	s.Helper()
	s.fake.Check(s)
	require.Empty(s, s.leases.out(), "leases")
	require.GreaterOrEqual(s, s.leases.stops, 1)
	require.Equal(s, "stop", s.leases.last, "stop hooks come after the last exit")
	require.Empty(s, s.cgroups.left())
	require.Zero(s, s.kinds.gaps, "events")
}

// scene: the first life fails, the second is restarted by request, the third is
// killed with a shutdown delay.
func (s *sweep) scene(ctx context.Context, r *taskrunner.TaskRunner) {
	// after acts on the life it has seen, not on a later one.
	after := func(d time.Duration, seen taskrunner.Snapshot, f func() error) {
		select {
		case <-time.After(d):
			if now := r.Snapshot(); now.Phase == seen.Phase && now.Attempt == seen.Attempt && f() != nil {
				s.refused++
			}
		case <-ctx.Done():
		}
	}
	for seen := range r.Watch(ctx) {
		if seen.Phase != taskrunner.Running {
			continue
		}
		if seen.Restarts < 2 && seen.Restarting == nil {
			after(2*time.Minute, seen, func() error { return r.Restart(ctx, taskrunner.RestartRequest{Reason: "template"}) })
		}
		if seen.Restarts >= 2 && seen.Kill == nil {
			after(time.Minute, seen, func() error { return r.Kill(ctx, taskrunner.KillRequest{}) })
		}
	}
}

// The agent dies before or after every write it makes; the next one, or the one
// after that, brings the task to its end. Starts and stops balance, no life is
// lived twice, leases are given back.
func TestCrashSweep(t *testing.T) {
	for _, tc := range []struct {
		name   string
		crash  func(state.Store, int) *statetest.Crash
		idem   bool
		reboot bool
		lag    time.Duration
	}{
		{"before the write", statetest.CrashAt, true, false, 0},
		{"before, and the agent lives on for a while", statetest.CrashAt, true, false, 30 * time.Second},
		{"after the write", statetest.CrashAfter, true, false, 0},
		{"before, starts cannot be repeated", statetest.CrashAt, false, false, 0},
		{"after, starts cannot be repeated", statetest.CrashAfter, false, false, 0},
		{"before, and the machine too", statetest.CrashAt, true, true, 0},
		{"after, and the machine too", statetest.CrashAfter, true, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for n := 1; ; n++ {
				crashed := false
				for second := range 6 { // a second crash soon after the first
					synctest.Test(t, func(t *testing.T) {
						s := sweepScene(t, tc.idem, tc.reboot)
						s.lag = tc.lag
						crashed = s.life(newDeath(0), tc.crash(s.store, n), s.scene)
						if crashed && second > 0 {
							s.life(newDeath(0), tc.crash(s.store, second), s.scene)
						}
						s.rest(s.scene)
						s.lives(tc.idem)
					})
					if t.Failed() {
						t.Fatalf("crash at write %d, then at %d", n, second)
					}
				}
				if !crashed {
					t.Logf("%d writes", n-1)
					return
				}
			}
		})
	}
}

// The agent dies at every step it takes: before and after every call of the
// driver and of a hook, also twice.
func TestCrashAtEveryStep(t *testing.T) {
	for _, idem := range []bool{true, false} {
		for _, reboot := range []bool{true, false} {
			t.Run(fmt.Sprintf("starts can be repeated %v, reboot %v", idem, reboot), func(t *testing.T) {
				for n := 1; ; n++ {
					died := false
					for second := range 3 {
						synctest.Test(t, func(t *testing.T) {
							s := sweepScene(t, idem, reboot)
							died = s.life(newDeath(n), statetest.CrashAt(s.store, 0), s.scene)
							if died && second > 0 {
								s.life(newDeath(second), statetest.CrashAt(s.store, 0), s.scene)
							}
							s.rest(s.scene)
							s.lives(idem)
						})
						if t.Failed() {
							t.Fatalf("death at step %d, then at %d", n, second)
						}
					}
					if !died {
						t.Logf("%d steps", n-1)
						return
					}
				}
			})
		}
	}
}

func sweepScene(t *testing.T, idem, reboot bool) *sweep {
	s := newSweep(t, idem)
	s.reboot = reboot
	s.task().ShutdownDelay = 10 * time.Second
	s.fake.Script = script(exits(time.Minute, 1), forever())
	return s
}

// lives: the first, the one after it, and the one that was asked for.
func (s *sweep) lives(idem bool) {
	s.Helper()
	switch {
	case s.reboot:
	case idem:
		// A kill that is not on disk is carried out all the same: if the agent dies
		// then, the next one sees an exit that nobody asked for.
		require.GreaterOrEqual(s, s.fake.Lives(), 3)
		require.LessOrEqual(s, s.fake.Lives(), 3+s.refused, "a start that is repeated is the same start")
	default:
		require.LessOrEqual(s, s.fake.Lives(), 3+s.agents-1, "one more for each agent that died")
	}
}

// Killed at any moment, with agents that die at any moment: the task ends, once.
func TestKillAnywhere(t *testing.T) {
	for seed := range uint64(500) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			at := rand.New(rand.NewPCG(seed, 2))
			s := newSweep(t, at.IntN(2) == 0)
			s.task().ShutdownDelay = time.Duration(at.IntN(3)) * time.Second
			s.task().Restart.Attempts = 20
			s.fake.Script = func(int, driver.TaskConfig) drivertest.Life {
				life := exits(time.Duration(rnd.IntN(20))*time.Second, rnd.IntN(2))
				life.Term = time.Duration(rnd.IntN(12)-1) * time.Second
				if rnd.IntN(8) == 0 {
					life.Err = driver.Recoverable(errors.New("no"))
				}
				return life
			}
			s.fake.Slow(drivertest.Start, time.Duration(at.IntN(3000))*time.Millisecond)
			s.fake.Slow(drivertest.Prepare, time.Duration(at.IntN(3000))*time.Millisecond)
			when := time.Now().Add(time.Duration(at.IntN(60000)) * time.Millisecond)
			killed := 0 // lives that began before the kill was accepted
			var once sync.Once
			kill := func(ctx context.Context, r *taskrunner.TaskRunner) {
				select {
				case <-time.After(time.Until(when)):
				case <-ctx.Done():
					return
				}
				if r.Kill(ctx, taskrunner.KillRequest{}) == nil {
					once.Do(func() { killed = s.fake.Lives() })
				}
			}
			for range at.IntN(4) {
				crash := statetest.CrashAt
				if at.IntN(2) == 0 {
					crash = statetest.CrashAfter
				}
				write, step := 0, 1+at.IntN(30)
				if at.IntN(2) == 0 {
					write, step = 1+at.IntN(8), 0
				}
				if !s.life(newDeath(step), crash(s.store, write), kill) {
					break
				}
				time.Sleep(time.Duration(at.IntN(5000)) * time.Millisecond)
			}
			s.rest(kill)
			if killed > 0 {
				require.LessOrEqual(t, s.fake.Lives(), killed+1, "started after an accepted kill")
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
