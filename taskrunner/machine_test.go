// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
)

func TestNext(t *testing.T) {
	h := &driver.Handle{}
	kill, restart := &KillRequest{}, &RestartRequest{}
	all := facts{durable: true, gate: true, contact: true, attached: true}
	with := func(edit func(*facts)) facts { f := all; edit(&f); return f }
	delay := Resume{Prekilled: true, Delay: bootclock.Deadline{From: instant(1), Delay: 1}}
	for _, tc := range []struct {
		s    Snapshot
		f    facts
		want op
	}{
		{Snapshot{Phase: Pending}, all, opPrestart},
		{Snapshot{Phase: Pending}, with(func(f *facts) { f.gate = false }), opIdle},
		{Snapshot{Phase: Pending}, with(func(f *facts) { f.backoff = true }), opIdle},
		{Snapshot{Phase: Pending}, with(func(f *facts) { f.durable = false }), opIdle},
		{Snapshot{Phase: Pending, NeedContact: true}, all, opPrestart},
		{Snapshot{Phase: Pending, NeedContact: true}, with(func(f *facts) { f.contact = false }), opIdle},
		{Snapshot{Phase: Pending}, with(func(f *facts) { f.contact = false }), opPrestart},
		{Snapshot{Phase: Pending, Kill: kill, NeedContact: true}, facts{}, opQuit},
		{Snapshot{Phase: Ready}, all, opPrepare},
		{Snapshot{Phase: Ready}, with(func(f *facts) { f.gate = false }), opIdle},
		{Snapshot{Phase: Ready, Kill: kill}, all, opQuit},
		{Snapshot{Phase: Starting}, with(func(f *facts) { f.prepared = true }), opStart},
		{Snapshot{Phase: Starting}, with(func(f *facts) { f.prepared, f.durable = true, false }), opIdle},
		{Snapshot{Phase: Starting, Kill: kill}, with(func(f *facts) { f.prepared = true }), opAbort},
		{Snapshot{Phase: Starting}, all, opResume},
		{Snapshot{Phase: Starting}, with(func(f *facts) { f.retry = true }), opIdle},
		{Snapshot{Phase: Starting}, with(func(f *facts) { f.resumed = true }), opPrestart},
		{Snapshot{Phase: Starting}, with(func(f *facts) { f.hooked = true }), opPrepare},
		{Snapshot{Phase: Running, Handle: h}, facts{}, opRecover},
		{Snapshot{Phase: Running, Handle: h}, facts{retry: true}, opIdle},
		{Snapshot{Phase: Running, Handle: h}, all, opWait},
		{Snapshot{Phase: Running, Handle: h}, with(func(f *facts) { f.rebuild, f.poststart = true, true }), opRebuild},
		{Snapshot{Phase: Running, Handle: h}, with(func(f *facts) { f.poststart, f.update, f.signal = true, true, true }), opPoststart},
		{Snapshot{Phase: Running, Handle: h}, with(func(f *facts) { f.update, f.signal = true, true }), opSignal},
		{Snapshot{Phase: Running, Handle: h}, with(func(f *facts) { f.update = true }), opUpdate},
		{Snapshot{Phase: Running, Handle: h}, with(func(f *facts) { f.update, f.poststart, f.rebuild, f.durable = true, true, true, false }), opWait},
		{Snapshot{Phase: Running, Handle: h, Kill: kill}, with(func(f *facts) { f.update, f.durable = true, false }), opPrekill},
		{Snapshot{Phase: Running, Handle: h, Kill: kill}, facts{}, opRecover},
		{Snapshot{Phase: Running, Handle: h, Kill: kill, Resume: delay}, all, opDelay},
		{Snapshot{Phase: Running, Handle: h, Kill: &KillRequest{NoShutdownDelay: true}, Resume: delay}, all, opToStop},
		{Snapshot{Phase: Running, Handle: h, Restarting: restart}, all, opPrekill},
		{Snapshot{Phase: Stopping, Handle: h, Kill: kill}, all, opStop},
		{Snapshot{Phase: Stopping, Handle: h, Kill: kill}, with(func(f *facts) { f.stopped = true }), opWait},
		{Snapshot{Phase: Stopping, Handle: h, Kill: kill}, facts{}, opRecover},
		{Snapshot{Phase: Exited, Handle: h}, all, opExited},
		{Snapshot{Phase: Exited, Handle: h}, facts{}, opIdle},
		{Snapshot{Phase: Done, Final: true}, all, opCleanup},
		{Snapshot{Phase: Dead, Final: true}, all, opNone},
		{Snapshot{Phase: Dead, Final: true}, facts{}, opIdle},
		{Snapshot{Phase: Dead, Final: true}, with(func(f *facts) { f.linger = true }), opIdle},
		{Snapshot{Phase: Dead, Final: true, Kill: kill}, with(func(f *facts) { f.linger = true }), opNone},
		{Snapshot{Phase: Dead, Final: true, Restarting: restart}, with(func(f *facts) { f.linger = true }), opRevive},
	} {
		require.Equal(t, tc.want, next(tc.s, tc.f), "%+v %+v", tc.s, tc.f)
		require.Equal(t, tc.want == opIdle, len(tc.s.holds(tc.f)) > 0, "explained: %+v %+v", tc.s, tc.f)
	}
}

