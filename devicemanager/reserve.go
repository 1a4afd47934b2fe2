// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

// hold is what a task has, or is about to get. It is not changed once done.
type hold struct {
	Asked []spec.DeviceRequest  `json:"asked,omitempty"`
	Given []spec.DeviceInstance `json:"given"`
	// Granted says that the scheduler chose, so that nobody else may.
	Granted bool `json:"granted,omitempty"`
	device.Reservation
	Boot string `json:"boot,omitempty"` // of the machine, when the plugins said so

	done bool // it has its outputs and is in the store
}

// Reserve gives a task the devices that it asks for, those the scheduler granted it
// or else such as fit, and returns what it needs to use them and which they are. It
// blocks for Config.Patience at most (30 s), and is idempotent: a task has what it
// has until Release. running says that the task runs already (an agent was
// restarted): then what it has is told at once, and nothing is chosen for it.
//
// Before a later start what the task has is looked at again: devices that nobody
// granted and that have become unhealthy are given back for others.
//
// Errors: ErrRequest and ErrNoDevice are final; ErrBusy, a plugin that is silent
// (driver.ErrUnavailable), devices that are unhealthy and a disk that fails are
// recoverable; others are the plugin's.
func (m *Manager) Reserve(ctx context.Context, allocID, task string, res *spec.Resources, running bool) (device.Reservation, []spec.DeviceInstance, error) {
	o := Owner{allocID, task}
	if h := m.held(o); running && (h != nil || len(res.Granted) == 0) {
		if h == nil {
			return device.Reservation{}, nil, fmt.Errorf("devicemanager: which devices task %q has is not known any more", task)
		}
		return copied(h.Reservation), h.Given, nil
	}
	if err := check(res.Devices); err != nil {
		return device.Reservation{}, nil, err
	}
	limit, cancel := context.WithTimeout(ctx, m.cfg.Patience)
	defer cancel()
	h, err := m.hold(limit, o, res)
	if err == nil && !h.done {
		h, err = m.complete(limit, o, h)
	}
	switch {
	case err == nil:
		return copied(h.Reservation), h.Given, nil
	case ctx.Err() != nil:
		return device.Reservation{}, nil, context.Cause(ctx)
	}
	return device.Reservation{}, nil, err
}

// copied keeps a caller from changing what is held.
func copied(r device.Reservation) device.Reservation {
	return device.Reservation{Env: maps.Clone(r.Env), Mounts: slices.Clone(r.Mounts), Devices: slices.Clone(r.Devices)}
}

func (m *Manager) held(o Owner) *hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.holds[o]; h != nil && h.done {
		return h
	}
	return nil
}

// Check lists what is wrong with requests: ErrRequest for those that make no sense,
// and ErrNoDevice for what this node has not, whoever may have it now, once all
// plugins have spoken. It does not block.
func (m *Manager) Check(requests []spec.DeviceRequest) error {
	if err := check(requests); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started || len(m.silent()) > 0 {
		return nil
	}
	all := m.views()
	for n := range all {
		all[n].free = nil
		for _, in := range all[n].group.Instances {
			all[n].free = append(all[n].free, in.ID)
		}
	}
	_, err := plan(requests, all)
	if errors.Is(err, ErrBusy) { // together they are too many
		err = fmt.Errorf("%w: %s", ErrNoDevice, strings.TrimPrefix(err.Error(), ErrBusy.Error()+": "))
	}
	return err
}

