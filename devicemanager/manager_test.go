// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
)

func TestSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("outside", "o1"))
		own := gpus("inside", "i1", "i2")
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(own), f}, Dir: "/run/x"})
		defer a.stop()
		require.Empty(t, a.Ready(t.Context()))
		require.Equal(t, []string{"/run/x"}, f.swept)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch := a.Watch(ctx)
		groups := <-watch
		require.Equal(t, "acme/gpu/inside", groups[0].ID())
		require.Equal(t, "outside", groups[1].Plugin)
		require.Equal(t, []string{"inside/i1"}, a.must("alloc", wants(ask("gpu", 1))))
		require.Equal(t, map[string]devicemanager.Owner{"i1": {AllocID: "alloc", Task: "t"}}, (<-watch)[0].Owners)
		own.Set() // all unplugged
		synctest.Wait()
		require.Len(t, <-watch, 1)
		st := a.Status()
		require.True(t, st[0].InProcess)
		require.Equal(t, devicemanager.Status{Program: "outside", Plugin: "outside", Version: "1.0.0", Health: driver.Healthy, Groups: 1, PID: 1000}, st[1])
	})
}

// No plugins are nothing to wait for.
func TestNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, devicemanager.Config{})
		defer a.stop()
		began := time.Now()
		require.Empty(t, a.Ready(t.Context()))
		_, err := a.get("a", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, devicemanager.ErrNoDevice)
		require.Zero(t, time.Since(began))
	})
}

// FF-072: an empty list is a first word.
func TestEmptyIsAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &devicetest.Fake{Name: "late"}
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(f)}})
		defer a.stop()
		began := time.Now()
		require.Empty(t, a.Ready(t.Context()))
		require.Less(t, time.Since(began), time.Second)
		_, err := a.get("a", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, devicemanager.ErrNoDevice)
		require.False(t, driver.IsRecoverable(err))
		require.Less(t, time.Since(began), time.Second, "there is nothing to wait for")
		f.Set(devicetest.Make("acme/gpu/x", nil, "a"))
		synctest.Wait()
		require.Equal(t, []string{"x/a"}, a.must("a", wants(ask("gpu", 1))))
	})
}

// FF-074: a plugin that ends right after its start is started again, with pauses;
// the error is a real one; one that is disabled, or no plugin of devices, is left
// alone. None of them keeps the node waiting for longer than it may.
func TestUnstable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("flaky", "a"), gpus("off"), gpus("driver"), gpus("broken"))
		f.programs["flaky"].quits = 3
		f.programs["flaky"].fake.Silent = true
		f.programs["off"].fake.Fail(fmt.Errorf("by the operator: %w", device.ErrDisabled))
		f.programs["driver"].fails = []error{fmt.Errorf("x: %w", devicemanager.ErrOtherKind)}
		for range 1000 {
			f.programs["broken"].fails = append(f.programs["broken"].fails, errStart)
		}
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{f}, Wait: time.Minute})
		defer a.stop()
		require.Empty(t, a.Ready(t.Context()), "a failure is a word")
		status := map[string]devicemanager.Status{}
		for _, s := range a.Status() {
			status[s.Program] = s
		}
		require.Equal(t, driver.Undetected, status["off"].Health)
		require.Contains(t, status["off"].Description, "by the operator")
		require.Equal(t, driver.Undetected, status["driver"].Health)
		require.Contains(t, status["broken"].Description, "its library is not there")
		require.Contains(t, status["flaky"].Description, "the plugin's process ended: killed")
		time.Sleep(10 * time.Second)
		f.programs["flaky"].fake.Set(devicetest.Make("acme/gpu/x", nil, "a"))
		synctest.Wait()
		require.Equal(t, []string{"x/a"}, a.must("a", wants(ask("gpu", 1))))
		var pauses []time.Duration
		launches := f.launched("flaky")
		for n, at := range launches[1:] {
			pauses = append(pauses, at.Sub(launches[n]))
		}
		require.Equal(t, []time.Duration{0, 500 * time.Millisecond, time.Second}, pauses)
		time.Sleep(time.Hour)
		require.Len(t, f.launched("off"), 1)
		require.Len(t, f.launched("driver"), 1)
		require.Less(t, len(f.launched("broken")), 80, "once a minute")
		require.Greater(t, len(f.launched("broken")), 50)
	})
}

// New programs are started when the directory is read again, replaced ones are
// started anew: tasks keep what they have, statistics go on, and one that was refused
// has another chance.
func TestRescan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("x", "a"), gpus("off"))
		f.programs["off"].fails = []error{devicemanager.ErrOtherKind}
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{f}, Deny: []string{"denied"}})
		defer a.stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stats := a.Stats(ctx, time.Second)
		<-stats
		require.Equal(t, []string{"x/a"}, a.must("one", wants(ask("gpu", 1))))
		require.NoError(t, a.Rescan())
		synctest.Wait()
		require.Len(t, f.launched("x"), 1, "nothing has changed")

		f.mu.Lock()
		f.programs["x"].id, f.programs["off"].id = "2", "2"
		f.programs["off"].fake.Set(devicetest.Make("acme/gpu/off", nil, "c"))
		for name, p := range newFarm(gpus("y", "b"), gpus("denied", "d")).programs {
			f.programs[name] = p
		}
		f.mu.Unlock()
		require.NoError(t, a.Rescan())
		synctest.Wait()
		require.Len(t, f.launched("x"), 2)
		require.Zero(t, a.Status()[1].Restarts, "that was no death")
		require.Empty(t, f.launched("denied"))
		require.Equal(t, []string{"x/a"}, a.must("one", wants(ask("gpu", 1))))
		require.Len(t, a.must("two", wants(ask("acme/gpu/y", 1), ask("acme/gpu/off", 1))), 2)
		seen := map[string]bool{}
		for len(seen) < 3 {
			for _, g := range (<-stats).Groups {
				seen[g.Name] = true
			}
		}
	})
}

