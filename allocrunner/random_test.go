// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Random lives of an alloc against a reference: the alloc is a service whose tasks
// always come back until somebody ends it, so what must be true once things have
// had time to settle fits into a few lines (reference.check). A failure prints its
// seed and the shortest sequence that still fails; NODEKEEP_SEED plays one again.

// action is one step of a life.
type action struct {
	do   string
	arg  int
	wait time.Duration // then
}

func (a action) String() string { return fmt.Sprintf("%s(%d) %s", a.do, a.arg, a.wait) }

func randomLife(seed uint64) (all []action) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	what := []string{"exit", "exit", "exit", "update", "restart", "restart", "crash", "crash", "detach", "reboot", "disk", "signal", "settle"}
	for range 2 + rnd.IntN(10) {
		a := action{do: what[rnd.IntN(len(what))], arg: rnd.IntN(1000), wait: time.Duration(rnd.IntN(12000)) * time.Millisecond}
		if rnd.IntN(3) == 0 {
			a.wait = 0
		}
		all = append(all, a)
	}
	if rnd.IntN(2) == 0 {
		all = append(all, action{do: []string{"stop", "kill"}[rnd.IntN(2)], arg: rnd.IntN(1000), wait: time.Duration(rnd.IntN(6000)) * time.Millisecond})
		for range rnd.IntN(4) {
			all = append(all, action{do: what[rnd.IntN(len(what))], arg: rnd.IntN(1000), wait: time.Duration(rnd.IntN(6000)) * time.Millisecond})
		}
	}
	return all
}

func TestRandomLives(t *testing.T) {
	first, n := uint64(0), uint64(200)
	if lives, err := strconv.ParseUint(os.Getenv("NODEKEEP_LIVES"), 10, 64); err == nil {
		n = lives
	}
	if seed, err := strconv.ParseUint(os.Getenv("NODEKEEP_SEED"), 10, 64); err == nil {
		first, n = seed, 1
	}
	parts := uint64(runtime.GOMAXPROCS(0))
	for part := range parts {
		t.Run(fmt.Sprint("part ", part), func(t *testing.T) {
			t.Parallel()
			for seed := first + part; seed < first+n; seed += parts {
				if life := randomLife(seed); len(playLife(t, life)) > 0 {
					shrink(t, seed, life)
				}
			}
		})
	}
}

// shrink drops what a failure does not need.
func shrink(t *testing.T, seed uint64, life []action) {
	for i := 0; i < len(life); {
		if shorter := slices.Delete(slices.Clone(life), i, i+1); len(playLife(t, shorter)) > 0 {
			life = shorter
			continue
		}
		i++
	}
	t.Fatalf("seed %d: %s\nshortest: %v\nagain: NODEKEEP_SEED=%d go test -run TestRandomLives ./allocrunner",
		seed, strings.Join(playLife(t, life), "\n"), life, seed)
}

// doom is one agent's death: nothing gets through any more, in either direction.
type doom struct {
	*drivertest.Fake
	once sync.Once
	dead chan struct{}
}

func (d *doom) die() { d.once.Do(func() { close(d.dead) }) }

func (d *doom) gone() error {
	select {
	case <-d.dead:
		return errors.Join(driver.ErrUnavailable, statetest.ErrCrash)
	default:
		return nil
	}
}

func (d *doom) Driver(context.Context, string) (driver.Driver, error) { return d, d.gone() }

func (d *doom) Start(ctx context.Context, c driver.TaskConfig) (*driver.Handle, error) {
	if err := d.gone(); err != nil {
		return nil, err
	}
	return d.Fake.Start(ctx, c)
}

func (d *doom) Stop(ctx context.Context, id, sig string, grace time.Duration) error {
	return errors.Join(d.gone(), d.living(func() error { return d.Fake.Stop(ctx, id, sig, grace) }))
}