// check finds faults that no device could mend.
func check(requests []spec.DeviceRequest) error {
	var errs []error
	for _, r := range requests {
		if r.Name == "" || r.Count < 0 {
			errs = append(errs, fmt.Errorf("%w: name %q, count %d", ErrRequest, r.Name, r.Count))
		}
		for _, c := range slices.Concat(r.Constraints, r.Affinities) {
			if _, err := meets(&c, &device.Group{}); err != nil {
				errs = append(errs, fmt.Errorf("%w: %q: %w", ErrRequest, r.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// hold chooses devices and keeps them for the task, or finds what it has.
func (m *Manager) hold(ctx context.Context, o Owner, res *spec.Resources) (h *hold, err error) {
	var last error
	ended := m.mu.Await(ctx, 0, func() bool {
		var final bool
		h, final, last = m.try(o, res)
		return last == nil || final
	})
	switch {
	case last == nil, ended == nil:
		return h, last
	case m.isSilent():
		m.mu.Lock()
		defer m.mu.Unlock()
		return nil, driver.Recoverable(fmt.Errorf("%w: device plugin %s is silent: %w", driver.ErrUnavailable, strings.Join(m.silent(), ", "), last))
	}
	return nil, driver.Recoverable(last)
}

func (m *Manager) isSilent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.silent()) > 0
}

// try is one attempt to hold devices; final says that waiting will not help. m.mu
// is held.
func (m *Manager) try(o Owner, res *spec.Resources) (h *hold, final bool, err error) {
	if m.ended {
		return nil, true, driver.Recoverable(fmt.Errorf("%w: the agent ends", driver.ErrUnavailable))
	}
	waits := len(m.silent()) > 0 || !m.started
	granted := len(res.Granted) > 0
	if h = m.holds[o]; h != nil {
		same := h.Granted == granted && (granted && reflect.DeepEqual(h.Given, res.Granted) || !granted && reflect.DeepEqual(h.Asked, res.Devices))
		if err = m.fit(h.Given); err == nil && same {
			if h.done && h.Boot != m.boot { // nodes and paths may be others now
				again := *h
				again.done, again.Reservation = false, device.Reservation{}
				m.holds[o], h = &again, &again
			}
			return h, true, nil
		}
		if same && (granted || waits) {
			return nil, false, err
		}
		m.free(o)
	}
	h = &hold{Asked: res.Devices, Given: res.Granted, Granted: granted}
	if granted {
		err = m.fit(res.Granted)
		if err == nil {
			err = m.unclaimed(o, res.Granted)
		}
	} else {
		var choices []choice
		if choices, err = plan(res.Devices, m.views()); err == nil {
			h.Given = merged(choices)
		}
		final = errors.Is(err, ErrRequest) || errors.Is(err, ErrNoDevice) && !waits
	}
	if err != nil {
		return nil, final, err
	}
	m.take(o, h)
	return h, true, nil
}

// merged names each group once: its plugin is asked for all of a task's devices at
// the same time.
func merged(choices []choice) (given []spec.DeviceInstance) {
	for _, c := range choices {
		n := slices.IndexFunc(given, func(d spec.DeviceInstance) bool {
			return d.Vendor == c.group.Vendor && d.Type == c.group.Type && d.Name == c.group.Name
		})
		if n < 0 {
			n = len(given)
			given = append(given, spec.DeviceInstance{Vendor: c.group.Vendor, Type: c.group.Type, Name: c.group.Name})
		}
		given[n].IDs = append(given[n].IDs, c.ids...)
	}
	return given
}

func groupID(d *spec.DeviceInstance) string { return d.Vendor + "/" + d.Type + "/" + d.Name }

// find is the group of devices that were given; m.mu is held.
func (m *Manager) find(d *spec.DeviceInstance) (view, bool) {
	for _, v := range m.views() {
		if v.group.ID() == groupID(d) {
			return v, true
		}
	}
	return view{}, false
}

// fit says what keeps devices from being used; m.mu is held.
func (m *Manager) fit(given []spec.DeviceInstance) error {
	var errs []error
	for n := range given {
		d := &given[n]
		v, _ := m.find(d)
		for _, id := range d.IDs {
			at := -1
			if v.group != nil {
				at = slices.IndexFunc(v.group.Instances, func(in device.Instance) bool { return in.ID == id })
			}
			switch {
			case at < 0:
				errs = append(errs, fmt.Errorf("%w: device %s[%s] is not on this node", ErrNoDevice, groupID(d), id))
			case !v.group.Instances[at].Healthy:
				errs = append(errs, fmt.Errorf("devicemanager: device %s[%s] is unhealthy: %s", groupID(d), id, v.group.Instances[at].Description))
			}
		}
	}
	return errors.Join(errs...)
}

// unclaimed says which devices another task has; m.mu is held.
func (m *Manager) unclaimed(o Owner, given []spec.DeviceInstance) error {
	var errs []error
	for n := range given {
		for _, id := range given[n].IDs {
			if other, taken := m.taken[place{groupID(&given[n]), id}]; taken && other != o {
				errs = append(errs, fmt.Errorf("%w: device %s[%s] is with task %q of alloc %s", ErrBusy, groupID(&given[n]), id, other.Task, other.AllocID))
			}
		}
	}
	return errors.Join(errs...)
}

// take notes that a task has devices; m.mu is held.
func (m *Manager) take(o Owner, h *hold) {
	m.holds[o] = h
	for n := range h.Given {
		for _, id := range h.Given[n].IDs {
			m.taken[place{groupID(&h.Given[n]), id}] = o
		}
	}
	m.mu.Notify()
}

// free notes that it has them no more, here and with the next write in the store;
// m.mu is held.
func (m *Manager) free(o Owner) {
	h := m.holds[o]
	if h == nil {
		return
	}
	delete(m.holds, o)
	if m.cfg.Store != nil {
		m.stale[o] = true
	}
	maps.DeleteFunc(m.taken, func(_ place, by Owner) bool { return by == o })
	m.mu.Notify()
}

// complete asks the plugins what the task needs and writes all of it down. After an
// error the task has nothing.
func (m *Manager) complete(ctx context.Context, o Owner, h *hold) (*hold, error) {
	done := *h
	done.Boot, done.done = m.boot, true
	var err error
	if done.Reservation, err = m.ask(ctx, h.Given); err == nil {
		if err = m.save(o, &done); err != nil {
			err = driver.Recoverable(err)
		}
	}
	m.mu.Lock()
	current := m.holds[o] == h
	switch {
	case current && err == nil:
		m.holds[o] = &done
	case current:
		m.free(o)
	case err == nil:
		if m.holds[o] == nil && m.cfg.Store != nil {
			m.stale[o] = true
		}
		err = driver.Recoverable(errors.New("devicemanager: the devices were released meanwhile"))
	}
	m.mu.Unlock()
	if err != nil {
		return nil, errors.Join(err, m.clean())
	}
	return &done, nil
}

// ask calls Reserve for each group. What a group brings last wins in the
// environment.
func (m *Manager) ask(ctx context.Context, given []spec.DeviceInstance) (all device.Reservation, err error) {
	for n := range given {
		r, err := m.askOne(ctx, &given[n])
		if err != nil {
			return all, err
		}
		if all.Env == nil && len(r.Env) > 0 {
			all.Env = map[string]string{}
		}
		maps.Copy(all.Env, r.Env)
		all.Mounts = append(all.Mounts, r.Mounts...)
		all.Devices = append(all.Devices, r.Devices...)
	}
	return all, nil
}

// askOne asks until there is an answer: a plugin that dies meanwhile is asked in
// its next life, as long as ctx lasts.
func (m *Manager) askOne(ctx context.Context, d *spec.DeviceInstance) (r device.Reservation, err error) {
	var i *instance
	life := 0
	err = errors.New("devicemanager: it is not there")
	for {
		var cur device.Plugin
		over := m.mu.Await(ctx, 0, func() bool {
			if v, ok := m.find(d); ok {
				i = v.inst
			}
			if i != nil && i.current && i.life != life {
				cur, life = i.cur, i.life
			}
			return cur != nil || m.ended
		})
		if over != nil || cur == nil {
			return r, driver.Recoverable(fmt.Errorf("%w: the plugin of device %s is silent: %w", driver.ErrUnavailable, groupID(d), err))
		}
		if r, err = cur.Reserve(ctx, d.IDs); err == nil {
			return r, nil
		}
		switch err = say(i, fmt.Errorf("reserve %s of %s: %w", strings.Join(d.IDs, ", "), groupID(d), err)); {
		case errors.Is(err, driver.ErrPluginGone):
		case ctx.Err() != nil, errors.Is(err, driver.ErrUnavailable):
			return r, driver.Recoverable(err)
		default:
			return r, err
		}
	}
}

// Release ends what a task has; its devices are free when it returns, also with an
// error, which says that the store does not know yet. Nothing to release is no
// error.
func (m *Manager) Release(_ context.Context, allocID, task string) error {
	o := Owner{allocID, task}
	m.mu.Lock()
	h := m.holds[o]
	m.mu.Unlock()
	if h == nil {
		return nil
	}
	// In the store first: what is free here is free there.
	err := m.drop(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(o)
	if err == nil {
		delete(m.stale, o)
	}
	return err
}

// Retain releases what tasks have of allocs that nobody knows: call it when all
// allocs are loaded.
func (m *Manager) Retain(known func(allocID string) bool) error {
	m.mu.Lock()
	for o := range m.holds {
		if !known(o.AllocID) {
			m.cfg.Log.Info("devices of an alloc that is gone are free", "alloc_id", o.AllocID, "task", o.Task)
			m.free(o)
		}
	}
	m.mu.Unlock()
	return m.clean()
}
