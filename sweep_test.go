// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/supervisor"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// The crash sweep of the whole stack: an Agent on its state file, directories and
// all, dies before or after each of its writes, or as one of its hooks is called,
// in the middle of a life with a prestart task, a sidecar, a leader that fails
// once, a restart asked for, an update, a shutdown delay and a stop. The next
// agent goes on. Whatever died when: nothing lives twice or is left, leases are
// given back, events have no gap, statuses never go back, the end is the same.

// mortal is the driver as one agent sees it: once that is dead nothing gets through.
type mortal struct {
	driver.Driver
	dead atomic.Bool
}

func (m *mortal) gone() error {
	if m.dead.Load() {
		return errors.Join(driver.ErrUnavailable, statetest.ErrCrash)
	}
	return nil
}

func (m *mortal) Start(ctx context.Context, c driver.TaskConfig) (*driver.Handle, error) {
	if err := m.gone(); err != nil {
		return nil, err
	}
	return m.Driver.Start(ctx, c)
}

func (m *mortal) Stop(ctx context.Context, id, sig string, grace time.Duration) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Driver.Stop(ctx, id, sig, grace)
}

func (m *mortal) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Driver.Destroy(ctx, ref, force)
}

func (m *mortal) Recover(ctx context.Context, h *driver.Handle) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Driver.Recover(ctx, h)
}

// pool is leased from by task and alloc hooks.
type pool struct {
	mu   sync.Mutex
	held map[string]bool
}

func (p *pool) set(who string, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[who] = held; !held {
		delete(p.held, who)
	}
}

// swept is one life under agents that die.
type swept struct {
	t       *testing.T
	raw     string // with raw_exec: where its main task logs its starts
	cfg     Config
	fake    *drivertest.Fake
	pool    *pool
	life    *life // of the agent of now
	dieAt   int64 // at that call of a hook; 0: never
	wrap    func(state.Store) *statetest.Crash
	n       *node
	died    bool
	seen    []allocrunner.Status
	tasks   map[string]int // highest attempt that ran
	desired Desired
	told    *listener // what all agents together have told
}

func newSwept(t *testing.T) *swept {
	s := &swept{t: t, fake: fake(), pool: &pool{held: map[string]bool{}}, tasks: map[string]int{}, told: newListener()}
	s.fake.Script = func(_ int, c driver.TaskConfig) drivertest.Life {
		switch {
		case c.Name == "init":
			return drivertest.Life{}
		case c.Name == "web" && c.Owner.Attempt == 0:
			return drivertest.Life{Run: 2 * time.Millisecond, Exit: driver.ExitResult{Code: 1}}
		}
		return drivertest.Life{Run: drivertest.Forever}
	}
	s.cfg = config(t, s.fake)
	return s
}

// life is that of one agent. What is left of it after its end knows no other.
type life struct {
	*mortal
	pool  *pool
	calls atomic.Int64 // of hooks
	dieAt int64
	once  sync.Once
	crash chan struct{} // closed when it has died
}

func (l *life) kill() { l.once.Do(func() { l.dead.Store(true); close(l.crash) }) }

// called is the beginning of a hook's callback, where the agent may die.
func (l *life) called(f func()) error {
	if l.calls.Add(1) == l.dieAt {
		l.kill()
	}
	if err := l.gone(); err != nil {
		return err
	}
	f()
	return nil
}

func (l *life) taskHook() taskrunner.HookFunc {
	return func(a *spec.Alloc, task *spec.Task) (taskrunner.AnyHook, error) {
		who := a.ID + "/" + task.Name
		type lease struct{ Held bool }
		nothing := func(context.Context, *taskrunner.Request, *lease) error { return l.called(func() {}) }
		return &taskrunner.Hook[lease]{Name: "lease",
			Prestart: func(_ context.Context, _ *taskrunner.Request, st *lease) (c taskrunner.Contribution, err error) {
				return c, l.called(func() { l.pool.set(who, true); st.Held = true })
			},
			Poststart: nothing, Update: nothing, Prekill: nothing, Exited: nothing,
			Stop: func(_ context.Context, _ *taskrunner.Request, st *lease) error {
				return l.called(func() { l.pool.set(who, false); st.Held = false })
			}}, nil
	}
}

func (l *life) allocHook() allocrunner.HookFunc {
	return func(a *spec.Alloc) (allocrunner.AnyHook, error) {
		nothing := func(context.Context, *allocrunner.Request, *bool) error { return l.called(func() {}) }
		set := func(held bool) func(context.Context, *allocrunner.Request, *bool) error {
			return func(_ context.Context, _ *allocrunner.Request, st *bool) error {
				return l.called(func() { l.pool.set(a.ID, held); *st = held })
			}
		}
		return &allocrunner.Hook[bool]{Name: "lease", Prerun: set(true), Postrun: set(false),
			Update: nothing, PreTaskRestart: nothing, Prekill: nothing, Destroy: nothing}, nil
	}
}

