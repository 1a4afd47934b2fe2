// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"slices"
	"testing"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// model plays the world around the plan: it opens gates, carries out operations
// and moves tasks as the next byte says, and holds every step to the rules.
type model struct {
	t     *testing.T
	data  []byte
	tasks []view
	life  life
	in    input
	open  map[string]bool
}

func (m *model) byte() int {
	if len(m.data) == 0 {
		return -1
	}
	b := m.data[0]
	m.data = m.data[1:]
	return int(b)
}

func newModel(t *testing.T, data []byte) *model {
	m := &model{t: t, data: data, in: input{durable: true}, open: map[string]bool{}}
	for i := range 1 + max(0, m.byte())%5 {
		v := view{name: string(rune('a' + i)), state: taskrunner.Pending}
		switch max(0, m.byte()) % 7 {
		case 0:
			v.hook = spec.LifecyclePrestart
		case 1:
			v.hook, v.sidecar = spec.LifecyclePrestart, true
		case 2:
			v.hook = spec.LifecyclePoststart
		case 3:
			v.hook, v.sidecar = spec.LifecyclePoststart, true
		case 4:
			v.hook = spec.LifecyclePoststop
		case 5:
			v.leader = true
		}
		m.tasks = append(m.tasks, v)
	}
	return m
}

// step asks the plan until it is quiet and carries out what it says.
func (m *model) step() {
	for range 40 {
		if !m.once() {
			return
		}
	}
	m.t.Fatalf("the plan does not come to rest: %s", plan(m.tasks, m.life, m.in))
}

// once asks the plan and carries out what it says; false: nothing.
func (m *model) once() bool {
	d := plan(m.tasks, m.life, m.in)
	m.check(d)
	m.open = map[string]bool{}
	for _, n := range d.open {
		m.open[n] = true
	}
	old := m.life.Status
	m.life.Status, m.life.Desc = status(m.tasks, m.life)
	if old.Terminal() && m.life.Status != old || old == Running && m.life.Status == Pending {
		m.t.Fatalf("status went back from %s to %s", old, m.life.Status)
	}
	switch {
	case d.end != nil:
		if k := m.life.Kill; k != nil && (k.Cause != d.end.Cause || k.Poststop && !d.end.Poststop) {
			m.t.Fatalf("the end by %s became one by %s", k.Cause, d.end.Cause)
		}
		m.life.Kill, m.life.Restart = d.end, nil
	case d.restarted:
		m.life.Restart = nil
	default:
		return m.operate(d)
	}
	return true
}

func (m *model) operate(d decision) bool {
	switch d.op {
	case opPrerun:
		m.in.ready = true
	case opUpdate:
		m.in.changed = false
	case opTell:
		m.in.untold = false
	case opPrekill:
		m.in.left = true
	case opPostrun:
		m.life.Done = true
	case opKill:
		for i := range m.tasks {
			if t := &m.tasks[i]; slices.Contains(d.targets, t.name) {
				if t.told = true; t.state == taskrunner.Pending { // nothing to end but a backoff
					t.state, t.gone, t.over = taskrunner.Dead, true, true
				}
			}
		}
	case opRestart:
		for i := range m.tasks {
			if t := &m.tasks[i]; slices.Contains(d.targets, t.name) {
				t.moved, t.state, t.gone, t.over, t.failed = true, taskrunner.Pending, false, false, false
				t.up = t.up && !m.life.Restart.Fresh
			}
		}
	default:
		return false
	}
	return true
}

