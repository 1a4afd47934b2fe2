// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

var (
	// ErrUnknownDriver says that no program of this node is that driver.
	ErrUnknownDriver = errors.New("drivermanager: unknown driver")
	// ErrRunning says that Run was called twice.
	ErrRunning = errors.New("drivermanager: runs already")
)

// Manager holds the drivers of a node. Its methods may be called from any
// goroutine, also before Run and after it.
type Manager struct {
	cfg Config

	mu      keeper.Mutex // notified of all below
	insts   []*instance  // grows
	drivers map[string]*managed
	started bool
	ended   bool
	end     bool // programs end with Run
	subs    map[owner]*func(driver.Event)
	held    []driver.Event // nobody has asked for these yet; oldest first
}

// owner is whom a driver's event is for.
type owner struct{ alloc, task string }

// Status is one program as an operator sees it.
type Status struct {
	Program     string
	Driver      string // its name; empty while it is not known
	Version     string
	Health      driver.HealthState // empty until its first word
	Description string
	Attributes  map[string]string
	PID         int // 0 for a driver in this process, and while no process runs
	InProcess   bool
	Restarts    int  // deaths so far, in this agent
	OtherKind   bool // it is a plugin, but no driver
}

// New makes a manager and reads the lists of its launchers. Nothing is started. The
// error lists all faults.
func New(cfg Config) (*Manager, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg.withDefaults(), drivers: map[string]*managed{}, subs: map[owner]*func(driver.Event){}, end: cfg.EndPrograms || cfg.Records == nil}
	err := m.Rescan()
	for name := range m.cfg.Programs {
		if m.instance(name) == nil && !m.cfg.Programs[name].Disabled {
			m.cfg.Log.Warn("there are settings for a program that is not there, or not allowed", "program", name)
		}
	}
	return m, err
}

// Rescan reads the lists of the launchers again: for an operator who changed a
// directory of programs, since nobody watches it. New ones are started. One that was replaced is ended in
// order, and its tasks are given to the new one, which their waiters do not notice.
// One that is gone is left as it is; the next agent does not use it. A new program
// takes no driver's name from one that is there. Rescan does not wait for any of
// that; the error is that of a list, and the others were read.
func (m *Manager) Rescan() error {
	var errs []error
	seen := map[string]bool{}
	for n, l := range m.cfg.Launchers {
		list, err := l.List()
		errs = append(errs, err)
		for _, p := range list {
			if seen[p.Name] {
				m.cfg.Log.Warn("two programs have one name, the later one is not used", "program", p.Name)
				continue
			}
			seen[p.Name] = true
			m.offer(n, p)
		}
	}
	return errors.Join(errs...)
}

// offer takes a program that a launcher has.
func (m *Manager) offer(launch int, p Program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.insts, func(i *instance) bool { return i.program.Name == p.Name })
	set := m.cfg.Programs[p.Name]
	switch {
	case set.Disabled || !m.cfg.allowed(p.Name):
	case at < 0:
		i := &instance{m: m, launcher: m.cfg.Launchers[launch], launch: launch, program: p, set: set, rank: len(m.insts),
			log: m.cfg.Log.Named(p.Name), wake: make(chan struct{}, 1), evict: make(chan struct{})}
		m.insts = append(m.insts, i)
		if p.Driver != "" {
			m.claim(i, p.Driver)
		}
		m.mu.Notify()
	case m.insts[at].launch == launch && m.insts[at].program.ID != p.ID:
		i := m.insts[at]
		i.log.Info("the program was replaced")
		i.program.ID = p.ID
		select {
		case i.wake <- struct{}{}:
		default:
		}
	}
}

// EndPrograms has Run end all processes when its context ends, also those that
// could be reattached to: for an agent that leaves nothing behind.
func (m *Manager) EndPrograms() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end = true
}

func (m *Manager) ends() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.end
}

// Run finds, starts and keeps all drivers until ctx ends. Then their processes
// are let go of, or ended where nothing could find them again, and it returns once
// nothing of it runs any more. It runs once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		return ErrRunning
	}
	m.started = true
	m.mu.Notify()
	m.mu.Unlock()
	err := m.adopt()
	if err == nil {
		keeper.Each(ctx, &m.mu, func() ([]*instance, bool) { return m.insts, false }, func(i *instance) { i.run(ctx) })
	}
	m.mu.Lock()
	m.ended = true
	m.mu.Notify()
	m.mu.Unlock()
	return err
}

