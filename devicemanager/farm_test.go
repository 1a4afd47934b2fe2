// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

// farm is a Launcher in memory: what it launches are lives of fake plugins.
type farm struct {
	mu       sync.Mutex
	programs map[string]*program
	swept    []string
}

type program struct {
	fake     *devicetest.Fake // the machine's devices; each process sees the same
	id       string           // of the program
	fails    []error          // of launches to come
	quits    int              // processes to come that end at once
	launches []time.Time
	lives    []*life
}

func newFarm(fakes ...*devicetest.Fake) *farm {
	f := &farm{programs: map[string]*program{}}
	for _, k := range fakes {
		f.programs[k.Name] = &program{fake: k}
	}
	return f
}

func (f *farm) List() (list []devicemanager.Program, err error) {
	for n := range f.programs {
		list = append(list, devicemanager.Program{Name: n, ID: f.programs[n].id})
	}
	slices.SortFunc(list, func(a, b devicemanager.Program) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (f *farm) Launch(_ context.Context, name string, _ devicemanager.Launch) (devicemanager.Plugin, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.programs[name]
	p.launches = append(p.launches, time.Now())
	if len(p.fails) > 0 {
		err := p.fails[0]
		p.fails = p.fails[1:]
		return nil, err
	}
	v := &life{p: p, done: make(chan struct{})}
	p.lives = append(p.lives, v)
	if p.quits > 0 {
		p.quits--
		v.die()
	}
	return v, nil
}

func (f *farm) Sweep(dir string) error {
	f.swept = append(f.swept, dir)
	return nil
}

// launched is when a program was started.
func (f *farm) launched(name string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.programs[name].launches)
}

// last is a program's latest process.
func (f *farm) last(name string) *life {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.programs[name]
	return p.lives[len(p.lives)-1]
}

// life is a process, and the plugin in it.
type life struct {
	p    *program
	once sync.Once
	done chan struct{}
}

func (v *life) die()                        { v.once.Do(func() { close(v.done) }) }
func (v *life) Device() device.Plugin       { return &front{v.p.fake, v} }
func (v *life) PID() int                    { return 1000 }
func (v *life) Done() <-chan struct{}       { return v.done }
func (v *life) How() string                 { return "killed" }
func (v *life) Close(context.Context) error { v.die(); return nil }

// front makes calls of a dead process end as they do on the wire.
type front struct {
	*devicetest.Fake
	v *life
}

// bound ends with the process.
func (d *front) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-d.v.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (d *front) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	own, cancel := d.bound(ctx)
	in, err := d.Fake.Fingerprint(own)
	out := make(chan device.Fingerprint, 1)
	go func() {
		defer close(out)
		defer cancel()
		for fp := range in {
			out <- fp
		}
		if ctx.Err() == nil {
			out <- device.Fingerprint{Err: driver.ErrPluginGone}
		}
	}()
	return out, err
}

func (d *front) Reserve(ctx context.Context, ids []string) (device.Reservation, error) {
	own, cancel := d.bound(ctx)
	defer cancel()
	r, err := d.Fake.Reserve(own, ids)
	select {
	case <-d.v.done:
		return device.Reservation{}, driver.ErrPluginGone
	default:
		return r, err
	}
}

func (d *front) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	own, cancel := d.bound(ctx)
	context.AfterFunc(own, cancel)
	return d.Fake.Stats(own, interval)
}

// agent runs a manager.
type agent struct {
	*devicemanager.Manager
	t    *testing.T
	stop func()
}

func newAgent(t *testing.T, cfg devicemanager.Config) *agent {
	t.Helper()
	m, err := devicemanager.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return &agent{m, t, sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})}
}

func ask(name string, count int) spec.DeviceRequest {
	return spec.DeviceRequest{Name: name, Count: count}
}

func wants(requests ...spec.DeviceRequest) *spec.Resources { return &spec.Resources{Devices: requests} }

// get reserves for the only task of an alloc.
func (a *agent) get(alloc string, res *spec.Resources) ([]string, error) {
	_, given, err := a.Reserve(a.t.Context(), alloc, "t", res, false)
	return names(given), err
}

func (a *agent) must(alloc string, res *spec.Resources) []string {
	a.t.Helper()
	got, err := a.get(alloc, res)
	require.NoError(a.t, err)
	return got
}

func (a *agent) release(alloc string) {
	a.t.Helper()
	require.NoError(a.t, a.Release(a.t.Context(), alloc, "t"))
}

func names(given []spec.DeviceInstance) (out []string) {
	for _, g := range given {
		for _, id := range g.IDs {
			out = append(out, g.Name+"/"+id)
		}
	}
	return out
}

// gpus is a fake with that many healthy ones.
func gpus(name string, ids ...string) *devicetest.Fake {
	return &devicetest.Fake{Name: name, Groups: []device.Group{devicetest.Make("acme/gpu/"+name, nil, ids...)}}
}

var errStart = errors.New("its library is not there")
