// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package drivertest is what tests of drivers and of their users need: Fake, a
// driver in memory whose tasks do what a script says, and Suite, which every
// real driver must pass.
//
//	Fake ── what the driver remembers   tasks: gone with Forget, LoseAll
//	     └─ what the "machine" runs     processes: gone with their exit, with
//	                                    Destroy and with Reboot
//
// A Fake outlives the runners that use it, as tasks outlive their agent: give it
// to the next one to play a restart. It holds no goroutine, but for commands and
// streams of samples, and tells time by the time package only, so it lives in
// virtual time (testing/synctest).
package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// Forever is a Life that does not end by itself.
const Forever = time.Duration(-1)

// Life is what one start leads to.
type Life struct {
	Run  time.Duration     // until it ends by itself; Forever: never
	Exit driver.ExitResult // … and how
	// Err fails the start; nothing is left of it.
	Err error
	// Term is how long it goes on after a stop signal; Forever: it ignores them.
	Term time.Duration
	// TermExit is how it ends then; zero is death by SIGTERM.
	TermExit driver.ExitResult
}

// Method names a method of the driver to count it or to disturb it.
type Method string

// The methods.
const (
	Start   Method = "start"
	Recover Method = "recover"
	Wait    Method = "wait"
	Stop    Method = "stop"
	Destroy Method = "destroy"
	Prepare Method = "prepare"
	Signal  Method = "signal"
	Exec    Method = "exec"
	Stats   Method = "stats"
)

// Fake is a scripted driver in memory. Set the exported fields before its first
// use; the zero Fake runs every task for ever. All methods may be called from any
// goroutine.
type Fake struct {
	Name         string // "" is "fake"
	Capabilities *driver.Capabilities
	Schema       *driver.Schema
	// Script says what the n-th start of all, from 0, leads to. Nil: Forever.
	Script func(n int, cfg driver.TaskConfig) Life
	// Command is what Exec does. It must return soon after ctx has ended. Nil copies
	// Stdin to Stdout.
	Command func(ctx context.Context, cfg driver.TaskConfig, req driver.ExecRequest) (driver.ExitResult, error)
	// Usage is the n-th sample of a stream, from 0; its Time is set. Nil counts up.
	Usage func(n int) driver.Usage

	mu       sync.Mutex
	starts   int                 // calls of Script
	lives    int                 // processes
	tasks    map[string]*process // what the driver remembers, by task ID
	procs    map[int]*process    // what runs or has an exit that nobody acknowledged, by pid
	counts   map[Method]int
	disturb  map[Method]*disturbance
	signals  []string
	stops    []StopCall
	commands [][]string
	configs  []driver.TaskConfig
	faults   []string
	broken   chan struct{} // closed to break all Waits
	breakBy  error
}

// StopCall is one call of Stop.
type StopCall struct {
	ID, Signal string
	Grace      time.Duration
}

type process struct {
	pid     int
	cfg     driver.TaskConfig
	life    Life
	done    chan struct{}
	exit    driver.ExitResult
	end     *time.Timer // by itself
	kill    *time.Timer // by escalation
	killT   time.Time
	lost    bool // no Recover finds it
	adopted bool // whoever kept the time of its stop has died
	silent  bool // … and was not there when it ended, so that output was lost
}

type disturbance struct {
	fail int // how many calls; below 0: all
	err  error
	slow time.Duration
	hang chan struct{}
}

// Driver returns f for its own name, so that f is a runner's source of drivers.
func (f *Fake) Driver(_ context.Context, name string) (driver.Driver, error) {
	if name != f.name() {
		return nil, fmt.Errorf("drivertest: no driver %q here, only %q", name, f.name())
	}
	return f, nil
}

func (f *Fake) name() string {
	if f.Name == "" {
		return "fake"
	}
	return f.Name
}

// Info is what the fields say; by default starts are idempotent, signals are
// sent and commands run.
func (f *Fake) Info() driver.Info {
	c := driver.Capabilities{SendSignals: true, Exec: true, IdempotentStart: true}
	if f.Capabilities != nil {
		c = *f.Capabilities
	}
	return driver.Info{Name: f.name(), Version: "1", Capabilities: c, TaskSchema: f.Schema}
}

// Fingerprint says once that the driver is healthy.
func (f *Fake) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	c := make(chan driver.Fingerprint, 1)
	c <- driver.Fingerprint{Health: driver.Healthy, Attributes: map[string]string{"driver." + f.name(): "1"}}
	context.AfterFunc(ctx, func() { close(c) })
	return c, nil
}