// model drives the machine as the loop does, without one: what an operation
// brings back, when a request comes and when the agent crashes is chosen by bytes.
type model struct {
	testing.TB
	in   []byte
	s    Snapshot
	disk Snapshot
	f    facts
	p    params
	live bool // a process lives
	hist []string

	choose func(n int) int // instead of in
	from   *node           // where choose began
	dirty  bool            // the disk has failed and s is not on it
	sick   bool            // it still does
}

// more says that things are still left to chance.
func (m *model) more() bool { return m.choose != nil || len(m.in) > 0 }

// rarely is true one time in n; where all choices are made, in one of two.
func (m *model) rarely(n int) bool {
	if m.choose != nil {
		n = 2
	}
	return m.more() && m.pick(n) == n-1
}

func (m *model) pick(n int) int {
	if m.choose != nil {
		return m.choose(n)
	}
	if len(m.in) == 0 {
		return 0
	}
	b := m.in[0]
	m.in = m.in[1:]
	return int(b) % n
}

func (m *model) coin() bool { return m.pick(2) == 1 }

func (m *model) log(format string, args ...any) {
	if m.from == nil {
		m.hist = append(m.hist, fmt.Sprintf(format, args...))
	}
}

func (m *model) failf(format string, args ...any) {
	m.Helper()
	if m.from != nil {
		m.Logf("from %+v", *m.from)
	}
	for _, h := range m.hist {
		m.Log(h)
	}
	m.Fatalf(format, args...)
}

// take makes s the snapshot and holds the invariants I1 to I7.
func (m *model) take(what string, s Snapshot, eff effect) {
	m.Helper()
	old := m.s
	m.log("%s: %s/%d -> %s/%d (%d)", what, old.Phase, old.Attempt, s.Phase, s.Attempt, eff)
	switch {
	case (s.Handle != nil) != (s.Phase == Running || s.Phase == Stopping || s.Phase == Exited):
		m.failf("I1: phase %s, handle %v", s.Phase, s.Handle)
	case s.Phase == Exited && s.Exit == nil, s.Final && s.FinishedAt.IsZero():
		m.failf("I2: %+v", s)
	case (s.Phase == Done || s.Phase == Dead) && !s.Final, s.Final && s.Phase != Exited && s.Phase != Done && s.Phase != Dead:
		m.failf("I2: phase %s, final %v", s.Phase, s.Final)
	case s.Phase == Starting && old.Phase != Starting && (old.Phase != Ready || s.Kill != nil):
		m.failf("I3: starting from %s, kill %v", old.Phase, s.Kill)
	case s.Phase == Dead && old.Phase != Dead && old.Phase != Done:
		m.failf("I5: dead from %s", old.Phase)
	case old.Phase == Dead && s.Phase != Dead && (s.Phase != Pending || old.Kill != nil || old.Restarting == nil):
		m.failf("I5: dead left for %s", s.Phase)
	case old.Kill != nil && s.Kill == nil, s.Seq < old.Seq, s.Attempt < old.Attempt, s.Restarts < old.Restarts:
		m.failf("I6: %+v after %+v", s, old)
	case s.Attempt > old.Attempt && m.live:
		m.failf("I4: attempt %d begins while %d lives", s.Attempt, old.Attempt)
	case old.Kill != nil && !old.Final && s.Final && s.Failed != s.Kill.Failed:
		m.failf("I7: killed and failed %v", s.Failed)
	case eff == same && m.differ(s, old):
		m.failf("changed, but said not to be")
	case eff == volatile && (s.Seq != old.Seq || !(old.Phase == Pending && s.Phase == Ready || old.Phase == Exited && (s.Phase == Pending || s.Phase == Done))):
		m.failf("volatile, but a crash would lose it")
	}
	if s.Phase != old.Phase || s.Attempt != old.Attempt {
		switch s.Phase {
		case Pending, Exited, Done, Dead:
			m.f = facts{}
		}
	}
	m.s = s
	if m.dirty = m.dirty || eff == durable; m.dirty && !m.sick {
		m.disk, m.dirty = s, false
	}
}

