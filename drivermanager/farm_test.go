// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/drivermanager"
)

// farm is a Launcher in memory: what it launches are lives of fake drivers. It
// outlives managers, as processes outlive agents.
type farm struct {
	mu       sync.Mutex
	programs map[string]*program
	swept    [][]json.RawMessage
}

type program struct {
	id     string
	fake   *drivertest.Fake // the machine; each process is another driver in front of it
	fails  int              // launches to come that fail
	refuse error            // why all fail
	slow   time.Duration
	stale  bool // no reattach
	events chan driver.Event

	launches []drivermanager.Launch
	lives    []*life
	attached int
}

func newFarm(names ...string) *farm {
	f := &farm{programs: map[string]*program{}}
	for _, n := range names {
		f.programs[n] = &program{id: "1", fake: &drivertest.Fake{Name: n}, events: make(chan driver.Event)}
	}
	return f
}

func (f *farm) List() (list []drivermanager.Program, err error) {
	for n, p := range f.programs {
		list = append(list, drivermanager.Program{Name: "program-" + n, ID: p.id})
	}
	slices.SortFunc(list, func(a, b drivermanager.Program) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (f *farm) program(name string) *program { return f.programs[strings.TrimPrefix(name, "program-")] }

func (f *farm) Launch(ctx context.Context, name string, l drivermanager.Launch) (drivermanager.Plugin, error) {
	p := f.program(name)
	f.mu.Lock()
	p.launches = append(p.launches, l)
	slow, fails, refuse := p.slow, p.fails > 0, p.refuse
	if fails {
		p.fails--
	}
	f.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if fails || refuse != nil {
		return nil, cmp.Or(refuse, errors.New("its engine is not there"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.fake.Forget()
	v := &life{p: p, n: len(p.lives), done: make(chan struct{}), broken: make(chan struct{})}
	p.lives = append(p.lives, v)
	return v, nil
}

func (f *farm) Reattach(_ context.Context, name string, rec json.RawMessage, _ drivermanager.Launch) (drivermanager.Plugin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.program(name)
	_, n, err := f.named(rec)
	if err != nil || p.stale || n >= len(p.lives) || p.lives[n].gone() {
		return nil, errors.New("stale")
	}
	p.attached++
	old := p.lives[n]
	p.lives[n] = &life{p: p, n: n, done: old.done, broken: old.broken}
	return p.lives[n], nil
}

func (f *farm) Remove(rec json.RawMessage) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, n, err := f.named(rec)
	if err == nil && n < len(p.lives) && !p.lives[n].gone() {
		close(p.lives[n].done)
	}
	return err
}

// named reads a record.
func (f *farm) named(rec json.RawMessage) (p *program, n int, err error) {
	var r struct {
		Fake string
		N    int
	}
	if err := json.Unmarshal(rec, &r); err != nil {
		return nil, 0, err
	}
	if p = f.programs[r.Fake]; p == nil {
		return nil, 0, errors.New("nobody's record")
	}
	return p, r.N, nil
}

func (f *farm) Sweep(_ string, keep []json.RawMessage) error {
	f.swept = append(f.swept, keep)
	return nil
}

// last is a program's latest process.
func (f *farm) last(name string) *life {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.programs[name]
	return p.lives[len(p.lives)-1]
}

// life is a process, and the driver in it.
type life struct {
	p        *program
	n        int
	done     chan struct{}
	broken   chan struct{}
	detached bool
	closed   bool
}

func (v *life) gone() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// die ends the process, with its calls.
func (v *life) die() { close(v.done) }

func (v *life) Driver() driver.Driver { return &front{Fake: v.p.fake, v: v} }
func (v *life) Record() json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"fake":%q,"n":%d}`, v.p.fake.Name, v.n))
}
func (v *life) Done() <-chan struct{} { return v.done }
func (v *life) PID() int              { return 1000 + v.n }
func (v *life) How() string           { return "killed" }
func (v *life) Detach()               { v.detached = true }
func (v *life) Close(context.Context) error {
	v.closed = true
	if !v.gone() {
		close(v.done)
	}
	return nil
}

// front makes calls of a dead process end as they do on the wire.
type front struct {
	*drivertest.Fake
	v *life
}

func (d *front) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-d.v.done:
			cancel(driver.ErrPluginGone)
		case <-ctx.Done():
		}
	}()
	if d.v.gone() {
		return driver.ExitResult{}, driver.ErrPluginGone
	}
	return d.Fake.Wait(ctx, id)
}

func (d *front) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	if d.v.gone() {
		return driver.ErrPluginGone
	}
	return d.Fake.Stop(ctx, id, signal, grace)
}

func (d *front) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if d.v.gone() {
		return nil, driver.ErrPluginGone
	}
	h, err := d.Fake.Start(ctx, cfg)
	if d.v.gone() { // meanwhile
		return nil, driver.ErrPluginGone
	}
	return h, err
}

func (d *front) Events(ctx context.Context) (<-chan driver.Event, error) {
	out := make(chan driver.Event)
	go func() {
		defer close(out)
		for {
			select {
			case e := <-d.v.p.events:
				out <- e
			case <-d.v.done:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// agent runs a manager.
type agent struct {
	*drivermanager.Manager
	t    *testing.T
	stop func()
}

func newAgent(t *testing.T, cfg drivermanager.Config) *agent {
	t.Helper()
	m, err := drivermanager.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return &agent{m, t, sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})}
}

func (a *agent) driver(name string) driver.Driver {
	a.t.Helper()
	d, err := a.Driver(a.t.Context(), name)
	require.NoError(a.t, err)
	return d
}

func task(id string) driver.TaskConfig {
	return driver.TaskConfig{ID: id, Name: "t", Cgroup: "/cg/" + id}
}