func (d *doom) Destroy(ctx context.Context, ref driver.TaskRef, force bool) error {
	return errors.Join(d.gone(), d.living(func() error { return d.Fake.Destroy(ctx, ref, force) }))
}

func (d *doom) living(f func() error) error {
	if d.gone() != nil {
		return nil
	}
	return f()
}

// mortalStore is the disk as that agent sees it.
type mortalStore struct {
	state.Store
	*doom
}

func (m mortalStore) Update(fn func(state.Tx) error) error {
	if err := m.gone(); err != nil {
		return err
	}
	return m.Store.Update(fn)
}

// reference is what must be true, and the life that is played.
type reference struct {
	*world
	agent   *agent
	doom    *doom
	disk    *statetest.Fault
	ended   bool   // a stop or a kill was accepted
	maybe   bool   // … or asked for, and nobody knows
	version string // of the last accepted update
	pending string // of one that nobody knows of
	faults  []string
	seqs    map[string]uint64
	highest map[string]int // attempts seen
}

func (r *reference) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func playLife(t *testing.T, life []action) (faults []string) {
	synctest.Test(t, func(t *testing.T) {
		r := &reference{world: newWorld(t, spec.JobService, "init:pre log:preside web:main bye:stop"), seqs: map[string]uint64{}, highest: map[string]int{}}
		r.alloc.Settings.ShutdownDelay = 3 * time.Second
		r.alloc.Tasks[2].ShutdownDelay = 2 * time.Second
		for i := range r.alloc.Tasks {
			r.alloc.Tasks[i].Restart = &spec.RestartPolicy{Attempts: 1000, Delay: time.Second, Mode: spec.RestartFail}
		}
		r.lives["init"], r.lives["bye"] = []drivertest.Life{second(1)}, []drivertest.Life{second(1)}
		r.begin(statetest.Faults{})
		for _, a := range life {
			r.act(a)
			time.Sleep(a.wait)
			r.look()
		}
		r.finish()
		faults = r.faults
	})
	return faults
}

// begin starts the next agent.
func (r *reference) begin(f statetest.Faults) {
	r.doom = &doom{Fake: r.fake, dead: make(chan struct{})}
	r.disk = statetest.Faulty(r.store, f)
	cfg := r.config()
	cfg.Tasks.Drivers, cfg.Store = r.doom, mortalStore{r.disk, r.doom}
	cfg.RecordTask = nil
	r.agent = r.startWith(cfg)
}

// finish ends the alloc if nobody has, and looks at what is left.
func (r *reference) finish() {
	r.settle()
	if !r.ended {
		r.act(action{do: "stop"})
		r.settle()
	}
	if !r.ended {
		r.fault("a stop was refused")
		r.agent.cancel()
		<-r.agent.ran
		return
	}
	<-r.agent.ran
	err := r.agent.Destroy(r.t.Context())
	for range 10 { // the disk may have some failures left
		if err != nil {
			err = r.agent.Destroy(r.t.Context())
		}
	}
	if err != nil {
		r.fault("destroy: %v", err)
	}
	for _, s := range append(r.fake.Faults(), r.fake.Left()...) {
		r.fault("driver: %s", s)
	}
	if i := slices.IndexFunc(r.statuses, func(s allocrunner.Status) bool { return s.Terminal() }); i >= 0 && i != len(r.statuses)-1 {
		r.fault("statuses went %v", r.statuses)
	}
	r.agent.cancel()
}