// enter counts a call and disturbs it as asked.
func (f *Fake) enter(ctx context.Context, m Method) error {
	f.mu.Lock()
	f.init()
	f.counts[m]++
	var d disturbance
	if p := f.disturb[m]; p != nil {
		d = *p
		if p.fail > 0 {
			p.fail--
		}
	}
	f.mu.Unlock()
	if d.hang != nil {
		<-d.hang
	}
	if d.slow > 0 {
		t := time.NewTimer(d.slow)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if d.fail != 0 {
		return d.err
	}
	return nil
}

func (f *Fake) init() {
	if f.tasks == nil {
		f.tasks, f.procs = map[string]*process{}, map[int]*process{}
		f.counts, f.disturb = map[Method]int{}, map[Method]*disturbance{}
		f.broken = make(chan struct{})
	}
}

// Prepare does nothing but what Fail, Slow and Hang ask for.
func (f *Fake) Prepare(ctx context.Context, _ driver.TaskConfig, _ func(driver.Event)) error {
	return f.enter(ctx, Prepare)
}

// Start begins a life. A second process of one task is a fault that Check tells.
func (f *Fake) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	if err := f.enter(ctx, Start); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.known(cfg.ID); p != nil {
		f.tasks[cfg.ID] = p
		if f.Info().Capabilities.IdempotentStart {
			return f.handle(p), nil
		}
		return nil, fmt.Errorf("%w: %s", driver.ErrTaskExists, cfg.ID)
	}
	for _, o := range f.procs {
		if owner(o.cfg) == owner(cfg) && !o.ended() {
			f.fault("%s started while %s (pid %d) lives", cfg.ID, o.cfg.ID, o.pid)
		}
	}
	life := Life{Run: Forever}
	if f.Script != nil {
		life = f.Script(f.starts, cfg)
	}
	f.starts++
	f.configs = append(f.configs, cfg)
	if life.Err != nil {
		return nil, life.Err
	}
	f.lives++
	p := &process{pid: 1000 + f.lives, cfg: cfg, life: life, done: make(chan struct{})}
	f.tasks[cfg.ID], f.procs[p.pid] = p, p
	if life.Run >= 0 {
		p.end = time.AfterFunc(life.Run, func() { f.exited(p, life.Exit) })
	}
	return f.handle(p), nil
}

// known finds a task by its ID, also one of an earlier instance.
func (f *Fake) known(id string) *process {
	if p := f.tasks[id]; p != nil {
		return p
	}
	for _, p := range f.procs {
		if p.cfg.ID == id && !p.lost {
			return p
		}
	}
	return nil
}

// owner is the ID without the attempt.
func owner(cfg driver.TaskConfig) string { return cfg.ID[:strings.LastIndexByte("/"+cfg.ID, '/')] }

func (f *Fake) handle(p *process) *driver.Handle {
	raw, _ := json.Marshal(p.pid)
	return &driver.Handle{Driver: f.name(), TaskID: p.cfg.ID, Version: 1, PID: p.pid, State: raw}
}