// begin starts an agent that dies as wrap and dieAt say; after it nobody does.
func (s *swept) begin() {
	l := &life{mortal: &mortal{Driver: s.fake}, pool: s.pool, dieAt: s.dieAt, crash: make(chan struct{})}
	s.life = l
	s.cfg.TaskHooks = func(std []taskrunner.HookFunc) []taskrunner.HookFunc { return append(std, l.taskHook()) }
	s.cfg.AllocHooks = func(std []allocrunner.HookFunc) []allocrunner.HookFunc { return append(std, l.allocHook()) }
	s.cfg.Drivers = []DriverFunc{InProcess(l.mortal)}
	if s.raw != "" {
		s.cfg.Drivers = []DriverFunc{func(p *supervisor.Pool) (driver.Driver, error) {
			raw, err := rawexec.New(rawexec.Config{Enabled: true})(p)
			l.Driver = raw
			return l.mortal, err
		}}
	}
	wrap := s.wrap
	s.n = start(s.t, s.cfg, func(a *Agent) {
		disk := statetest.CrashAt(a.store, 0)
		if wrap != nil {
			disk = wrap(a.store)
		}
		dead := deadStore{disk, l.mortal}
		a.store = dead
		a.box = a.newBox()
		go func() {
			select {
			case <-disk.Crashed():
				l.kill()
			case <-a.Done():
			}
		}()
	})
	go s.told.listen(context.WithoutCancel(s.t.Context()), s.n.Outbox()) // ends with the agent
}

// deadStore takes nothing from a dead agent.
type deadStore struct {
	*statetest.Crash
	d *mortal
}

func (s deadStore) Update(fn func(state.Tx) error) error {
	if err := s.d.gone(); err != nil {
		return err
	}
	err := s.Crash.Update(fn)
	if errors.Is(err, statetest.ErrCrash) {
		s.d.dead.Store(true) // before its caller goes on
	}
	return err
}

// reach asks for something, again if the agent has died meanwhile, until ok.
func (s *swept) reach(what string, ask func(), ok func(AllocStatus, bool) bool) {
	s.t.Helper()
	timeout := time.After(20 * time.Second)
	ask()
	for {
		changed := s.n.Changed()
		st, found := s.n.Alloc("a")
		s.look(st, found)
		if ok(st, found) {
			return
		}
		select {
		case <-changed:
		case <-s.life.crash:
			s.died, s.wrap, s.dieAt = true, nil, 0
			s.n.stop()
			s.fake.Forget()
			s.begin()
			ask()
		case <-timeout:
			s.t.Fatalf("not %s: %+v", what, st.Snapshot)
		}
	}
}

// look holds what is true at any moment.
func (s *swept) look(st AllocStatus, found bool) {
	if !found || st.Gone {
		return
	}
	if len(s.seen) == 0 || s.seen[len(s.seen)-1] != st.Status {
		s.seen = append(s.seen, st.Status)
	}
	for name, task := range st.Tasks {
		if task.State() == taskrunner.Running {
			require.GreaterOrEqual(s.t, task.Attempt, s.tasks[name], name)
			s.tasks[name] = task.Attempt
		}
	}
}

func (s *swept) want(index uint64, allocs ...*spec.Alloc) func() {
	return func() {
		s.desired = Desired{Index: index, Full: true, Allocs: allocs}
		if err := s.n.Apply(s.t.Context(), s.desired); err != nil && !errors.Is(err, statetest.ErrCrash) && s.life.gone() == nil {
			s.t.Fatalf("apply %d: %v", index, err)
		}
	}
}

// play is the life; it says whether an agent died in it.
func (s *swept) play() bool {
	al := &spec.Alloc{ID: "a", JobID: "job", Group: "g", ModifyIndex: 1, CreateTime: time.Unix(1, 0)}
	for _, t := range []spec.Task{
		{Name: "init", Lifecycle: &spec.Lifecycle{Hook: spec.LifecyclePrestart}},
		{Name: "side", Lifecycle: &spec.Lifecycle{Hook: spec.LifecyclePrestart, Sidecar: true}},
		{Name: "web", Leader: true, ShutdownDelay: 5 * time.Millisecond},
	} {
		t.Driver, t.KillTimeout = "fake", 50*time.Millisecond
		t.Restart = &spec.RestartPolicy{Attempts: 50, Delay: time.Millisecond, Mode: spec.RestartFail}
		if s.raw != "" {
			t.Driver, t.KillTimeout = "raw_exec", 5*time.Second
			t.Config = s.command(t.Name)
		}
		al.Tasks = append(al.Tasks, t)
	}
	updated := al.Clone()
	updated.ModifyIndex, updated.Meta = 2, map[string]string{"v": "2"}
	running := func(attempt int) func(AllocStatus, bool) bool {
		return func(st AllocStatus, _ bool) bool {
			web := st.Tasks["web"]
			return web.Phase == taskrunner.Running && web.Attempt >= attempt && st.Tasks["side"].Phase == taskrunner.Running
		}
	}
	s.begin()
	s.reach("running after a failure", s.want(1, al), running(1))
	from := s.n.attempt("web")
	s.reach("restarted", func() {
		if s.n.attempt("web") == from {
			_ = s.n.Restart(s.t.Context(), "a", allocrunner.RestartRequest{Task: "web"}) // lost with the agent, or asked again
		}
	}, running(from+1))
	s.reach("updated", s.want(2, updated), func(st AllocStatus, found bool) bool {
		return found && st.Alloc.Meta["v"] == "2" && running(from)(st, found)
	})
	s.reach("stopped", s.want(3, stopped(updated, 3)), func(st AllocStatus, _ bool) bool { return st.Done })
	end, _ := s.n.Alloc("a")
	require.Equal(s.t, allocrunner.Complete, end.Status, end.Description)
	s.reach("collected", s.want(4), func(_ AllocStatus, found bool) bool { return !found })
	s.balance()
	s.n.stop()
	return s.died
}

