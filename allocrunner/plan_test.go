// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
	"github.com/stretchr/testify/require"
)

// views reads tasks from text: "name:kind:state[,flag…]". Kinds are pre, preside,
// main, leader, post, postside, stop; states new (never started), wait (between
// attempts), run, ok, failed, gone (dead, never started, not failed); flags
// told, moved, old (its last start was before the lifecycle began anew), late (its
// stop hooks still run), exited (dead but for its exited hooks).
func views(t testing.TB, text string) []view {
	var vs []view
	for _, f := range strings.Fields(text) {
		p := strings.SplitN(f, ":", 3)
		require.Len(t, p, 3, f)
		v := view{name: p[0]}
		switch p[1] {
		case "pre":
			v.hook = spec.LifecyclePrestart
		case "preside":
			v.hook, v.sidecar = spec.LifecyclePrestart, true
		case "main":
		case "leader":
			v.leader = true
		case "post":
			v.hook = spec.LifecyclePoststart
		case "postside":
			v.hook, v.sidecar = spec.LifecyclePoststart, true
		case "stop":
			v.hook = spec.LifecyclePoststop
		default:
			t.Fatalf("kind %q", p[1])
		}
		flags := strings.Split(p[2], ",")
		v.ran, v.up = true, true
		switch flags[0] {
		case "new":
			v.state, v.ran, v.up = taskrunner.Pending, false, false
		case "wait":
			v.state = taskrunner.Pending
		case "run":
			v.state = taskrunner.Running
		case "ok":
			v.state = taskrunner.Dead
		case "failed":
			v.state, v.failed = taskrunner.Dead, true
		case "gone":
			v.state, v.ran, v.up = taskrunner.Dead, false, false
		default:
			t.Fatalf("state %q", flags[0])
		}
		v.told = slices.Contains(flags, "told")
		v.gone = v.dead() || slices.Contains(flags, "exited")
		v.over = v.dead() && !slices.Contains(flags, "late")
		v.moved = slices.Contains(flags, "moved")
		v.up = v.up && !slices.Contains(flags, "old")
		vs = append(vs, v)
	}
	return vs
}

func (d decision) String() string {
	var s []string
	if d.end != nil {
		s = append(s, strings.TrimSuffix(fmt.Sprintf("end %s %s", d.end.Cause, d.end.Task), " "))
	}
	if d.restarted {
		s = append(s, "restarted")
	}
	if len(d.open) > 0 {
		s = append(s, "open "+strings.Join(d.open, " "))
	}
	if d.op != opNone {
		s = append(s, strings.TrimSuffix(string(d.op)+" "+strings.Join(d.targets, " "), " "))
	}
	return strings.Join(s, "; ")
}