// stored is what Records keep.
type stored struct {
	Launcher int             `json:"launcher"`
	Driver   string          `json:"driver"`
	Print    string          `json:"print"` // of program and settings
	Record   json.RawMessage `json:"record"`
}

// adopt gives each instance its record and ends the processes that nothing here
// accounts for.
func (m *Manager) adopt() error {
	records := map[string]json.RawMessage{}
	if m.cfg.Records != nil {
		var err error
		if records, err = m.cfg.Records.Load(); err != nil {
			return err
		}
	}
	keep := make([][]json.RawMessage, len(m.cfg.Launchers))
	for _, name := range slices.Sorted(maps.Keys(records)) {
		var s stored
		if err := json.Unmarshal(records[name], &s); err != nil || s.Launcher < 0 || s.Launcher >= len(keep) {
			s.Launcher = -1
		}
		if i := m.instance(name); i != nil && i.launch == s.Launcher {
			i.stored = &s
			keep[s.Launcher] = append(keep[s.Launcher], s.Record)
			if s.Driver != "" {
				m.mu.Lock()
				m.claim(i, s.Driver)
				m.mu.Unlock()
			}
			continue
		}
		m.cfg.Log.Info("a driver's program is not used any more, its process ends", "program", name)
		if s.Launcher >= 0 {
			if err := m.cfg.Launchers[s.Launcher].Remove(s.Record); err != nil {
				m.cfg.Log.Warn("removing what a driver left", "program", name, "error", err)
			}
		}
		m.unrecord(m.cfg.Log, name)
	}
	if m.cfg.Dir != "" {
		for n, l := range m.cfg.Launchers {
			if err := l.Sweep(m.cfg.Dir, keep[n]); err != nil {
				m.cfg.Log.Warn("removing what drivers left", "error", err)
			}
		}
	}
	return nil
}

// unrecord forgets a process. A record too many is found to be stale later.
func (m *Manager) unrecord(log hclog.Logger, program string) {
	if m.cfg.Records == nil {
		return
	}
	if err := m.cfg.Records.Delete(program); err != nil {
		log.Warn("forgetting a driver's process", "program", program, "error", err)
	}
}

func (m *Manager) instance(program string) *instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.insts {
		if i.program.Name == program {
			return i
		}
	}
	return nil
}

// claim gives a driver's name to an instance, unless one of a higher rank has it;
// m.mu is held. Whoever had it goes.
func (m *Manager) claim(i *instance, name string) *managed {
	d := m.drivers[name]
	switch {
	case d == nil:
		d = &managed{m: m, name: name, by: i, tasks: map[string]*driver.Handle{}}
		m.drivers[name] = d
	case d.by == i:
	case d.by.rank < i.rank:
		return nil
	default:
		d.by.evicted(name)
		d.by, d.cur = i, nil
	}
	i.managed = d
	return d
}

// Driver returns the driver of that name, which follows its program from then on;
// one in this process is returned as it is. A driver that is just starting is
// waited for, no longer than Config.Wait, then the error is driver.ErrUnavailable
// and recoverable; one that no program is, is ErrUnknownDriver as soon as all have
// said their first word.
func (m *Manager) Driver(ctx context.Context, name string) (driver.Driver, error) {
	var d *managed
	var own driver.Driver
	var unknown error
	err := m.mu.Await(ctx, m.cfg.Wait, func() bool {
		if d = m.drivers[name]; d != nil {
			own = d.own
			return d.known || m.ended
		}
		unknown = m.check(name)
		return unknown != nil
	})
	switch {
	case own != nil:
		return own, nil
	case unknown != nil:
		return nil, unknown
	case err == nil && d.ready():
		return d, nil
	case err == nil, errors.Is(err, keeper.ErrTooLong):
		return nil, driver.Recoverable(fmt.Errorf("%w: driver %q has not started%s", driver.ErrUnavailable, name, m.why(name)))
	}
	return nil, err
}

// Check returns ErrUnknownDriver for the name of a driver that no program is. As
// long as one that is starting could be it there is no error. It does not block.
func (m *Manager) Check(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drivers[name] != nil {
		return nil
	}
	return m.check(name)
}

// check is Check of a name that nobody has; m.mu is held.
func (m *Manager) check(name string) error {
	if m.ended || m.complete() && !m.maybe(name) {
		return m.unknown(name)
	}
	return nil
}

