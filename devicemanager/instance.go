// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/keeper"
)

const (
	// launchTimeout bounds the start of a program, closeTimeout its end.
	launchTimeout = 2 * time.Minute
	closeTimeout  = 10 * time.Second
)

// instance is one program and its process.
type instance struct {
	m        *Manager
	launcher Launcher
	program  Program
	set      Settings
	log      hclog.Logger
	wake     chan struct{} // has something when the program was replaced

	// under m.mu
	cur         device.Plugin // nil while no process runs
	life        int           // counts processes
	info        device.Info
	health      driver.HealthState // empty until the first word
	description string
	groups      []device.Group
	current     bool // groups are what the plugin says now
	refused     bool // for good
	other       bool // and because it is of another kind
	pid         int
	restarts    int
}

// run keeps the program running until ctx ends.
func (i *instance) run(ctx context.Context) {
	keeper.Keep(ctx, i.m.cfg.MaxBackoff, i.wake, i.live, func(err error, text string) bool {
		if errors.Is(err, device.ErrDisabled) || errors.Is(err, ErrOtherKind) || errors.Is(err, driver.ErrNotImplemented) {
			i.refuse(err)
			return true
		}
		i.lose(driver.Unhealthy, text)
		return false
	})
}

// live starts the program and serves it until its process or ctx ends, or it
// refuses itself, and says which.
func (i *instance) live(ctx context.Context) (err error) {
	p, err := i.launch(ctx)
	if err != nil {
		return err
	}
	i.enter(p)
	own, cancel := context.WithCancelCause(ctx)
	var streams sync.WaitGroup
	streams.Go(func() {
		if err := i.fingerprints(own, p.Device()); err != nil {
			cancel(err)
		}
	})
	select {
	case <-p.Done():
		err = fmt.Errorf("the plugin's process ended: %s", p.How())
	case <-i.wake:
		err = keeper.ErrReplaced
	case <-own.Done():
		err = context.Cause(own)
	}
	cancel(nil)
	i.leave(ctx.Err() == nil && !errors.Is(err, keeper.ErrReplaced))
	streams.Wait()
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer stop()
	if cerr := p.Close(end); cerr != nil {
		i.log.Warn("ending the plugin's process", "error", cerr)
	}
	return err
}

func (i *instance) launch(ctx context.Context) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	return i.launcher.Launch(ctx, i.program.Name, Launch{Dir: keeper.LaunchDir(i.m.cfg.Dir), Args: i.set.Args,
		Env: keeper.Environment(i.m.cfg.Env), Config: i.set.Config, Log: i.log})
}

func (i *instance) enter(p Plugin) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.cur, i.info, i.pid = p.Device(), p.Device().Info(), p.PID()
	i.refused, i.other = false, false
	i.life++
	i.m.mu.Notify()
}

func (i *instance) leave(died bool) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.cur, i.pid, i.current = nil, 0, false
	if died {
		i.restarts++
	}
	i.m.mu.Notify()
}

// refuse makes the program one that is not used; m.mu is not held.
func (i *instance) refuse(err error) {
	i.m.mu.Lock()
	i.refused, i.other, i.groups = true, errors.Is(err, ErrOtherKind), nil
	i.m.mu.Unlock()
	i.lose(driver.Undetected, err.Error())
}

// lose says why nothing is known of the devices now. Those that were known stay, as
// unhealthy ones.
func (i *instance) lose(health driver.HealthState, why string) {
	m := i.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if i.health != health || i.description != why {
		log := i.log.Warn
		if i.refused {
			log = i.log.Info
		}
		log("devices cannot be used", "reason", why)
	}
	i.health, i.description, i.current = health, why, false
	i.groups = slices.Clone(i.groups)
	for g := range i.groups {
		i.groups[g].Instances = slices.Clone(i.groups[g].Instances)
		for n := range i.groups[g].Instances {
			i.groups[g].Instances[n].Healthy, i.groups[g].Instances[n].Description = false, why
		}
	}
	m.mu.Notify()
}

// found makes these the plugin's devices.
func (i *instance) found(groups []device.Group) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	if i.cur == nil {
		return // the last words of a process that has ended
	}
	if i.health != driver.Healthy {
		i.log.Info("devices found", "groups", len(groups))
	}
	i.health, i.description, i.groups, i.current = driver.Healthy, "", groups, true
	i.m.mu.Notify()
}

// fingerprints reads what the plugin finds until ctx ends. A stream that ends, or
// says nothing, is opened again, a little later each time. An error is final.
func (i *instance) fingerprints(ctx context.Context, p device.Plugin) error {
	for wait := keeper.FirstPause; ctx.Err() == nil; wait = keeper.Longer(wait, i.m.cfg.MaxBackoff) {
		c, err := p.Fingerprint(ctx)
		if err == nil {
			err = errors.New("the plugin ended its fingerprints")
			for fp := range c {
				if fp.Err == nil {
					fp.Err = device.Validate(fp.Groups)
				}
				if fp.Err != nil {
					err = fp.Err
					switch {
					case errors.Is(err, device.ErrDisabled):
						return err
					case !errors.Is(err, driver.ErrPluginGone): // its end says more
						i.lose(driver.Unhealthy, err.Error())
					}
					continue
				}
				wait = keeper.FirstPause
				i.found(fp.Groups)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, device.ErrDisabled), errors.Is(err, driver.ErrNotImplemented):
			return err
		case errors.Is(err, driver.ErrPluginGone):
			return nil // its end is seen by itself
		}
		i.lose(driver.Unhealthy, err.Error())
		keeper.Pause(ctx, wait)
	}
	return nil
}

// stats hands on what the plugin's processes measure, until ctx or Run ends.
func (i *instance) stats(ctx context.Context, interval time.Duration, out chan<- device.Stats) {
	m, mute, wait := i.m, 0, keeper.FirstPause // mute is a life that measures nothing
	for {
		var cur device.Plugin
		var now int
		var over bool
		err := m.mu.Await(ctx, 0, func() bool {
			cur, now, over = i.cur, i.life, m.ended
			return over || cur != nil && now != mute
		})
		if err != nil || over {
			return
		}
		got, err := i.measure(ctx, cur, now, interval, out)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, driver.ErrNotImplemented):
			mute = now
			continue
		case got:
			wait = keeper.FirstPause
		}
		i.log.Debug("statistics end", "error", err)
		keeper.Pause(ctx, wait)
		wait = keeper.Longer(wait, m.cfg.MaxBackoff)
	}
}

// measure reads one stream to its end, or to that of the plugin's life.
func (i *instance) measure(ctx context.Context, p device.Plugin, life int, interval time.Duration, out chan<- device.Stats) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		if i.m.mu.Await(ctx, 0, func() bool { return i.cur == nil || i.life != life }) == nil {
			cancel()
		}
	})
	c, err := p.Stats(ctx, interval)
	if err != nil {
		return false, err
	}
	err = errors.New("the plugin ended its statistics")
	for s := range c {
		if s.Err != nil {
			err = s.Err
			continue
		}
		select {
		case out <- s:
			got = true
		case <-ctx.Done():
		}
	}
	return got, err
}