func (m *model) differ(a, b Snapshot) bool {
	if m.from != nil { // too many for JSON
		return a.Seq != b.Seq || abstractOf(a, m.p.now.Boot) != abstractOf(b, m.p.now.Boot)
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) != string(y)
}

// crash is the end of the agent and the start of the next.
func (m *model) crash() {
	s := m.disk
	if m.from == nil {
		raw, err := json.Marshal(m.disk)
		require.NoError(m, err)
		s = Snapshot{}
		require.NoError(m, json.Unmarshal(raw, &s))
	}
	if s.Phase == Ready {
		s.Phase = Pending
	}
	if err := s.sound(); err != nil {
		m.failf("unsound on disk: %v", err)
	}
	if m.coin() {
		m.p.now.Boot, m.live = m.p.now.Boot+"x", false
	}
	m.log("crash: %s/%d", s.Phase, s.Attempt)
	m.s, m.disk, m.f, m.dirty, m.sick = s, s, facts{}, false, false
}

// run plays until the task is dead or the input ends; then everything works and
// the machine must come to an end.
func (m *model) run() {
	for step := 0; ; step++ {
		if step > 4096 {
			m.failf("no end: %+v", m.s)
		}
		m.p.now.Up += time.Minute
		m.p.now.Wall = m.p.now.Wall.Add(time.Minute)
		if len(m.in) == 0 && m.s.Kill == nil {
			s, eff := m.s.wishKill(KillRequest{}, m.p)
			m.take("last kill", s, eff)
		}
		if len(m.in) > 0 {
			m.request()
		}
		f := m.f
		f.durable, f.gate, f.contact, f.linger = true, true, true, true
		if len(m.in) > 0 {
			f.gate, f.contact = m.coin(), m.coin()
		}
		o := next(m.s, f)
		if o == opNone {
			return
		}
		if o != opIdle {
			r := m.perform(o)
			m.fold(r)
		}
	}
}

func (m *model) fold(r result) {
	s, eff := apply(m.s, r, m.p)
	m.take(opName(r.op), s, eff)
}

func (m *model) request() {
	switch m.pick(12) {
	case 0:
		s, eff := m.s.wishKill(KillRequest{NoShutdownDelay: m.coin(), Failed: m.coin(), Grace: time.Duration(m.pick(3)-1) * time.Second,
			Kind: []Kind{"", LeaderDead}[m.pick(2)]}, m.p)
		m.take("kill", s, eff)
	case 1:
		s, eff, _ := m.s.wishRestart(RestartRequest{Counted: m.coin(), AlsoDead: m.coin()}, true, m.p)
		m.take("restart", s, eff)
	case 2:
		m.crash()
	case 3:
		m.p.policy.Attempts, m.p.again, m.p.delay = m.pick(4), m.coin(), time.Duration(m.pick(2))*time.Second
	}
}