func (r *reference) act(a action) {
	ctx, s := r.t.Context(), r.agent.Snapshot()
	switch a.do {
	case "exit":
		task := []string{"web", "log"}[a.arg%2]
		r.fake.Exit(fmt.Sprintf("a/%s/%d", task, s.Tasks[task].Attempt), driver.ExitResult{Code: a.arg / 2 % 3})
	case "update":
		v := fmt.Sprint(s.ModifyIndex + 1)
		switch err := r.agent.Update(ctx, r.agent.newer(func(n *spec.Alloc) { n.Meta = map[string]string{"v": v} })); {
		case err == nil:
			r.version, r.pending = v, ""
		case !errors.Is(err, allocrunner.ErrTerminal) && !errors.Is(err, taskrunner.ErrClosed):
			r.pending = v // the disk failed, and who knows how far
		}
	case "restart":
		req := []allocrunner.RestartRequest{{}, {All: true}, {Task: "web"}, {Task: "log"}}[a.arg%4]
		err := r.agent.Restart(ctx, req)
		if r.ended && err == nil {
			r.fault("restarted what is being ended")
		}
	case "signal":
		err := r.agent.Signal(ctx, "web", "SIGHUP", "")
		if r.agent.Snapshot().Status.Terminal() && err == nil {
			r.fault("signalled what has ended")
		}
	case "stop":
		r.end(r.agent.Update(ctx, r.agent.newer(stop)))
	case "kill":
		r.end(r.agent.Kill(ctx, allocrunner.KillRequest{NoShutdownDelay: a.arg%2 == 0}))
	case "disk":
		r.again(statetest.Faults{Err: syscall.ENOSPC, At: 1 + a.arg%6, For: 1 + a.arg/6%6})
	case "detach":
		r.again(statetest.Faults{})
	case "crash":
		r.doom.die()
		r.again(statetest.Faults{})
	case "reboot":
		r.doom.die()
		r.fake.Reboot()
		r.again(statetest.Faults{})
	case "settle":
		r.settle()
	}
}

func (r *reference) end(err error) {
	switch {
	case err == nil:
		r.ended = true
	case errors.Is(err, allocrunner.ErrTerminal) || errors.Is(err, taskrunner.ErrClosed):
	default:
		r.maybe = true
	}
}

// again ends the agent, if it lives, and starts the next.
func (r *reference) again(f statetest.Faults) {
	r.agent.detach()
	r.doom.die()
	r.begin(f)
}

// look holds what is true at any moment.
func (r *reference) look() {
	synctest.Wait()
	for name, s := range r.agent.Snapshot().Tasks {
		if s.Attempt < r.highest[name] {
			r.fault("task %s went back from attempt %d to %d", name, r.highest[name], s.Attempt)
		}
		if s.State() == taskrunner.Running { // the step from exited to pending is repeated, not written
			r.highest[name] = s.Attempt
		}
		if s.Seq < r.seqs[name] {
			r.fault("events of %s went back from %d to %d", name, r.seqs[name], s.Seq)
		}
		r.seqs[name] = s.Seq
	}
}

// settle gives everything time and holds the alloc against the reference.
func (r *reference) settle() {
	time.Sleep(3 * time.Minute)
	synctest.Wait()
	r.look()
	s := r.agent.Snapshot()
	if !s.Durable {
		r.fault("the disk is well and the state is not on it")
	}
	if r.maybe && s.Ending != "" {
		r.ended = true
	}
	if r.pending != "" && s.Alloc.Meta["v"] == r.pending {
		r.version, r.pending = r.pending, ""
	}
	if v := s.Alloc.Meta["v"]; v != r.version {
		r.fault("version %q, not %q", v, r.version)
	}
	want, status := "init=dead log=running web=running bye=pending", allocrunner.Running
	alive := []string{"log", "web"}
	if r.ended {
		want, status, alive = "init=dead log=dead web=dead bye=dead", allocrunner.Complete, nil
	}
	if got := r.agent.states(); got != want {
		r.fault("tasks are %s, not %s", got, want)
	}
	if s.Status != status || s.Done != r.ended {
		r.fault("status %s (%s), done %v; not %s", s.Status, s.Description, s.Done, status)
	}
	var now []string
	for _, id := range r.fake.Alive() {
		now = append(now, strings.Split(id, "/")[1])
	}
	if slices.Sort(now); !slices.Equal(now, alive) {
		r.fault("processes: %v, not %v", now, alive)
	}
}
