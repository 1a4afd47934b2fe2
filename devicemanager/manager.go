// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

// ErrRunning says that Run was called twice.
var ErrRunning = errors.New("devicemanager: runs already")

// Manager holds the devices of a node. Its methods may be called from any
// goroutine, also before Run and after it.
type Manager struct {
	cfg  Config
	boot string

	mu      keeper.Mutex // notified of all below
	insts   []*instance  // grows
	started bool
	ended   bool
	holds   map[Owner]*hold
	taken   map[place]Owner
	stale   map[Owner]bool // to be deleted from the store with the next write
}

// Owner is the task that has a device.
type Owner struct {
	AllocID string `json:"alloc_id"`
	Task    string `json:"task"`
}

// place names a device on this node.
type place struct{ group, id string }

// Status is one program as an operator sees it.
type Status struct {
	Program     string
	Plugin      string // what the plugin calls itself; empty while that is not known
	Version     string
	Health      driver.HealthState // empty until its first word; Undetected: it is not to be used
	Description string
	Groups      int
	PID         int // 0 for a plugin in this process, and while no process runs
	InProcess   bool
	Restarts    int  // deaths so far, in this agent
	OtherKind   bool // it is a plugin, but none of devices
}

// Group is a group of devices of this node, and who has them.
type Group struct {
	device.Group
	Plugin string           `json:"plugin"`
	Owners map[string]Owner `json:"owners,omitempty"` // by instance; free ones are not there
}

// New makes a manager, reads the lists of its launchers and what is reserved.
// Nothing is started. The error lists all faults.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg.withDefaults(), boot: bootclock.System().Now().Boot, holds: map[Owner]*hold{}, taken: map[place]Owner{}, stale: map[Owner]bool{}}
	err := m.Rescan()
	for name, set := range m.cfg.Programs {
		if !set.Disabled && !slices.ContainsFunc(m.insts, func(i *instance) bool { return i.program.Name == name }) {
			m.cfg.Log.Warn("there are settings for a program that is not there, or not allowed", "program", name)
		}
	}
	return m, errors.Join(err, m.load())
}

// Rescan reads the lists of the launchers again: for an operator who changed a
// directory of programs, since nobody watches it. New ones are started, one that was
// replaced is ended and the new one started; tasks keep their devices. One that is
// gone is left as it is. Rescan does not wait for any of that; the error is that of
// a list, and the others were read.
func (m *Manager) Rescan() error {
	var errs []error
	seen := map[string]bool{}
	for _, l := range m.cfg.Launchers {
		list, err := l.List()
		errs = append(errs, err)
		for _, p := range list {
			if seen[p.Name] {
				m.cfg.Log.Warn("two programs have one name, the later one is not used", "program", p.Name)
				continue
			}
			seen[p.Name] = true
			m.offer(l, p)
		}
	}
	return errors.Join(errs...)
}

// offer takes a program that a launcher has.
func (m *Manager) offer(l Launcher, p Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.insts, func(i *instance) bool { return i.program.Name == p.Name })
	set := m.cfg.Programs[p.Name]
	switch {
	case set.Disabled || !m.cfg.allowed(p.Name):
	case at < 0:
		m.insts = append(m.insts, &instance{m: m, launcher: l, program: p, set: set, log: m.cfg.Log.Named(p.Name), wake: make(chan struct{}, 1)})
		m.mu.Notify()
	case m.insts[at].program.ID != p.ID:
		i := m.insts[at]
		i.log.Info("the program was replaced")
		i.program.ID = p.ID
		select {
		case i.wake <- struct{}{}:
		default:
		}
	}
}

// Run starts and keeps all plugins until ctx ends. Then it ends their processes and
// returns once nothing of it runs any more. It runs once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		return ErrRunning
	}
	m.started = true
	m.mu.Notify()
	m.mu.Unlock()
	if m.cfg.Dir != "" {
		for _, l := range m.cfg.Launchers {
			if err := l.Sweep(m.cfg.Dir); err != nil {
				m.cfg.Log.Warn("removing what device plugins left", "error", err)
			}
		}
	}
	keeper.Each(ctx, &m.mu, func() ([]*instance, bool) { return m.insts, false }, func(i *instance) { i.run(ctx) })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.mu.Notify()
	return nil
}

// silent names the plugins whose word is awaited: those that have not spoken yet,
// and those that cannot now; m.mu is held.
func (m *Manager) silent() (names []string) {
	for _, i := range m.insts {
		if !i.refused && !i.current {
			names = append(names, i.program.Name)
		}
	}
	return names
}

// Ready blocks until every plugin has said its first word, for Config.Wait at most,
// and returns the names of those that have not. That there is nothing is a word.
func (m *Manager) Ready(ctx context.Context) (silent []string) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	// Whatever ended the wait, the silent ones tell.
	_ = m.mu.Await(ctx, 0, func() bool {
		return m.ended || m.started && !slices.ContainsFunc(m.insts, func(i *instance) bool { return i.health == "" })
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.insts {
		if i.health == "" {
			silent = append(silent, i.program.Name)
		}
	}
	return silent
}

// Status returns all programs, in the order of their launchers and names.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Status, 0, len(m.insts))
	for _, i := range m.insts {
		_, in := i.launcher.(inProcess)
		out = append(out, Status{Program: i.program.Name, Plugin: i.info.Name, Version: i.info.Version, Health: i.health,
			Description: i.description, Groups: len(i.groups), PID: i.pid, InProcess: in, Restarts: i.restarts, OtherKind: i.other})
	}
	return out
}

// Devices returns all devices and who has them, in the order of their plugins. It
// does not block. Those of a plugin that is away are there and not healthy. What is
// returned is the caller's but for attributes and instances, which are not changed.
func (m *Manager) Devices() []Group {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices()
}

func (m *Manager) devices() (out []Group) {
	for _, v := range m.views() {
		g := Group{Group: *v.group, Plugin: v.inst.info.Name}
		for _, in := range g.Instances {
			if o, ok := m.taken[place{g.ID(), in.ID}]; ok {
				if g.Owners == nil {
					g.Owners = map[string]Owner{}
				}
				g.Owners[in.ID] = o
			}
		}
		out = append(out, g)
	}
	return out
}

// Watch streams Devices, the present ones at once, then after changes; a slow
// reader gets the newest. The channel is closed when ctx or Run ends.
func (m *Manager) Watch(ctx context.Context) <-chan []Group {
	return keeper.Watch(ctx, &m.mu, func() ([]Group, bool) { return m.devices(), m.ended })
}

// Stats streams what the plugins measure, each plugin's devices by themselves,
// until ctx or Run ends. interval 0 is a second. Plugins that measure nothing are
// left out; what goes wrong is logged and tried again.
func (m *Manager) Stats(ctx context.Context, interval time.Duration) <-chan device.Stats {
	if interval <= 0 {
		interval = time.Second
	}
	out := make(chan device.Stats)
	go func() {
		defer close(out)
		keeper.Each(ctx, &m.mu, func() ([]*instance, bool) { return m.insts, m.ended }, func(i *instance) { i.stats(ctx, interval, out) })
	}()
	return out
}

// say is an error about something of a plugin.
func say(i *instance, err error) error {
	return fmt.Errorf("device plugin %s: %w", i.program.Name, err)
}