// perform invents what the operation brings back and what it did to the process.
func (m *model) perform(o op) result {
	bad := m.rarely(4)
	r := result{op: o}
	switch o {
	case opRecover:
		switch {
		case !m.live || bad && m.coin():
			r.lost, r.err, r.restored = true, errors.New("gone"), m.coin()
		case bad:
			r.err = driver.ErrUnavailable
		default:
			m.f.attached, m.f.rebuild, m.f.poststart = true, m.choose != nil, m.choose != nil
		}
	case opRebuild:
		m.f.rebuild = bad
	case opPoststart:
		if m.f.poststart = false; bad {
			m.live, r.exit = false, &driver.ExitResult{Code: m.pick(2)}
		}
	case opUpdate:
		m.f.update = false
	case opSignal:
		m.f.signal = false
	case opResume:
		if r.again = m.s.Resume.Boot == m.p.now.Boot && m.coin(); r.again {
			m.f.resumed = true
		} else {
			r.err = errors.New("cannot be resumed")
			m.destroyed(&r)
		}
	case opPrestart, opPrepare:
		m.mayFail(&r, bad)
		if r.err == nil {
			m.f.hooked = true
			m.f.prepared = o == opPrepare
		} else if m.s.Phase == Starting {
			m.live = false // what the intent may have left is destroyed first
		}
	case opStart:
		m.startTask(&r, bad)
	case opWait, opDelay:
		if o == opWait || bad {
			m.live, r.exit = false, &driver.ExitResult{Code: m.pick(2)}
		}
	case opStop:
		if bad {
			r.leaked, r.exit = errors.New("cannot be stopped"), &driver.ExitResult{Code: -1, Err: "?"}
		}
		m.f.stopped = true
	case opExited, opAbort:
		m.destroyed(&r)
	}
	return r
}

func (m *model) startTask(r *result, bad bool) {
	switch {
	case bad && !m.s.Resume.Replaced && m.coin():
		r.again, m.f.prepared = true, false
		m.live = false
	case bad:
		m.mayFail(r, true)
		m.live = false
	default:
		if m.live && !m.f.resumed {
			m.failf("I4: a second life")
		}
		m.live, r.handle = true, &driver.Handle{}
		m.f = facts{attached: true}
	}
}

func (m *model) mayFail(r *result, bad bool) {
	if bad {
		if r.err = errors.New("failed"); m.coin() {
			r.err = driver.Recoverable(r.err)
		}
		r.kind = HookFailed
	}
}

func (m *model) destroyed(r *result) {
	if m.live && m.rarely(16) {
		r.leaked = errors.New("does not die")
		return
	}
	m.live = false
}

func newModel(t testing.TB, in []byte) *model {
	return &model{TB: t, in: in, s: Snapshot{Phase: Pending}, disk: Snapshot{Phase: Pending}, p: params{now: instant(time.Hour),
		policy: spec.RestartPolicy{Attempts: 3, Interval: time.Hour, Delay: time.Second, Mode: spec.RestartFail}, grace: 5 * time.Second}}
}

func TestMachine(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	phases := map[Phase]int{}
	for range 4000 {
		in := make([]byte, 20+rnd.IntN(300))
		for i := range in {
			in[i] = byte(rnd.Uint32())
		}
		m := newModel(t, in)
		m.run()
		phases[m.s.Phase]++
	}
	require.Equal(t, map[Phase]int{Dead: 4000}, phases)
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3})
	f.Add(slices.Repeat([]byte{5, 1, 3, 7, 2}, 40))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1000 {
			t.Skip()
		}
		newModel(t, in).run()
	})
}

// FuzzSnapshot: whatever the disk holds, it is refused or the machine copes.
func FuzzSnapshot(f *testing.F) {
	for _, s := range []Snapshot{{Phase: Pending}, {Phase: Running, Handle: &driver.Handle{}}, {Phase: Exited, Handle: &driver.Handle{}, Exit: &driver.ExitResult{}}} {
		raw, err := taskSlot().Encode(s)
		require.NoError(f, err)
		f.Add(raw, uint8(0))
	}
	f.Fuzz(func(t *testing.T, raw []byte, what uint8) {
		s, err := taskSlot().Decode(raw)
		if err != nil || s.sound() != nil {
			return
		}
		p := params{now: instant(1)}
		o := next(s, facts{durable: true, gate: true, contact: true})
		r := result{op: o, exit: &driver.ExitResult{}, handle: &driver.Handle{}, kind: HookFailed}
		if what&1 != 0 {
			r.err = errors.New("err")
		}
		apply(s, r, p)
		s.wishKill(KillRequest{}, p)
		_, _, _ = s.wishRestart(RestartRequest{AlsoDead: what&2 != 0}, true, p)
	})
}
