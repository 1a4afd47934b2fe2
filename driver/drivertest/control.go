// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest

import (
	"slices"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/driver"
)

// Fail makes the next n calls of m fail with err before they do anything; n
// below 0 means all until the next Fail.
func (f *Fake) Fail(m Method, n int, err error) {
	f.change(m, func(d *disturbance) { d.fail, d.err = n, err })
}

// Slow makes every later call of m wait first, no longer than its context; 0 ends
// it.
func (f *Fake) Slow(m Method, d time.Duration) {
	f.change(m, func(x *disturbance) { x.slow = d })
}

// Hang makes every later call of m block, deaf to its context, until release.
func (f *Fake) Hang(m Method) (release func()) {
	c := make(chan struct{})
	f.change(m, func(d *disturbance) { d.hang = c })
	return func() {
		f.change(m, func(d *disturbance) { d.hang = nil })
		close(c)
	}
}

func (f *Fake) change(m Method, edit func(*disturbance)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.init()
	if f.disturb[m] == nil {
		f.disturb[m] = &disturbance{}
	}
	edit(f.disturb[m])
}

// Exit ends the task of that ID now. It says whether it was running.
func (f *Fake) Exit(id string, res driver.ExitResult) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		if p.cfg.ID == id && !p.ended() {
			f.finish(p, res)
			return true
		}
	}
	return false
}

// Break makes all Waits that are under way return err, as they do when a plugin
// dies, and the driver forget its tasks until they are recovered.
func (f *Fake) Break(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.init()
	f.breakBy = err
	close(f.broken)
	f.broken = make(chan struct{})
	clear(f.tasks)
}

// Forget makes the driver a new instance of itself: it knows no task until
// Recover, and remembers how those ended that did.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tasks)
}

// Orphan is Forget, and the supervisors die too: tasks live on and are adopted by
// Recover, but no kill timeout that was running is kept.
func (f *Fake) Orphan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tasks)
	for _, p := range f.procs {
		if p.adopted = true; p.kill != nil {
			p.kill.Stop()
			p.kill = nil
		}
	}
}

// Mute makes the last output of all tasks be lost, if they have ended or end
// before they are recovered.
func (f *Fake) Mute() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.procs {
		p.silent = true
	}
}

// Lose makes the driver forget all tasks for good: Recover finds none, though
// their processes live until Destroy gets a proof of them.
func (f *Fake) Lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tasks)
	for _, p := range f.procs {
		p.lost = true
	}
}

// Reboot ends all processes, and nobody saw how.
func (f *Fake) Reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.tasks)
	for _, p := range f.procs {
		f.finish(p, driver.ExitResult{Code: -1})
	}
	clear(f.procs)
}

// Count is how often m was called.
func (f *Fake) Count(m Method) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[m]
}

// Lives is how many processes were started.
func (f *Fake) Lives() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lives
}

// Alive returns the IDs of the tasks whose process lives, in the order of their
// starts, whether the driver remembers them or not.
func (f *Fake) Alive() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return ids(f.procs, func(p *process) bool { return !p.ended() })
}

// Signals returns the signals that were sent, in order.
func (f *Fake) Signals() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.signals)
}

// Stops returns the calls of Stop that got through, in order.
func (f *Fake) Stops() []StopCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stops)
}

// Configs returns the configurations of all starts, in order.
func (f *Fake) Configs() []driver.TaskConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.configs)
}

// Faults are the double starts so far.
func (f *Fake) Faults() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.faults)
}

// Left are the tasks that were never destroyed, alive or not.
func (f *Fake) Left() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return ids(f.procs, func(*process) bool { return true })
}

// Check fails the test if a task was started twice or one is left.
func (f *Fake) Check(t testing.TB) {
	t.Helper()
	for _, s := range f.Faults() {
		t.Errorf("drivertest: %s", s)
	}
	if left := f.Left(); len(left) > 0 {
		t.Errorf("drivertest: never destroyed: %v", left)
	}
}