func (m *model) check(d decision) {
	for _, t := range m.tasks {
		why := closed(t, m.tasks, m.life, m.in)
		if d.end == nil && !d.restarted && !m.life.Done && !t.dead() && slices.Contains(d.open, t.name) != (len(why) == 0) {
			m.t.Fatalf("gate of %s, open %v, is explained with %+v", t.name, d.open, why)
		}
	}
	for _, n := range d.open {
		t := m.get(n)
		for _, dep := range t.deps {
			if o := m.get(dep.Task); !t.poststop() && (dep.Condition == spec.DependCompleted && !o.ok() || dep.Condition == spec.DependStarted && !o.up) {
				m.t.Fatalf("gate of %s opened before %s is %s", n, dep.Task, dep.Condition)
			}
		}
		if t.dead() {
			m.t.Fatalf("gate of dead %s opened", n)
		}
		if (m.life.Kill != nil || m.life.Status.Terminal()) && !t.poststop() {
			m.t.Fatalf("gate of %s opened after the end was decided", n)
		}
		for _, o := range m.tasks {
			if t.poststop() && !o.poststop() && !o.dead() {
				m.t.Fatalf("poststop %s opened beside %s", n, o.name)
			}
			if t.hook == spec.LifecycleMain && o.hook == spec.LifecyclePrestart && !o.sidecar && !o.ok() {
				m.t.Fatalf("main %s opened before %s", n, o.name)
			}
		}
	}
	if d.op != opKill && d.op != opRestart {
		return
	}
	if len(d.targets) == 0 {
		m.t.Fatalf("%s of nobody", d.op)
	}
	for _, n := range d.targets {
		t := m.get(n)
		if d.op == opKill && t.poststop() && m.life.Kill != nil && !m.life.Kill.Poststop &&
			slices.ContainsFunc(m.tasks, func(o view) bool { return o.ran && !o.poststop() }) {
			m.t.Fatalf("poststop %s killed", n)
		}
		for _, o := range m.tasks {
			if d.op == opKill && o.rank() < t.rank() && !o.dead() {
				m.t.Fatalf("%s killed before %s is dead", n, o.name)
			}
		}
	}
}

func (m *model) get(name string) view {
	return m.tasks[slices.IndexFunc(m.tasks, func(t view) bool { return t.name == name })]
}

// move lets one thing happen to task i.
func (m *model) move(i, what int, big bool) {
	t := &m.tasks[i%len(m.tasks)]
	switch {
	case what == 7 && m.life.Kill == nil:
		m.life.Kill, m.life.Restart = &ending{Cause: CauseKilled, Poststop: big}, nil
	case what == 6 && big:
		m.in.stop = true
	case what == 6:
		m.in.durable = !m.in.durable
	case what == 5 && m.life.Kill == nil && m.life.Restart == nil && !m.life.Status.Terminal() && m.in.ready:
		r := &restart{Tasks: map[string]int{}, Fresh: big}
		for i := range m.tasks {
			if o := &m.tasks[i]; o.state == taskrunner.Running || o.dead() && r.Fresh && !o.poststop() {
				r.Tasks[o.name], o.moved = 1, false
			}
		}
		if len(r.Tasks) > 0 {
			m.life.Restart = r
		}
	case what == 4:
		m.in.changed = true
	case t.dead():
	case t.state == taskrunner.Pending && t.told:
		t.state, t.gone, t.over = taskrunner.Dead, true, true
	case t.state == taskrunner.Pending && m.open[t.name]:
		t.state, t.ran, t.up = taskrunner.Running, true, true
	case t.state == taskrunner.Running && what == 0 && !t.told:
		t.state = taskrunner.Pending
	case t.state == taskrunner.Running:
		t.state, t.gone, t.over, t.failed = taskrunner.Dead, true, true, what == 1 && !t.told
	}
}

// Whatever happens, the plan comes to rest, keeps its rules and, once tasks do
// what they are told, finds an end.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{3, 0, 1, 6, 4, 0, 1, 2, 3, 8, 9, 10})
	f.Add([]byte{4, 5, 6, 1, 3, 2, 0, 1, 2, 3, 4, 56, 0, 1, 2})
	f.Add([]byte{2, 6, 1, 4, 0, 1, 40, 168, 0, 1, 48, 48, 8, 17})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newModel(t, data)
		m.step()
		for b := m.byte(); b >= 0; b = m.byte() {
			m.move(b%8, b/8%8, b >= 128)
			m.step()
		}
		m.in.durable = true
		m.step()
		for range 200 {
			if m.life.Done {
				return
			}
			for i := range m.tasks {
				m.move(i, 2, false) // goes its way, ends well
				m.step()
			}
		}
		t.Fatalf("no end: %+v %+v", m.tasks, m.life)
	})
}
