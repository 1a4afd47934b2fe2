// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/state"
)

// A reader that comes before the first word waits for it, and no name is unknown
// as long as a program that starts could be it.
func TestReadersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("slow", "quick")
		f.programs["slow"].slow = 20 * time.Second
		m, err := drivermanager.New(drivermanager.Config{Launchers: []drivermanager.Launcher{f}})
		require.NoError(t, err)
		_, err = m.Driver(t.Context(), "quick")
		require.ErrorIs(t, err, driver.ErrUnavailable, "of a manager that does not run, after the bound")
	})
}

func TestReadersWaitForStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("slow", "quick")
		f.programs["slow"].slow = 20 * time.Second
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}})
		defer a.stop()
		began := time.Now()
		require.Equal(t, "quick", a.driver("quick").Info().Name)
		require.Zero(t, time.Since(began))
		require.Equal(t, "slow", a.driver("slow").Info().Name)
		require.Equal(t, 20*time.Second, time.Since(began))
		_, err := a.Driver(t.Context(), "other")
		require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
		require.ErrorContains(t, err, "this node has quick, slow")
		require.Empty(t, a.Ready(t.Context()))
	})
}

func TestUnknownOnlyWhenAllHaveSpoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("slow")
		f.programs["slow"].slow = 20 * time.Second
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}})
		defer a.stop()
		began := time.Now()
		_, err := a.Driver(t.Context(), "other")
		require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
		require.Equal(t, 20*time.Second, time.Since(began))
	})
}

// A program that does not start is tried again, a little later each time. Whoever
// asks for it is told why it is not there, not that there is none.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		f.programs["x"].fails = 1000
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Wait: 5 * time.Second})
		defer a.stop()
		began := time.Now()
		_, err := a.Driver(t.Context(), "x")
		require.ErrorIs(t, err, driver.ErrUnavailable)
		require.ErrorContains(t, err, "its engine is not there")
		require.Equal(t, 5*time.Second, time.Since(began))
		_, err = a.Driver(t.Context(), "y")
		require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
		require.ErrorContains(t, err, "program program-x: its engine is not there")
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		n := len(f.programs["x"].launches)
		f.mu.Unlock()
		require.Greater(t, n, 12)
		require.Less(t, n, 25, "at most one a minute in the end")
		f.mu.Lock()
		f.programs["x"].fails = 0
		f.mu.Unlock()
		time.Sleep(time.Minute)
		require.Equal(t, driver.Healthy, a.Status()[0].Health)
		a.driver("x")
	})
}

// The death of a program ends no task, whoever waits goes on waiting, and exits
// that happened meanwhile arrive with their codes.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		f.programs["x"].fake.Script = func(n int, _ driver.TaskConfig) drivertest.Life {
			if n < 10 {
				return drivertest.Life{Run: time.Minute + time.Duration(n)*time.Second, Exit: driver.ExitResult{Code: n + 1}}
			}
			return drivertest.Life{Run: drivertest.Forever}
		}
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: drivermanager.StateRecords(state.Memory())})
		defer a.stop()
		d := a.driver("x")
		var all sync.WaitGroup
		for i := range 20 {
			h, err := d.Start(t.Context(), task(fmt.Sprintf("a/t%d/0", i)))
			require.NoError(t, err)
			all.Go(func() {
				res, err := d.Wait(t.Context(), h.TaskID)
				want := driver.ExitResult{Code: i + 1}
				if i >= 10 {
					want = driver.ExitResult{Code: 143, Signal: 15}
				}
				if err != nil || res != want {
					t.Errorf("%s: %+v, %v", h.TaskID, res, err)
				}
				if err := d.Destroy(t.Context(), driver.TaskRef{ID: h.TaskID, Handle: h}, true); err != nil {
					t.Error(err)
				}
			})
		}
		for range 3 {
			time.Sleep(time.Second)
			f.last("x").die()
			synctest.Wait()
		}
		// While it is away, ten tasks end.
		time.Sleep(5 * time.Second)
		f.mu.Lock()
		f.programs["x"].fails = 6
		f.mu.Unlock()
		time.Sleep(50 * time.Second)
		f.last("x").die()
		synctest.Wait()
		require.Equal(t, driver.Unhealthy, a.Status()[0].Health)
		require.Contains(t, a.Status()[0].Description, "the driver's process ended: killed; it is started again in 2s")
		time.Sleep(5 * time.Minute)
		require.Equal(t, driver.Healthy, a.Status()[0].Health)
		require.Equal(t, 4, a.Status()[0].Restarts)
		require.Len(t, f.programs["x"].fake.Alive(), 10)
		for i := range 10 {
			require.NoError(t, d.Stop(t.Context(), fmt.Sprintf("a/t%d/0", i+10), "SIGTERM", time.Second))
		}
		all.Wait()
		f.programs["x"].fake.Check(t)
		require.Equal(t, 20, f.programs["x"].fake.Lives())
	})
}