// proven returns the process that the handle names, if it is that task's.
func (f *Fake) proven(h *driver.Handle) *process {
	var pid int
	if h == nil || json.Unmarshal(h.State, &pid) != nil {
		return nil
	}
	if p := f.procs[pid]; p != nil && p.cfg.ID == h.TaskID {
		return p
	}
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (f *Fake) exited(p *process, res driver.ExitResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finish(p, res)
}

func (f *Fake) finish(p *process, res driver.ExitResult) {
	if p.ended() {
		return
	}
	p.exit = res
	close(p.done)
	for _, t := range []*time.Timer{p.end, p.kill} {
		if t != nil {
			t.Stop()
		}
	}
}

// Recover finds the process of the handle, alive or not, unless it was lost.
func (f *Fake) Recover(ctx context.Context, h *driver.Handle) error {
	if err := f.enter(ctx, Recover); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.proven(h)
	if p == nil || p.lost {
		return fmt.Errorf("%w: %s", driver.ErrTaskNotFound, h.TaskID)
	}
	f.tasks[h.TaskID] = p
	return nil
}

func (f *Fake) task(id string) (*process, error) {
	if p, ok := f.tasks[id]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("%w: %s", driver.ErrTaskNotFound, id)
}

// Wait waits for the end of the task, or of what Break says.
func (f *Fake) Wait(ctx context.Context, id string) (driver.ExitResult, error) {
	if err := f.enter(ctx, Wait); err != nil {
		return driver.ExitResult{}, err
	}
	f.mu.Lock()
	p, err := f.task(id)
	broken := f.broken
	f.mu.Unlock()
	if err != nil {
		return driver.ExitResult{}, err
	}
	select {
	case <-p.done:
		return p.exit, nil
	default:
	}
	select {
	case <-p.done:
		return p.exit, nil
	case <-broken:
		f.mu.Lock()
		defer f.mu.Unlock()
		return driver.ExitResult{}, f.breakBy
	case <-ctx.Done():
		return driver.ExitResult{}, context.Cause(ctx)
	}
}

// Stop sends the stop signal; what it does is the script's. SIGKILL follows.
func (f *Fake) Stop(ctx context.Context, id, signal string, grace time.Duration) error {
	if err := f.enter(ctx, Stop); err != nil {
		return err
	}
	f.mu.Lock()
	f.stops = append(f.stops, StopCall{id, signal, grace})
	p, err := f.task(id)
	if err == nil && !p.ended() {
		f.term(p, grace)
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (f *Fake) term(p *process, grace time.Duration) {
	if at := time.Now().Add(grace); p.kill == nil || at.Before(p.killT) {
		if p.kill != nil {
			p.kill.Stop()
		}
		p.killT = at
		p.kill = time.AfterFunc(grace, func() { f.exited(p, driver.ExitResult{Code: 137, Signal: 9}) })
	}
	if p.life.Term >= 0 && p.life.Term <= grace {
		exit := p.life.TermExit
		if exit == (driver.ExitResult{}) {
			exit = driver.ExitResult{Code: 143, Signal: 15}
		}
		time.AfterFunc(p.life.Term, func() { f.exited(p, exit) })
	}
}

// Destroy forgets the task and kills what is left of it.
func (f *Fake) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	if err := f.enter(ctx, Destroy); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.known(ref.ID)
	if p == nil {
		p = f.proven(ref.Handle)
	}
	for _, o := range f.procs {
		if p == nil && ref.Cgroup != "" && o.cfg.Cgroup == ref.Cgroup {
			p = o
		}
	}
	switch {
	case p == nil && ref.Handle == nil && ref.Cgroup == "":
		return fmt.Errorf("%w: %s", driver.ErrTaskNotFound, ref.ID)
	case p == nil:
		return nil
	case !p.ended() && !force:
		return fmt.Errorf("%w: %s", driver.ErrTaskRunning, ref.ID)
	}
	f.finish(p, driver.ExitResult{Code: 137, Signal: 9})
	delete(f.tasks, ref.ID)
	delete(f.procs, p.pid)
	return nil
}

// Signal sends a signal. SIGKILL and SIGTERM do what they do, others are noted.
func (f *Fake) Signal(ctx context.Context, id, signal string) error {
	if err := f.enter(ctx, Signal); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	known := []string{"SIGHUP", "SIGINT", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGUSR2"}
	if !slices.Contains(known, signal) {
		return fmt.Errorf("%w: %q, known are %s", driver.ErrUnknownSignal, signal, strings.Join(known, ", "))
	}
	p, err := f.task(id)
	if err != nil {
		return err
	}
	f.signals = append(f.signals, signal)
	switch signal {
	case "SIGKILL":
		f.finish(p, driver.ExitResult{Code: 137, Signal: 9})
	case "SIGTERM":
		if p.life.Term >= 0 {
			f.finish(p, driver.ExitResult{Code: 143, Signal: 15})
		}
	}
	return nil
}

// Inspect says whether the task runs.
func (f *Fake) Inspect(_ context.Context, id string) (driver.TaskStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, err := f.task(id)
	if err != nil {
		return driver.TaskStatus{}, err
	}
	st := driver.TaskStatus{ID: id, State: "running", Attrs: map[string]string{"adopted": fmt.Sprint(p.adopted)}}
	if p.ended() {
		st.State, st.Exit = "exited", &p.exit
		if p.silent {
			st.Attrs["output_lost"] = "true"
		}
	}
	return st, nil
}

func (f *Fake) fault(format string, args ...any) {
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// ids of a set of processes, sorted.
func ids(ps map[int]*process, keep func(*process) bool) []string {
	var out []string
	for _, pid := range slices.Sorted(maps.Keys(ps)) {
		if keep(ps[pid]) {
			out = append(out, ps[pid].cfg.ID)
		}
	}
	return out
}