func TestPlan(t *testing.T) {
	kill := func(c Cause) life { return life{Status: Running, Kill: &ending{Cause: c}} }
	up := input{ready: true, durable: true}
	gone := input{ready: true, durable: true, left: true}
	again := func(fresh bool, names ...string) life {
		r := &restart{Tasks: map[string]int{}, Fresh: fresh}
		for _, n := range names {
			r.Tasks[n] = 1
		}
		return life{Status: Running, Restart: r}
	}
	const group = "p:pre:%s s:preside:%s m:main:%s q:post:%s z:stop:%s"
	five := func(p, s, m, q, z string) string { return fmt.Sprintf(group, p, s, m, q, z) }

	for _, c := range []struct {
		name  string
		tasks string
		life  life
		in    input
		want  string
	}{
		// Lifecycle.
		{"nothing starts before prerun", five("new", "new", "new", "new", "new"), life{}, input{durable: true}, "prerun"},
		{"a failed prerun of a restored alloc waits", five("ok", "run", "run", "ok", "new"), life{}, input{durable: true, retry: true}, ""},
		{"prestart tasks first, together", five("new", "new", "new", "new", "new"), life{}, up, "open p s"},
		{"mains wait for the ephemeral", five("run", "run", "new", "new", "new"), life{}, up, "open p s"},
		{"mains wait for the sidecar", five("ok", "new", "new", "new", "new"), life{}, up, "open s"},
		{"mains wait for a sidecar between attempts", five("ok", "wait", "new", "new", "new"), life{}, up, "open s"},
		{"mains follow", five("ok", "run", "new", "new", "new"), life{}, up, "open s m"},
		{"a sidecar that ended well holds nobody up", five("ok", "ok", "new", "new", "new"), life{}, up, "open m"},
		{"a main between attempts waits for its sidecar again", five("ok", "wait", "wait", "ok", "new"), life{}, up, "open s"},
		{"poststart follows the mains", five("ok", "run", "run", "new", "new"), life{}, up, "open s m q"},
		{"poststart waits for all mains", "a:main:run b:main:new q:post:new", life{}, up, "open a b"},
		{"mains that never ran together still ran", "a:main:ok b:main:run q:post:new", life{}, up, "open b q"},
		{"poststart stays open when a main is between attempts", "a:main:wait q:postside:wait", life{}, up, "open a q"},
		{"poststop waits", five("ok", "run", "run", "ok", "new"), life{}, up, "open s m"},
		{"services leave before poststop", "m:main:ok z:stop:new", life{}, up, "prekill"},
		{"poststop after all others", "m:main:ok z:stop:new", life{}, gone, "open z"},
		{"poststop after a failure", "m:main:failed z:stop:new", life{Status: Failed}, gone, "open z"},
		{"poststop has nothing to do if nothing ran", "m:main:gone z:stop:new", life{}, gone, "kill z"},
		{"poststop is left alone by the end", "m:main:ok z:stop:run", kill(CauseStopped), gone, "open z"},
		{"poststop ends if that is asked for", "m:main:ok z:stop:run", life{Kill: &ending{Poststop: true}}, gone, "kill z"},
		{"a restored poststop task needs its alloc set up", "m:main:ok z:stop:run", kill(CauseStopped), input{durable: true, left: true}, "prerun"},
		{"but not before its turn", "m:main:run,told z:stop:new", kill(CauseStopped), input{durable: true, left: true}, ""},
		{"nor if it has none", "m:main:ok z:stop:run,told", life{Kill: &ending{Poststop: true}}, input{durable: true, left: true}, ""},
		{"cleanup after all", five("ok", "ok", "ok", "ok", "ok"), life{}, gone, "postrun"},
		{"but not beside stop hooks", "m:main:ok,late", life{}, gone, ""},
		{"a task that restarts is asked once", "m:main:run,told n:main:run", again(false, "m", "n"), up, "restart n"},
		{"nothing after done", five("ok", "ok", "ok", "ok", "ok"), life{Done: true}, gone, ""},
		{"no main at all", "s:preside:run q:post:new", life{}, up, "open s q"},

		// What brings an alloc to its end.
		{"leader", "l:leader:ok m:main:run", life{}, up, "end leader l"},
		{"a failed leader is the leader still", "l:leader:failed m:main:run", life{}, up, "end leader l"},
		{"sibling", "a:main:failed b:main:run", life{}, up, "end sibling a"},
		{"a failed prestart would block mains for ever", five("failed", "run", "new", "new", "new"), life{}, up, "end sibling p"},
		{"a failed sidecar", five("ok", "failed", "run", "ok", "new"), life{}, up, "end sibling s"},
		{"mains dead", five("ok", "run", "ok", "ok", "new"), life{}, up, "end mains"},
		{"a poststart at work is waited for", five("ok", "run", "ok", "run", "new"), life{}, up, "open s q"},
		{"sibling before mains", "a:main:failed s:preside:run", life{}, up, "end sibling a"},
		{"leader before sibling", "a:main:failed l:leader:ok s:preside:run", life{}, up, "end leader l"},
		{"a stop comes first", "a:main:failed l:leader:ok s:preside:run", life{}, input{stop: true, ready: true, durable: true}, "end stopped"},
		{"a stop during prerun", "m:main:new", life{}, input{stop: true, durable: true}, "end stopped"},
		{"a lone task that fails has no siblings", "m:main:failed", life{}, gone, "postrun"},
		{"a failed poststop fails nobody else", "m:main:ok z:stop:failed", life{}, gone, "postrun"},
		{"a stop of what is dead already", "m:main:ok z:stop:run", life{}, input{stop: true, ready: true, durable: true, left: true}, "open z"},

		// Kill order.
		{"services leave first", "l:leader:run m:main:run", kill(CauseStopped), up, "prekill"},
		{"the shutdown delay", "m:main:run", kill(CauseStopped), input{ready: true, left: true, held: true, durable: true}, ""},
		{"the delay ends with the tasks", "m:main:ok", kill(CauseStopped), input{ready: true, left: true, held: true, durable: true}, "postrun"},
		{"leader alone", "m:main:run l:leader:run s:preside:run", kill(CauseStopped), gone, "kill l"},
		{"until it is dead", "m:main:run l:leader:run,told s:preside:run", kill(CauseStopped), gone, ""},
		{"or its process is gone", "m:main:run l:leader:run,told,exited s:preside:run", kill(CauseStopped), gone, "kill m"},
		{"mains together", "m:main:run l:leader:ok n:main:wait s:preside:run", kill(CauseStopped), gone, "kill m n"},
		{"mains and what runs once", five("run", "run", "new", "new", "new"), kill(CauseStopped), gone, "kill p m q"},
		{"one of them lags", "m:main:run,told n:main:ok s:preside:run", kill(CauseStopped), gone, ""},
		{"sidecars last", five("ok", "run", "ok", "ok", "new"), kill(CauseStopped), gone, "kill s"},
		{"a kill needs no disk", "m:main:run", kill(CauseStopped), input{left: true}, "kill m"},
		{"a kill before anything ran spares nothing", "m:main:gone z:stop:new", kill(CauseKilled), gone, "kill z"},

		// Restart.
		{"a fresh lifecycle keeps all from starting", "p:pre:ok m:main:wait,moved", again(true, "p"), up, "restart p"},
		{"also what never began", "p:pre:ok m:main:run q:post:new,moved", again(true, "p", "m"), up, "restart p m"},
		{"nothing new while the disk fails", five("ok", "run", "new", "new", "new"), life{}, input{ready: true}, ""},
		{"one task", "m:main:run n:main:run", again(false, "m"), up, "open n; restart m"},
		{"leader first", "l:leader:run m:main:run s:preside:run", again(false, "l", "m", "s"), up, "restart l"},
		{"then mains", "l:leader:wait,moved m:main:run s:preside:run", again(false, "l", "m", "s"), up, "restart m"},
		{"then sidecars", "l:leader:wait,moved m:main:wait,moved s:preside:run", again(false, "l", "m", "s"), up, "restart s"},
		{"all moved", "l:leader:wait,moved m:main:wait,moved s:preside:wait,moved", again(false, "l", "m", "s"), up, "restarted"},
		{"but a request is on its way", "m:main:wait,moved", again(false, "m"), input{ready: true, durable: true, asking: true}, ""},
		{"from the start again", five("wait", "wait", "wait,old", "wait", "new"), life{Status: Running}, up, "open p s"},
		{"poststart waits for the new mains", five("ok", "run", "wait,old", "wait", "new"), life{Status: Running}, up, "open s m"},
		{"and follows them", five("ok", "run", "run", "wait", "new"), life{Status: Running}, up, "open s m q"},
		{"dead mains are about to live again", "m:main:ok s:preside:run", again(true, "m", "s"), up, "restart m"},
		{"a failure ends a restart", "m:main:failed s:preside:run", again(true, "m", "s"), up, "end sibling m"},
		{"a kill ends a restart", "m:main:run", life{Restart: again(true, "m").Restart, Kill: &ending{}}, gone, "kill m"},
		{"no restart while the disk fails", "m:main:run", again(false, "m"), input{ready: true}, ""},

		// Update.
		{"an update", "m:main:run", life{}, input{ready: true, durable: true, changed: true}, "open m; update"},
		{"a stop goes before it", "m:main:run", life{}, input{ready: true, durable: true, changed: true, stop: true}, "end stopped"},
		{"a restart goes before it", "m:main:run", again(false, "m"), input{ready: true, durable: true, changed: true}, "restart m"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, plan(views(t, c.tasks), c.life, c.in).String())
		})
	}
}