// Calls that may be repeated are, those that may not are not.
func TestDeathDuringCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, idempotent := range []bool{true, false} {
			f := newFarm("x")
			fake := f.programs["x"].fake
			fake.Capabilities = &driver.Capabilities{SendSignals: true, IdempotentStart: idempotent}
			a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Wait: 10 * time.Second})
			d := a.driver("x")
			fake.Slow(drivertest.Start, time.Second)
			time.AfterFunc(500*time.Millisecond, f.last("x").die)
			h, err := d.Start(t.Context(), task("a/t/0"))
			if idempotent {
				require.NoError(t, err)
				require.Equal(t, 2, fake.Count(drivertest.Start))
			} else {
				require.ErrorIs(t, err, driver.ErrPluginGone)
				require.True(t, driver.IsRecoverable(err))
				require.Equal(t, 1, fake.Count(drivertest.Start))
			}
			require.NoError(t, d.Destroy(t.Context(), driver.TaskRef{ID: "a/t/0", Handle: h, Cgroup: "/cg/a/t/0"}, true))
			require.Equal(t, 1, fake.Lives())

			// Nobody waits for ever.
			f.mu.Lock()
			f.programs["x"].fails = 1000
			f.mu.Unlock()
			f.last("x").die()
			began := time.Now()
			err = d.Stop(t.Context(), "a/t/0", "", 0)
			require.ErrorIs(t, err, driver.ErrUnavailable)
			require.ErrorContains(t, err, "its engine is not there")
			require.Equal(t, 10*time.Second, time.Since(began))
			_, err = d.Start(t.Context(), task("a/t/1"))
			require.True(t, driver.IsRecoverable(err), "%v", err)
			a.stop()
			began = time.Now()
			require.ErrorIs(t, d.(driver.Signaler).Signal(t.Context(), "x", "SIGHUP"), driver.ErrUnavailable)
			require.Zero(t, time.Since(began))
		}
	})
}

// The next agent finds the programs again, with their tasks; what has changed
// since is replaced, what is not wanted any more goes.
func TestReattach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("kept", "changed", "upgraded", "stale", "dropped", "denied")
		store := state.Memory()
		cfg := drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: drivermanager.StateRecords(store), Dir: "/run/x"}
		a := newAgent(t, cfg)
		for name := range f.programs {
			_, err := a.driver(name).Start(t.Context(), task("a/"+name+"/0"))
			require.NoError(t, err)
		}
		a.stop()
		for name := range f.programs {
			require.True(t, f.last(name).detached, name)
			require.False(t, f.last(name).closed, name)
		}

		f.programs["upgraded"].id = "2"
		f.programs["stale"].stale = true
		cfg.Programs = map[string]drivermanager.Settings{"program-changed": {Args: []string{"-v"}}, "program-dropped": {Disabled: true}}
		cfg.Deny = []string{"program-den*"}
		a = newAgent(t, cfg)
		for _, name := range []string{"kept", "changed", "upgraded", "stale"} {
			a.driver(name)
			want := 2
			if name == "kept" {
				want = 1
			}
			require.Len(t, f.programs[name].lives, want, name)
			require.False(t, f.last(name).gone())
		}
		require.Equal(t, []string{"-v"}, f.programs["changed"].launches[1].Args)
		for _, name := range []string{"dropped", "denied"} {
			_, err := a.Driver(t.Context(), name)
			require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
			require.True(t, f.last(name).gone(), name)
			require.Len(t, f.programs[name].lives, 1)
		}
		require.Len(t, f.swept[1], 4, "what is recorded is not swept away")
		require.Empty(t, a.Ready(t.Context()))
		a.stop()

		cfg.EndPrograms = true
		a = newAgent(t, cfg)
		require.Empty(t, a.Ready(t.Context()))
		a.stop()
		require.True(t, f.last("kept").gone())
		recs, err := cfg.Records.Load()
		require.NoError(t, err)
		require.Empty(t, recs)
	})
}

// A driver whose name is known from before is starting, not unknown.
func TestReattachSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		cfg := drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: drivermanager.StateRecords(state.Memory()), Wait: 5 * time.Second}
		a := newAgent(t, cfg)
		a.driver("x")
		a.stop()
		f.programs["x"].stale, f.programs["x"].fails = true, 3
		a = newAgent(t, cfg)
		defer a.stop()
		began := time.Now()
		a.driver("x")
		require.Greater(t, time.Since(began), time.Second)
	})
}