// complete says whether every program has said its first word; m.mu is held.
func (m *Manager) complete() bool {
	return m.started && !slices.ContainsFunc(m.insts, func(i *instance) bool { return i.health == "" })
}

// maybe says whether a program that was never seen to run could be that driver;
// m.mu is held.
func (m *Manager) maybe(name string) bool {
	return slices.ContainsFunc(m.insts, func(i *instance) bool { return i.managed == nil && !i.refused && i.could(name) })
}

// unknown is the error about a name; m.mu is held.
func (m *Manager) unknown(name string) error {
	have := slices.Sorted(maps.Keys(m.drivers))
	if len(have) == 0 {
		have = []string{"none"}
	}
	text := fmt.Sprintf("this node has %s", strings.Join(have, ", "))
	for _, i := range m.insts {
		if i.managed == nil && i.description != "" {
			text += fmt.Sprintf("; program %s: %s", i.program.Name, i.description)
		}
	}
	return fmt.Errorf("%w %q: %s", ErrUnknownDriver, name, text)
}

// why says what is wrong with a driver's program, as far as that is known.
func (m *Manager) why(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil && d.by.description != "" {
		return ": " + d.by.description
	}
	for _, i := range m.insts {
		if i.managed == nil && i.description != "" && i.could(name) {
			return ": " + i.description
		}
	}
	return ""
}

// Ready blocks until every program has said its first word, for Config.Wait at
// most, and returns the names of those that have not.
func (m *Manager) Ready(ctx context.Context) (silent []string) {
	// Whatever ended the wait, the silent ones tell.
	_ = m.mu.Await(ctx, m.cfg.Wait, func() bool { return m.complete() || m.ended })
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
	return m.status()
}

func (m *Manager) status() []Status {
	out := make([]Status, 0, len(m.insts))
	for _, i := range m.insts {
		s := Status{Program: i.program.Name, Health: i.health, Description: i.description, Attributes: maps.Clone(i.attributes), Restarts: i.restarts, OtherKind: i.other}
		s.Driver, s.PID, s.InProcess = i.program.Driver, i.pid, i.inProcess()
		if d := i.managed; d != nil && d.by == i {
			s.Driver, s.Version = d.name, d.info.Version
		}
		out = append(out, s)
	}
	return out
}

// Watch streams Status, the present one at once, then after changes; a slow reader
// gets the newest. The channel is closed when ctx or Run ends.
func (m *Manager) Watch(ctx context.Context) <-chan []Status {
	return keeper.Watch(ctx, &m.mu, func() ([]Status, bool) { return m.status(), m.ended })
}

// maxHeld is how many events wait for somebody to ask for them.
const maxHeld = 256

// Subscribe hands the events of a task to f until cancel is called; a task has one
// subscriber, the last. f is called by the manager's goroutines, and by this one
// with the latest of what was told before anybody asked: after a restart of the
// agent, drivers tell before the tasks are back. f must not block.
func (m *Manager) Subscribe(allocID, task string, f func(driver.Event)) (cancel func()) {
	o := owner{allocID, task}
	for m.mu.Lock(); ; m.mu.Lock() {
		var mine []driver.Event
		m.held = slices.DeleteFunc(m.held, func(e driver.Event) bool {
			is := e.AllocID == allocID && e.Task == task
			if is {
				mine = append(mine, e)
			}
			return is
		})
		if len(mine) == 0 {
			break
		}
		m.mu.Unlock()
		for _, e := range mine {
			f(e)
		}
	}
	defer m.mu.Unlock()
	m.subs[o] = &f
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.subs[o] == &f {
			delete(m.subs, o)
		}
	}
}

// deliver hands an event to whom it is for, or holds it until somebody asks.
func (m *Manager) deliver(log logger, e driver.Event) {
	m.mu.Lock()
	f := m.subs[owner{e.AllocID, e.Task}]
	if f == nil {
		m.held = append(m.held, e)
		if n := len(m.held); n > maxHeld {
			e, m.held = m.held[0], m.held[1:]
			defer log.Debug("nobody has asked for a task's event", "alloc_id", e.AllocID, "task", e.Task, "message", e.Message)
		}
	}
	m.mu.Unlock()
	if f != nil {
		(*f)(e)
	}
}

type logger interface {
	Debug(msg string, args ...any)
}
