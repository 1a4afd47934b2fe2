// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

const (
	// launchTimeout bounds the start of a program, reattachTimeout a reattach.
	launchTimeout   = 2 * time.Minute
	reattachTimeout = 30 * time.Second
	// recoverTimeout bounds one task's recovery after its driver's death.
	recoverTimeout = 30 * time.Second
	recoverMany    = 16
	closeTimeout   = 10 * time.Second
)

// errRefused says that a program may not be used, whatever it does.
var errRefused = errors.New("drivermanager: refused")

// instance is one program and its process. Its goroutine owns what is not below
// "shared".
type instance struct {
	m        *Manager
	launcher Launcher
	launch   int     // of Config.Launchers
	program  Program // its ID is shared
	set      Settings
	rank     int
	log      hclog.Logger
	stored   *stored
	print    string        // of what the process was started with
	wake     chan struct{} // has something when the program was replaced
	evict    chan struct{} // closed when another took its driver's name
	gone     sync.Once

	// shared, under m.mu
	managed     *managed
	health      driver.HealthState
	description string
	attributes  map[string]string
	pid         int
	restarts    int
	refused     bool // for good
	other       bool // and because it is of another kind
}

func (i *instance) inProcess() bool {
	_, ok := i.launcher.(inProcess)
	return ok
}

// could says whether the program, which was never seen to run, could be the driver
// of that name.
func (i *instance) could(name string) bool {
	if i.program.Driver != "" {
		return i.program.Driver == name
	}
	return strings.Contains(i.program.Name, name)
}

// evicted tells the instance that its name is another's; m.mu is held.
func (i *instance) evicted(name string) {
	i.managed, i.refused = nil, true
	i.health, i.description, i.attributes = driver.Unhealthy, taken(name), nil
	i.gone.Do(func() { close(i.evict) })
}

func taken(name string) string {
	return fmt.Sprintf("another program is the driver %q already", name)
}

// say publishes the instance's state.
func (i *instance) say(fp driver.Fingerprint) {
	m := i.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if i.health != fp.Health || i.description != fp.Description {
		i.log.Info("driver", "health", fp.Health, "description", fp.Description)
	}
	i.health, i.description, i.attributes = fp.Health, fp.Description, fp.Attributes
	m.mu.Notify()
}

// run keeps the program running until ctx ends.
func (i *instance) run(ctx context.Context) {
	keeper.Keep(ctx, i.m.cfg.MaxBackoff, i.wake, i.live, func(err error, text string) bool {
		other := errors.Is(err, ErrOtherKind)
		useless := other || errors.Is(err, errRefused)
		fp := driver.Fingerprint{Health: driver.Unhealthy, Description: text}
		if useless {
			fp.Description = err.Error()
		}
		if other {
			fp.Health = driver.Undetected
		}
		i.judge(useless, other)
		i.say(fp)
		return useless
	})
}

// live starts the program, or finds its process again, and serves it to its end.
func (i *instance) live(ctx context.Context) error {
	i.judge(false, false)
	p, err := i.obtain(ctx)
	if err != nil {
		return err
	}
	return i.serve(ctx, p)
}

// judge says whether the program is refused. One that lost its driver's name is.
func (i *instance) judge(refused, other bool) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	select {
	case <-i.evict:
	default:
		i.refused, i.other = refused, other
	}
}

