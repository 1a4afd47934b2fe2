// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

// The machine is explored exhaustively: from every state, every operation with
// every result, every request before it and while it runs, a disk that fails and
// heals, and a crash between any two steps with a restart of the agent or of the
// machine. States are abstracted: no times, no texts, three attempts.

// lastAttempt is the highest attempt whose states are explored further.
const lastAttempt = 1

// odometer runs through all sequences of choices, shortest first.
type odometer struct {
	at, sizes []int
	pos       int
}

func (o *odometer) choose(n int) int {
	if o.pos == len(o.at) {
		o.at, o.sizes = append(o.at, 0), append(o.sizes, n)
	}
	o.pos++
	return o.at[o.pos-1]
}

// next is the following sequence; false: there is none.
func (o *odometer) next() bool {
	o.pos = 0
	for i := len(o.at) - 1; i >= 0; i-- {
		if o.at[i]++; o.at[i] < o.sizes[i] {
			o.at, o.sizes = o.at[:i+1], o.sizes[:i+1]
			return true
		}
	}
	return false
}

// state is what is told apart: comparable, and enough to go on from.
type node struct {
	s, disk     abstract
	f           facts
	live        bool
	sick, dirty bool
}

// abstract is a snapshot without what no decision reads where it stands.
type abstract struct {
	phase                               Phase
	attempt, window                     int
	handle, exit, final                 bool
	backoff, contact, leaked, replaced  bool
	delay, prekilled, sameBoot          bool
	killed, noDelay, asked, askedCounts bool
}

func abstractOf(s Snapshot, boot string) abstract {
	return abstract{
		phase: s.Phase, attempt: s.Attempt, window: s.Resume.WindowCount,
		handle: s.Handle != nil, exit: s.Phase == Exited && s.Exit != nil, final: s.Final,
		backoff: !s.Backoff.IsZero(), contact: s.NeedContact, leaked: s.Resume.Leaked, replaced: s.Resume.Replaced,
		delay: !s.Resume.Delay.IsZero(), prekilled: s.Resume.Prekilled, sameBoot: s.Phase == Starting && s.Resume.Boot == boot,
		killed: s.Kill != nil, noDelay: s.Kill != nil && s.Kill.NoShutdownDelay,
		asked: s.Restarting != nil, askedCounts: s.Restarting != nil && s.Restarting.Counted,
	}
}

// snapshot is one that a stands for.
func (a abstract) snapshot(now bootclock.Instant) Snapshot {
	s := Snapshot{Phase: a.phase, Attempt: a.attempt, Final: a.final, NeedContact: a.contact}
	s.Resume = Resume{Window: restart.Window{WindowCount: a.window}, Leaked: a.leaked, Replaced: a.replaced, Prekilled: a.prekilled}
	deadline := bootclock.Deadline{From: now, Delay: time.Second}
	if s.Resume.Boot = "old"; a.sameBoot {
		s.Resume.Boot = now.Boot
	}
	if a.window > 0 {
		s.Resume.WindowStart = now
	}
	if a.handle {
		s.Handle = &driver.Handle{}
	}
	if a.exit {
		s.Exit = &driver.ExitResult{}
	}
	if a.final {
		s.FinishedAt = now.Wall
	}
	if a.backoff {
		s.Backoff = deadline
	}
	if a.delay {
		s.Resume.Delay = deadline
	}
	if a.killed {
		s.Kill = &KillRequest{NoShutdownDelay: a.noDelay}
	}
	if a.asked {
		s.Restarting = &RestartRequest{Counted: a.askedCounts}
	}
	return s
}

// explorer holds one exploration.
type explorer struct {
	testing.TB
	p     params
	disk  bool // it fails too
	seen  map[node]bool
	todo  []node
	edges map[string]bool
	steps int
}

func (x *explorer) model(st node, choose func(int) int) *model {
	m := &model{TB: x, p: x.p, s: st.s.snapshot(x.p.now), disk: st.disk.snapshot(x.p.now), f: st.f,
		live: st.live, sick: st.sick, dirty: st.dirty, choose: choose, from: &st}
	return m
}

func (x *explorer) note(m *model) {
	st := node{abstractOf(m.s, m.p.now.Boot), abstractOf(m.disk, m.p.now.Boot), m.f, m.live, m.sick, m.dirty}
	if !x.seen[st] {
		x.seen[st] = true
		x.todo = append(x.todo, st)
	}
}

// run explores until nothing new is found.
func (x *explorer) run() {
	x.seen, x.edges = map[node]bool{}, map[string]bool{}
	x.note(&model{s: Snapshot{Phase: Pending}, disk: Snapshot{Phase: Pending}, p: x.p})
	for len(x.todo) > 0 {
		st := x.todo[len(x.todo)-1]
		x.todo = x.todo[:len(x.todo)-1]
		x.ends(st)
		if st.s.attempt > lastAttempt && st.s.phase == Pending {
			continue
		}
		var o odometer
		for again := true; again; again = o.next() {
			m := x.model(st, o.choose)
			x.step(m)
			x.note(m)
			x.steps++
		}
	}
}