// While a plugin's process is away its devices are there and unhealthy; they come
// back with the next one, as do statistics.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("p", "a"))
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{f}})
		defer a.stop()
		a.Ready(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		stats := a.Stats(ctx, time.Second)
		require.Equal(t, int64(1), *(<-stats).Groups[0].Instances["a"].Summary.Int)
		require.Equal(t, int64(2), *(<-stats).Groups[0].Instances["a"].Summary.Int)
		f.mu.Lock()
		f.programs["p"].fails = []error{errStart, errStart}
		f.mu.Unlock()
		f.last("p").die()
		synctest.Wait()
		in := a.Devices()[0].Instances[0]
		require.False(t, in.Healthy)
		require.Contains(t, in.Description, "its library is not there")
		time.Sleep(5 * time.Second)
		require.True(t, a.Devices()[0].Instances[0].Healthy)
		require.Equal(t, 1, a.Status()[0].Restarts)
		require.Equal(t, int64(1), *(<-stats).Groups[0].Instances["a"].Summary.Int, "of the next process")
		cancel()
		for range stats {
		}
	})
}

// A fingerprint that is faulty is used in no part, and the plugin goes on.
func TestFaultyFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := gpus("p", "a")
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(f)}})
		defer a.stop()
		a.Ready(t.Context())
		f.Set(devicetest.Make("acme/gpu/p", nil, "b", "b"))
		synctest.Wait()
		require.Equal(t, "a", a.Devices()[0].Instances[0].ID)
		require.False(t, a.Devices()[0].Instances[0].Healthy)
		require.Contains(t, a.Status()[0].Description, `instance "b"`)
		f.Set(devicetest.Make("acme/gpu/p", nil, "b"))
		synctest.Wait()
		require.True(t, a.Devices()[0].Instances[0].Healthy)
		f.Fail(errors.New("the bus is down"))
		synctest.Wait()
		require.Equal(t, "the bus is down", a.Devices()[0].Instances[0].Description)
	})
}

// Two plugins that tell of one device: it is the first one's.
func TestOneDeviceTwoPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := gpus("one"), gpus("two")
		one.Groups = []device.Group{devicetest.Make("acme/gpu/x", nil, "a")}
		two.Groups = one.Groups
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(one, two)}})
		defer a.stop()
		a.Ready(t.Context())
		require.Len(t, a.Devices(), 1)
		a.must("a", wants(ask("gpu", 1)))
		require.ErrorIs(t, a.Check(wants(ask("gpu", 2)).Devices), devicemanager.ErrNoDevice)
		require.Len(t, one.Reserved(), 1)
		require.Empty(t, two.Reserved())
	})
}

func TestSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schema := driver.Object(map[string]*driver.Schema{"x": driver.Default(driver.Attr("number", false), "7")})
		fakes := []*devicetest.Fake{{Name: "a", Schema: schema}, {Name: "b", Schema: schema}, {Name: "c"}, {Name: "d"}, {Name: "bad", Schema: schema}}
		var plugins []device.Plugin
		for _, f := range fakes {
			plugins = append(plugins, f)
		}
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(plugins...)}, Allow: []string{"?", "bad"}, Deny: []string{"d"},
			Programs: map[string]devicemanager.Settings{"a": {Config: json.RawMessage(`{"x":9}`)}, "c": {Disabled: true}, "bad": {Config: json.RawMessage(`{"y":1}`)}, "none": {}}})
		defer a.stop()
		a.Ready(t.Context())
		require.JSONEq(t, `{"x":9}`, string(fakes[0].Config()))
		require.JSONEq(t, `{"x":7}`, string(fakes[1].Config()))
		var got []string
		for _, s := range a.Status() {
			got = append(got, s.Program+" "+string(s.Health))
		}
		require.Equal(t, []string{"a healthy", "b healthy", "bad unhealthy"}, got)
		require.Contains(t, a.Status()[2].Description, "y")
	})
}

func TestConfigFaults(t *testing.T) {
	_, err := devicemanager.New(devicemanager.Config{Launchers: []devicemanager.Launcher{nil}, Allow: []string{"["}, Deny: []string{""}, Dir: "x", Wait: -1, Patience: -1, MaxBackoff: -1})
	require.Equal(t, 7, strings.Count(err.Error(), "devicemanager: Config."), err)
	var ce *devicemanager.ConfigError
	require.ErrorAs(t, err, &ce)
	m, err := devicemanager.New(devicemanager.Config{})
	require.NoError(t, err, "the zero value is a node without devices")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, m.Run(ctx))
	require.ErrorIs(t, m.Run(ctx), devicemanager.ErrRunning)
	for range m.Watch(ctx) {
	}
	require.Empty(t, m.Devices())
}

// One that never speaks delays the node by no more than Wait.
func TestSilentStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := gpus("mute", "a")
		f.Silent = true
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(f)}, Wait: 20 * time.Second})
		defer a.stop()
		began := time.Now()
		require.Equal(t, []string{"mute"}, a.Ready(t.Context()))
		require.Equal(t, 20*time.Second, time.Since(began))
		require.NoError(t, a.Check(wants(ask("gpu", 1)).Devices), "it may yet have one")
	})
}
