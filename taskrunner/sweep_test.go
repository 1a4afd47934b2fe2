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

func (p *pool) hook() taskrunner.HookFunc {
	return hookOf(&taskrunner.Hook[lease]{Name: "lease",
		Prestart: func(_ context.Context, r *taskrunner.Request, l *lease) (taskrunner.Contribution, error) {
			p.note("prestart")
			if l.Port == 0 {
				l.Port = p.take(r.Alloc.ID + "/" + r.Task.Name)
			}
			return taskrunner.Contribution{Env: map[string]string{"PORT": fmt.Sprint(l.Port)}}, nil
		},
		Exited: func(context.Context, *taskrunner.Request, *lease) error { p.note("exited"); return nil },
		Stop: func(_ context.Context, r *taskrunner.Request, _ *lease) error {
			p.note("stop")
			p.give(r.Alloc.ID + "/" + r.Task.Name)
			return nil
		}})
}

// mortal is the way of one agent to the driver: once that agent is dead nothing
// gets through any more, as nothing does from a process that was killed.
type mortal struct {
	*drivertest.Fake
	dead <-chan struct{}
}

func (m *mortal) Driver(ctx context.Context, name string) (driver.Driver, error) {
	if _, err := m.Fake.Driver(ctx, name); err != nil {
		return nil, err
	}
	return m, m.alive()
}

func (m *mortal) alive() error {
	select {
	case <-m.dead:
		return driver.ErrUnavailable
	default:
		return nil
	}
}

func (m *mortal) Start(ctx context.Context, c driver.TaskConfig) (*driver.Handle, error) {
	if err := m.alive(); err != nil {
		return nil, err
	}
	return m.Fake.Start(ctx, c)
}

func (m *mortal) Stop(ctx context.Context, id, sig string, grace time.Duration) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Fake.Stop(ctx, id, sig, grace)
}

func (m *mortal) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Fake.Destroy(ctx, ref, force)
}

func (m *mortal) Recover(ctx context.Context, h *driver.Handle) error {
	if err := m.alive(); err != nil {
		return err
	}
	return m.Fake.Recover(ctx, h)
}

// sweep plays scenes over agents that die at the n-th write.
type sweep struct {
	*world
	leases  *pool
	cgroups *cgroupLog
	idem    bool
	reboot  bool
	agents  int
}

// life starts an agent whose store crashes at the n-th write (0: never), plays
// the scene, and waits for its end or death.
func (s *sweep) life(crash func(state.Store, int) *statetest.Crash, n int, scene func(context.Context, *taskrunner.TaskRunner)) (crashed bool) {
	s.agents++
	store := crash(s.store, n)
	ctx, cancel := context.WithCancelCause(s.Context())
	cfg := taskrunner.Config{Alloc: s.alloc, Task: "web", Drivers: &mortal{s.fake, store.Crashed()}, Store: store,
		Hooks: s.hooks, Cgroups: s.cgroups, Record: s.kinds.record}
	r, err := taskrunner.New(cfg)
	require.NoError(s, err)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	go func() {
		select {
		case <-store.Crashed():
			cancel(statetest.ErrCrash)
		case <-r.Done():
		}
	}()
	go scene(ctx, r)
	err = <-ended
	cancel(nil)
	synctest.Wait()
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
func scene(ctx context.Context, r *taskrunner.TaskRunner) {
	after := func(d time.Duration, f func() error) {
		select {
		case <-time.After(d):
			_ = f()
		case <-ctx.Done():
		}
	}
	for s := range r.Watch(ctx) {
		if s.Phase == taskrunner.Running && s.Restarts < 2 && s.Restarting == nil {
			after(2*time.Minute, func() error { return r.Restart(ctx, taskrunner.RestartRequest{Reason: "template"}) })
		}
		if s.Phase == taskrunner.Running && s.Restarts >= 2 && s.Kill == nil {
			after(time.Minute, func() error { return r.Kill(ctx, taskrunner.KillRequest{}) })
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
	}{
		{"before the write", statetest.CrashAt, true, false},
		{"after the write", statetest.CrashAfter, true, false},
		{"before, starts cannot be repeated", statetest.CrashAt, false, false},
		{"after, starts cannot be repeated", statetest.CrashAfter, false, false},
		{"before, and the machine too", statetest.CrashAt, true, true},
		{"after, and the machine too", statetest.CrashAfter, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for n := 1; ; n++ {
				crashed := false
				for second := range 6 { // a second crash soon after the first
					synctest.Test(t, func(t *testing.T) {
						s := &sweep{world: newWorld(t), leases: &pool{}, cgroups: &cgroupLog{}, idem: tc.idem, reboot: tc.reboot}
						s.task().ShutdownDelay = 10 * time.Second
						s.fake.Script = script(exits(time.Minute, 1), forever())
						s.fake.Capabilities = &driver.Capabilities{IdempotentStart: tc.idem}
						s.hooks = []taskrunner.HookFunc{s.leases.hook()}
						crashed = s.life(tc.crash, n, scene)
						if crashed && second > 0 {
							s.life(tc.crash, second, scene)
						}
						for more := true; more; {
							require.Less(t, s.agents, 10)
							more = s.life(statetest.CrashAt, 0, scene)
						}
						s.balance()
						switch {
						case tc.reboot:
						case tc.idem:
							require.Equal(t, 3, s.fake.Lives(), "a start that is repeated is the same start")
						default:
							require.LessOrEqual(t, s.fake.Lives(), 3+s.agents-1, "one more for each agent that died")
						}
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

// Killed at any moment, with agents that die at any moment: the task ends, once.
func TestKillAnywhere(t *testing.T) {
	for seed := range uint64(1000) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			at := rand.New(rand.NewPCG(seed, 2))
			s := &sweep{world: newWorld(t), leases: &pool{}, cgroups: &cgroupLog{}}
			s.task().ShutdownDelay = time.Duration(at.IntN(3)) * time.Second
			s.task().Restart.Attempts = 20
			s.fake.Capabilities = &driver.Capabilities{IdempotentStart: at.IntN(2) == 0}
			s.fake.Script = func(int, driver.TaskConfig) drivertest.Life {
				life := exits(time.Duration(rnd.IntN(20))*time.Second, rnd.IntN(2))
				life.Term = time.Duration(rnd.IntN(12)-1) * time.Second
				if rnd.IntN(8) == 0 {
					life.Err = driver.Recoverable(errors.New("no"))
				}
				return life
			}
			s.fake.Slow(drivertest.Start, time.Duration(at.IntN(3000))*time.Millisecond)
			s.hooks = []taskrunner.HookFunc{s.leases.hook(), hookOf(&taskrunner.Hook[struct{}]{Name: "slow",
				Prestart: func(ctx context.Context, _ *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
					select {
					case <-time.After(3 * time.Second):
					case <-ctx.Done():
					}
					return c, nil
				}})}
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
				if !s.life(crash, 1+at.IntN(8), kill) {
					break
				}
				time.Sleep(time.Duration(at.IntN(5000)) * time.Millisecond)
			}
			for s.life(statetest.CrashAt, 0, kill) {
			}
			s.balance()
			if killed > 0 {
				require.LessOrEqual(t, s.fake.Lives(), killed+1, "started after an accepted kill")
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