// Of two programs that are one driver the earlier one counts, whenever it comes.
func TestDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFarm("a"), newFarm("b")
		first.programs["a"].fake.Name, second.programs["b"].fake.Name = "same", "same"
		first.programs["a"].slow = time.Minute
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{first, second}})
		defer a.stop()
		d := a.driver("same")
		h, err := d.Start(t.Context(), task("x/t/0"))
		require.NoError(t, err)
		require.Len(t, second.programs["b"].fake.Alive(), 1)
		time.Sleep(2 * time.Minute)
		require.True(t, second.last("b").gone())
		_, err = d.Start(t.Context(), task("x/t/1"))
		require.NoError(t, err)
		require.Len(t, first.programs["a"].fake.Alive(), 1)
		st := a.Status()
		require.Equal(t, "same", st[0].Driver)
		require.Empty(t, st[1].Driver)
		require.Contains(t, st[1].Description, `another program is the driver "same" already`)
		require.Len(t, second.programs["b"].launches, 1, "it is not tried again")
		_ = h
	})
}

// No drivers are nothing to wait for.
func TestNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, drivermanager.Config{})
		defer a.stop()
		began := time.Now()
		require.Empty(t, a.Ready(t.Context()))
		_, err := a.Driver(t.Context(), "x")
		require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
		require.Zero(t, time.Since(began))
	})
}

func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("a", "b", "c")
		f.programs["c"].fake.Name = "evil"
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Allow: []string{"program-a", "program-c", "a"}})
		defer a.stop()
		a.driver("a")
		_, err := a.Driver(t.Context(), "b")
		require.ErrorIs(t, err, drivermanager.ErrUnknownDriver)
		_, err = a.Driver(t.Context(), "evil")
		require.ErrorContains(t, err, `the driver "evil" is not allowed here`)
		require.True(t, f.last("c").gone())
		require.Empty(t, f.programs["b"].launches)
	})
}

func TestFingerprintsAndWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f, drivermanager.InProcess(&drivertest.Fake{Name: "inside"})}})
		ctx, cancel := context.WithCancel(t.Context())
		watch := a.Watch(ctx)
		fps, err := a.driver("x").Fingerprint(ctx)
		require.NoError(t, err)
		require.Equal(t, driver.Healthy, (<-fps).Health)
		synctest.Wait()
		st := <-watch
		require.Len(t, st, 2)
		f.mu.Lock()
		f.programs["x"].fails = 1
		f.mu.Unlock()
		f.last("x").die()
		fp := <-fps
		require.Equal(t, driver.Unhealthy, fp.Health)
		for fp.Health != driver.Healthy {
			fp = <-fps
		}
		for st = range watch {
			if st[0].Health == driver.Healthy && st[0].Restarts == 1 {
				break
			}
		}
		require.Equal(t, []string{"x", "inside"}, []string{st[0].Driver, st[1].Driver})
		require.Equal(t, map[string]string{"driver.x": "1"}, st[0].Attributes)
		cancel()
		for range watch {
		}
		for range fps {
		}
		a.stop()
		_, ok := <-a.Watch(t.Context())
		require.True(t, ok, "the last status can be had")
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}})
		defer a.stop()
		a.driver("x")
		var got []string
		send := func(alloc, text string) {
			f.programs["x"].events <- driver.Event{AllocID: alloc, Task: "web", Message: text}
			synctest.Wait()
		}
		send("al", "before anybody asked")
		send("other", "nobody's")
		cancel := a.Subscribe("al", "web", func(e driver.Event) { got = append(got, e.Message) })
		send("al", "one")
		f.last("x").die()
		time.Sleep(time.Second)
		send("al", "two")
		again := a.Subscribe("al", "web", func(e driver.Event) { got = append(got, "again "+e.Message) })
		cancel()
		send("al", "three")
		again()
		again()
		for i := range 257 {
			send("al", strconv.Itoa(i))
		}
		require.Equal(t, []string{"before anybody asked", "one", "two", "again three"}, got)
		got = nil
		a.Subscribe("al", "web", func(e driver.Event) { got = append(got, e.Message) })
		require.Len(t, got, 256, "the latest; each once")
		require.Equal(t, "1", got[0])
		send("al", "last")
		require.Equal(t, "last", got[256])
	})
}

func TestInProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &configured{Fake: &drivertest.Fake{Name: "in"}}
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{drivermanager.InProcess(c)}, Node: &driver.Node{MinPort: 5},
			Programs: map[string]drivermanager.Settings{"in": {Config: json.RawMessage(`{"a":"8"}`)}, "nowhere": {}}})
		d := a.driver("in")
		require.JSONEq(t, `{"a":8}`, string(c.setup.Config))
		require.Equal(t, 5, c.setup.Node.MinPort)
		require.Same(t, c, d, "nothing stands between")
		require.Empty(t, a.Ready(t.Context()))
		s := a.Status()[0]
		require.True(t, s.InProcess && s.Health == driver.Healthy && s.Driver == "in" && s.PID == 0, "%+v", s)
		require.ErrorIs(t, a.Run(t.Context()), drivermanager.ErrRunning)
		a.stop()
	})
}

type configured struct {
	*drivertest.Fake
	setup driver.Setup
}

func (c *configured) Info() driver.Info {
	i := c.Fake.Info()
	i.ConfigSchema = driver.Object(map[string]*driver.Schema{"a": driver.Attr("number", true)})
	return i
}

func (c *configured) Configure(_ context.Context, s driver.Setup) error { c.setup = s; return nil }

func TestConfig(t *testing.T) {
	_, err := drivermanager.New(drivermanager.Config{Launchers: []drivermanager.Launcher{nil}, Allow: []string{"["}, Deny: []string{""}, Wait: -1, MaxBackoff: -1, Dir: "x"})
	for _, want := range []string{"Launchers[0]", "Allow[0]", "Deny[0]", "Wait", "MaxBackoff", "Dir"} {
		require.ErrorContains(t, err, "Config."+want)
	}
	m, err := drivermanager.New(drivermanager.Config{})
	require.NoError(t, err)
	require.Empty(t, m.Status())
}

// A record that cannot be read, and one of a launcher that is gone, harm nobody.
func TestBadRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recs := drivermanager.StateRecords(state.Memory())
		require.NoError(t, recs.Save("program-x", json.RawMessage(`"what"`)))
		require.NoError(t, recs.Save("program-y", json.RawMessage(`{"launcher":7,"record":1}`)))
		require.NoError(t, recs.Save("program-z", json.RawMessage(`{"launcher":0,"record":1}`)))
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{newFarm("x")}, Records: recs})
		a.driver("x")
		a.stop()
		left, err := recs.Load()
		require.NoError(t, err)
		require.Len(t, left, 1)
	})
}

// The drivers of this process are known before they run, and of two with one name
// the first counts, that of this process before a program.
func TestInProcessNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &drivertest.Fake{Name: "same"}, &drivertest.Fake{Name: "same"}
		f := newFarm("same", "slow")
		f.programs["slow"].slow = time.Second
		m, err := drivermanager.New(drivermanager.Config{Launchers: []drivermanager.Launcher{drivermanager.InProcess(one, two), f}})
		require.NoError(t, err)
		require.Equal(t, "same", m.Status()[0].Driver)
		require.NoError(t, m.Check("other"), "nobody has spoken yet")
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{drivermanager.InProcess(one, two), f}})
		defer a.stop()
		require.Same(t, one, a.driver("same"))
		require.NoError(t, a.Check("other"), "a program is starting")
		require.Empty(t, a.Ready(t.Context()))
		require.ErrorIs(t, a.Check("other"), drivermanager.ErrUnknownDriver)
		require.NoError(t, a.Check("slow"))
		for _, s := range a.Status() {
			switch {
			case s.InProcess:
				require.Equal(t, driver.Healthy, s.Health)
			case s.Program == "program-same":
				require.Contains(t, s.Description, "another program is the driver")
				require.Empty(t, s.Driver)
			default:
				require.Equal(t, 1000, s.PID)
			}
		}
	})
}

// fullDisk fails to write.
type fullDisk struct {
	drivermanager.Records
	full bool
}

func (r *fullDisk) Save(name string, rec json.RawMessage) error {
	if r.full {
		return errors.New("no space left on device")
	}
	return r.Records.Save(name, rec)
}

// A process that cannot be noted runs all the same, and lives on if it can be noted
// when the agent goes; else it ends, as no agent would find it.
func TestRecordsFail(t *testing.T) {
	for _, recovers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFarm("x")
			recs := &fullDisk{Records: drivermanager.StateRecords(state.Memory()), full: true}
			a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: recs})
			a.driver("x")
			recs.full = !recovers
			a.stop()
			require.Equal(t, recovers, f.last("x").detached)
			require.Equal(t, !recovers, f.last("x").closed)
			left, err := recs.Load()
			require.NoError(t, err)
			require.Equal(t, recovers, len(left) == 1)
		})
	}
}

// An agent that leaves nothing behind says so when it knows.
func TestEndPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x")
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: drivermanager.StateRecords(state.Memory())})
		a.driver("x")
		a.EndPrograms()
		a.stop()
		require.True(t, f.last("x").closed)
	})
}