// command is what a real task runs. The main one fails the first time.
func (s *swept) command(task string) json.RawMessage {
	script := map[string]string{"init": "exit 0", "side": "exec sleep 1000",
		"web": `echo start >>` + s.raw + `; [ $(wc -l <` + s.raw + `) -gt 1 ] || exit 1; exec sleep 1000`}[task]
	raw, err := json.Marshal(map[string]any{"command": "/bin/sh", "args": []string{"-c", script}})
	require.NoError(s.t, err)
	return raw
}

func (n *node) attempt(task string) int {
	s, _ := n.Alloc("a")
	return s.Tasks[task].Attempt
}

// balance is what must hold in the end.
func (s *swept) balance() {
	s.fake.Check(s.t)
	if s.raw != "" {
		starts, err := os.ReadFile(s.raw)
		require.NoError(s.t, err)
		// One that fails, one that is restarted, perhaps before it has said so, one more.
		require.LessOrEqual(s.t, strings.Count(string(starts), "start"), 3, "a start that is repeated is the same start")
	}
	s.pool.mu.Lock()
	require.Empty(s.t, slices.Collect(maps.Keys(s.pool.held)), "leases")
	s.pool.mu.Unlock()
	order := []allocrunner.Status{"", allocrunner.Pending, allocrunner.Running, allocrunner.Complete}
	require.True(s.t, slices.IsSortedFunc(s.seen, func(a, b allocrunner.Status) int { return slices.Index(order, a) - slices.Index(order, b) }), "%v", s.seen)
	events, err := s.n.EventsSince(0, 0)
	require.NoError(s.t, err)
	s.told.heard(s.t, "a", uint64(len(events)))
	next := map[string]uint64{}
	var web []string
	for _, e := range events {
		next[e.Task]++
		require.Equal(s.t, next[e.Task], e.Event.Seq, "events of %s: a gap or one twice", e.Task)
		if e.Task == "web" {
			web = append(web, string(e.Event.Kind))
		}
	}
	require.Equal(s.t, []string{"Received", "Task Setup", "Started", "Terminated"}, web[:4])
	require.Contains(s.t, strings.Join(web, ", "), "Restart Signaled, Terminated, Restarting, Started")
	require.Equal(s.t, 2, len(slices.DeleteFunc(slices.Clone(web), func(k string) bool { return k != "Killing" && k != "Killed" })), "%v", web)
}

func TestCrashSweep(t *testing.T) {
	step := 14
	if os.Getenv("NODEKEEP_LONG") != "" {
		step = 1
	}
	sweep := func(name string, at func(*swept, int)) {
		t.Run(name, func(t *testing.T) {
			for n, died := 1, true; died; n += step {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					s := newSwept(t)
					at(s, n)
					died = s.play()
				})
				if t.Failed() {
					return
				}
			}
		})
	}
	sweep("before a write", func(s *swept, n int) {
		s.wrap = func(st state.Store) *statetest.Crash { return statetest.CrashAt(st, n) }
	})
	sweep("after a write", func(s *swept, n int) {
		s.wrap = func(st state.Store) *statetest.Crash { return statetest.CrashAfter(st, n) }
	})
	sweep("at a hook", func(s *swept, n int) { s.dieAt = int64(n) })
}

// A smaller grid with real processes.
func TestCrashSweepOfProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("supervisors need Linux")
	}
	for name, crash := range map[string]func(state.Store, int) *statetest.Crash{"before": statetest.CrashAt, "after": statetest.CrashAfter} {
		for n := 6; n < 40; n += 22 {
			t.Run(fmt.Sprintf("%s write %d", name, n), func(t *testing.T) {
				s := newSwept(t)
				s.raw = filepath.Join(t.TempDir(), "starts")
				s.wrap = func(st state.Store) *statetest.Crash { return crash(st, n) }
				s.play()
			})
		}
	}
}