// ends: whatever has happened, a kill brings the task to its end if nothing else
// happens, and it starts nothing.
func (x *explorer) ends(st node) {
	m := x.model(st, nil)
	m.sick = false
	living := m.live
	if m.dirty {
		m.disk, m.dirty = m.s, false
	}
	if m.s.Kill == nil {
		s, eff := m.s.wishKill(KillRequest{}, m.p)
		m.take("kill", s, eff)
	}
	m.from = &st
	for range 20 {
		o := next(m.s, facts{durable: true, gate: true, contact: true, linger: true,
			attached: m.f.attached, resumed: m.f.resumed, hooked: m.f.hooked, prepared: m.f.prepared, stopped: m.f.stopped})
		if o == opNone {
			if m.live && !m.s.Resume.Leaked || m.live && !living {
				m.failf("something lives when the task is dead: %+v", m.s)
			}
			return
		}
		m.fold(m.perform(o))
	}
	m.failf("a killed task does not come to its end: %+v", m.s)
}

// step lets one thing happen.
func (x *explorer) step(m *model) {
	switch m.pick(7) {
	case 0:
		x.operate(m)
	case 1:
		x.kill(m)
	case 2:
		x.restart(m)
	case 3:
		x.crash(m)
	case 4:
		if m.sick = !m.sick && x.disk; !m.sick && m.dirty {
			m.disk, m.dirty = m.s, false
		}
	case 5:
		m.f.signal = m.s.Phase == Running && m.s.Kill == nil && m.s.Restarting == nil && !m.f.update
	case 6:
		m.f.update = m.s.Phase == Running && !m.f.signal
	}
}

func (x *explorer) kill(m *model) {
	s, eff := m.s.wishKill(KillRequest{NoShutdownDelay: m.p.delay > 0 && m.coin()}, m.p)
	m.take("kill", s, eff)
}

func (x *explorer) crash(m *model) {
	m.crash()
	if m.p.now.Boot != x.p.now.Boot { // the machine too; every boot is told apart from one alone
		m.p.now.Boot, m.s.Resume.Boot, m.disk.Resume.Boot = x.p.now.Boot, "old", "old"
	}
}

func (x *explorer) restart(m *model) {
	s, eff, _ := m.s.wishRestart(RestartRequest{Counted: m.s.Phase == Running && m.coin(), AlsoDead: true}, true, m.p)
	m.take("restart", s, eff)
}

// operate carries out the operation that is next, if there is one, with whatever
// may be asked for before its result is there.
func (x *explorer) operate(m *model) {
	f := m.f
	f.durable, f.linger, f.gate, f.contact = !m.dirty, true, true, true
	if m.s.Phase == Pending || m.s.Phase == Ready {
		f.gate = m.coin()
		f.backoff = !m.s.Backoff.IsZero() && m.coin()
		f.contact = !m.s.NeedContact || m.coin()
	}
	o := next(m.s, f)
	if why := m.s.holds(f); (o == opIdle) != (len(why) > 0) {
		m.failf("%s is explained with %v: %+v", opName(o), why, f)
	}
	if o == opNone || o == opIdle {
		return
	}
	from := m.s.Phase
	if m.p.contact = true; o == opRecover || o == opResume {
		m.p.contact = m.coin()
	}
	m.p.shut = o == opPrepare && m.coin()
	r := m.perform(o)
	if !o.inline() {
		switch m.pick(4) {
		case 1:
			x.kill(m)
			if r.exit == nil && r.leaked == nil && interruptible(o) {
				r.canceled = m.coin()
			}
		case 2:
			x.restart(m)
		case 3:
			x.crash(m)
			return
		}
	}
	m.fold(r)
	how := ""
	switch {
	case r.canceled:
		how = " interrupted"
	case r.leaked != nil:
		how = " leaked"
	case r.lost:
		how = " lost"
	case r.err != nil:
		how = " failed"
	case r.exit != nil:
		how = " exit"
	case r.again:
		how = " again"
	}
	x.edges[fmt.Sprintf("%-8s %s%s -> %s", from, opName(o), how, m.s.Phase)] = true
}

func interruptible(o op) bool {
	return slices.Contains([]op{opPrestart, opPrepare, opStart, opResume, opRebuild, opPoststart, opUpdate, opSignal}, o)
}

func opName(o op) string {
	return [...]string{"none", "idle", "recover", "resume", "prestart", "prepare", "start", "rebuild", "poststart", "update", "signal",
		"wait", "prekill", "delay", "stop", "exited", "abort", "cleanup", "quit", "to stop", "revive"}[o]
}

// TestExplore holds I1 to I7 in every state that can be reached, and that each
// comes to its end. The edges it takes are on file: one that is missing is dead
// code or a gap in the exploration, one that is new was not meant. Disks that fail
// as well multiply the states; NODEKEEP_LONG has them in.
func TestExplore(t *testing.T) {
	long := os.Getenv("NODEKEEP_LONG") != ""
	states, steps, floor := 0, 0, 3000
	edges := map[string]bool{}
	for _, again := range []bool{false, true} {
		for _, delay := range []time.Duration{0, time.Second} {
			if !long && again == (delay == 0) {
				continue
			}
			x := &explorer{TB: t, disk: long, p: params{now: instant(time.Hour), again: again, delay: delay, grace: 5 * time.Second,
				policy: spec.RestartPolicy{Attempts: 1, Interval: time.Hour, Delay: time.Second, Mode: spec.RestartFail}}}
			x.run()
			states, steps = states+len(x.seen), steps+x.steps
			maps.Copy(edges, x.edges)
		}
	}
	t.Logf("%d states, %d steps, %d edges", states, steps, len(edges))
	if long {
		floor = 40_000
	}
	require.Greater(t, states, floor, "the exploration has lost its way")
	got := strings.Join(slices.Sorted(maps.Keys(edges)), "\n") + "\n"
	const file = "testdata/machine-edges.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