func TestStatus(t *testing.T) {
	forced := life{Status: Running, Kill: &ending{Force: Complete, Reason: "maximum run time"}}
	for _, c := range []struct {
		tasks string
		life  life
		want  Status
		desc  string
	}{
		{"m:main:new", life{}, Pending, "no task has started"},
		{"m:main:run", life{}, Running, "tasks are running"},
		{"m:main:wait", life{}, Running, "tasks are running"},
		{"p:pre:ok m:main:new", life{Status: Running}, Running, "tasks are running"},
		{"p:pre:ok m:main:new", life{}, Running, "tasks are running"}, // the first was too short to be seen running
		{"m:main:wait,old", life{Status: Running}, Running, "tasks are running"},
		{"m:main:ok", life{Status: Running}, Complete, "all tasks have completed"},
		{"m:main:ok", life{Kill: &ending{Reason: "scaled down"}}, Complete, "scaled down"},
		{"m:main:gone", life{}, Complete, "all tasks have completed"},
		{"m:main:failed", life{Status: Running}, Failed, `task "m" failed`},
		{"a:main:failed b:main:run", life{Status: Running}, Failed, `task "a" failed`},
		{"m:main:ok z:stop:new", life{Status: Running}, Running, "tasks are running"},
		{"m:main:ok z:stop:failed", life{Status: Running}, Failed, `task "z" failed`},
		{"m:main:run", forced, Complete, "maximum run time"},
		{"m:main:failed", forced, Complete, "maximum run time"},
		{"m:main:failed", life{Status: Complete, Desc: "x"}, Complete, "x"},
		{"m:main:ok", life{Status: Failed, Desc: "x"}, Failed, "x"},
	} {
		got, desc := status(views(t, c.tasks), c.life)
		require.Equal(t, c.want, got, "%s %+v", c.tasks, c.life)
		require.Equal(t, c.desc, desc, "%s %+v", c.tasks, c.life)
	}
}