// fingerprint changes with everything that a process keeps from its start.
func (i *instance) fingerprint() string {
	i.m.mu.Lock()
	id := i.program.ID
	i.m.mu.Unlock()
	b, err := json.Marshal(struct {
		ID  string
		Set Settings
		Env []string
	}{id, i.set, keeper.Environment(i.m.cfg.Env)})
	if err != nil {
		return "" // as raw JSON that is none: it is refused when it is decoded
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (i *instance) spec() Launch {
	return Launch{Dir: keeper.LaunchDir(i.m.cfg.Dir), Args: i.set.Args, Env: keeper.Environment(i.m.cfg.Env),
		Config: i.set.Config, Node: i.m.cfg.Node, Log: i.log}
}

// obtain finds the process of an earlier agent again or starts a new one.
func (i *instance) obtain(ctx context.Context) (Plugin, error) {
	i.print = i.fingerprint()
	if s := i.stored; s != nil {
		i.stored = nil
		p, err := i.reattach(ctx, s)
		if err == nil {
			i.log.Info("found the driver's process again")
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, err // the record stays for the next agent
		}
		i.log.Warn("the driver's process cannot be used any more and is replaced", "error", err)
		if err := i.launcher.Remove(s.Record); err != nil {
			i.log.Warn("removing what the driver left", "error", err)
		}
		i.m.unrecord(i.log, i.program.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	return i.launcher.Launch(ctx, i.program.Name, i.spec())
}

func (i *instance) reattach(ctx context.Context, s *stored) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, reattachTimeout)
	defer cancel()
	p, err := i.launcher.Reattach(ctx, i.program.Name, s.Record, i.spec())
	if err != nil {
		return nil, err
	}
	// A process keeps the configuration it was started with.
	if s.Print != i.print {
		return nil, errors.Join(errors.New("program or settings have changed"), p.Close(ctx))
	}
	return p, nil
}

func (i *instance) record(p Plugin, name string) error {
	rec := p.Record()
	if rec == nil || i.m.cfg.Records == nil {
		return nil
	}
	raw, err := json.Marshal(stored{Launcher: i.launch, Driver: name, Print: i.print, Record: rec})
	if err != nil {
		return err
	}
	return i.m.cfg.Records.Save(i.program.Name, raw)
}

// serve publishes a driver until its process, ctx or the right to its name ends,
// and says which.
func (i *instance) serve(ctx context.Context, p Plugin) (err error) {
	info := p.Driver().Info()
	d, err := i.enter(info)
	if err != nil {
		i.finish(ctx, p)
		return err
	}
	// A disk that is full must not keep a driver from its tasks: should we die
	// before it can be noted, the next agent ends it and recovers them by another.
	unnoted := i.record(p, info.Name)
	if unnoted != nil {
		i.log.Warn("the driver's process cannot be noted", "error", unnoted)
	}
	d.takeUp(ctx, p.Driver(), i.log)
	if !i.publish(d, p, info) {
		i.finish(ctx, p)
		return fmt.Errorf("%w: %s", errRefused, taken(info.Name))
	}
	own, cancel := context.WithCancel(ctx)
	var streams sync.WaitGroup
	streams.Go(func() { i.fingerprints(own, p.Driver()) })
	streams.Go(func() { i.events(own, p.Driver()) })
	select {
	case <-p.Done():
		err = fmt.Errorf("the driver's process ended: %s", p.How())
	case <-i.evict:
		err = fmt.Errorf("%w: %s", errRefused, taken(info.Name))
	case <-i.wake:
		err = keeper.ErrReplaced
	case <-ctx.Done():
	}
	i.withdraw(d, err)
	cancel()
	streams.Wait()
	if ctx.Err() != nil && p.Record() != nil && !i.m.ends() && (unnoted == nil || i.record(p, info.Name) == nil) {
		p.Detach()
		return nil
	}
	i.finish(ctx, p)
	return err
}

// finish ends a process and all that is kept of it.
func (i *instance) finish(ctx context.Context, p Plugin) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		i.log.Warn("ending the driver's process", "error", err)
	}
	if p.Record() != nil {
		i.m.unrecord(i.log, i.program.Name)
	}
}

// enter takes the driver's name.
func (i *instance) enter(info driver.Info) (*managed, error) {
	if !i.m.cfg.allowed(info.Name) {
		return nil, fmt.Errorf("%w: the driver %q is not allowed here", errRefused, info.Name)
	}
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	d := i.m.claim(i, info.Name)
	if d == nil {
		return nil, fmt.Errorf("%w: %s", errRefused, taken(info.Name))
	}
	return d, nil
}

// publish makes the driver usable, unless its name was taken meanwhile.
func (i *instance) publish(d *managed, p Plugin, info driver.Info) bool {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	if d.by != i {
		return false
	}
	d.cur, d.info, d.known = p.Driver(), info, true
	if d.own = nil; p.Done() == nil {
		d.own = d.cur
	}
	d.life++
	i.pid = p.PID()
	i.m.mu.Notify()
	return true
}

func (i *instance) withdraw(d *managed, err error) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	if d.by == i {
		d.cur = nil
	}
	i.pid = 0
	if err != nil && !errors.Is(err, keeper.ErrReplaced) {
		i.restarts++
	}
	i.m.mu.Notify()
}

func (i *instance) fingerprints(ctx context.Context, d driver.Driver) {
	ch, err := d.Fingerprint(ctx)
	if err != nil {
		i.say(driver.Fingerprint{Health: driver.Unhealthy, Description: err.Error()})
		return
	}
	for fp := range ch {
		i.say(fp)
	}
}

// events hands on what the driver tells of its tasks. A stream that ends is opened
// again, a little later each time it brings nothing.
func (i *instance) events(ctx context.Context, d driver.Driver) {
	src, ok := d.(driver.EventSource)
	if !ok {
		return
	}
	for wait := keeper.FirstPause; ctx.Err() == nil; wait = keeper.Longer(wait, time.Minute) {
		ch, err := src.Events(ctx)
		if errors.Is(err, driver.ErrNotImplemented) || errors.Is(err, driver.ErrPluginGone) {
			return
		}
		if err == nil {
			for e := range ch {
				i.m.deliver(i.log, e)
				wait = keeper.FirstPause
			}
		}
		keeper.Pause(ctx, wait)
	}
}
