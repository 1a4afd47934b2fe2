// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package devicemanager_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
)

func inProcess(p ...device.Plugin) []devicemanager.Launcher {
	return []devicemanager.Launcher{devicemanager.InProcess(p...)}
}

func granted(group string, ids ...string) *spec.Resources {
	return &spec.Resources{Devices: []spec.DeviceRequest{ask("gpu", len(ids))}, Granted: []spec.DeviceInstance{{Vendor: "acme", Type: "gpu", Name: group, IDs: ids}}}
}

// kept are the values in a store.
func kept(t *testing.T, s state.Store) (out []string) {
	t.Helper()
	dump, err := statetest.Dump(s)
	require.NoError(t, err)
	for _, line := range dump {
		if strings.Contains(line, " = ") || strings.HasPrefix(line, "v1/devicemanager/") && len(line) > len("v1/devicemanager/") {
			out = append(out, line)
		}
	}
	return out
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpu, fpga := gpus("g", "a", "b"), &devicetest.Fake{Name: "f", Groups: []device.Group{devicetest.Make("acme/fpga/f", nil, "z")}}
		store := state.Memory()
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(gpu, fpga), Store: store})
		a.Ready(t.Context())
		res := wants(ask("gpu", 1), ask("fpga", 1), ask("gpu", 1))
		want := device.Reservation{Env: map[string]string{"FAKE_IDS": "z"},
			Mounts:  []driver.Mount{{Source: "/lib/a", Target: "/lib/a", ReadOnly: true}, {Source: "/lib/b", Target: "/lib/b", ReadOnly: true}, {Source: "/lib/z", Target: "/lib/z", ReadOnly: true}},
			Devices: []driver.Device{{HostPath: "/dev/a", TaskPath: "/dev/a", Permissions: "rw"}, {HostPath: "/dev/b", TaskPath: "/dev/b", Permissions: "rw"}, {HostPath: "/dev/z", TaskPath: "/dev/z", Permissions: "rw"}}}
		for range 3 { // the task is restarted
			got, given, err := a.Reserve(t.Context(), "alloc", "t", res, false)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, []spec.DeviceInstance{{Vendor: "acme", Type: "gpu", Name: "g", IDs: []string{"a", "b"}}, {Vendor: "acme", Type: "fpga", Name: "f", IDs: []string{"z"}}}, given)
			got.Env["FAKE_IDS"] = "mine" // a caller's copy
		}
		require.Equal(t, [][]string{{"a", "b"}}, gpu.Reserved(), "both of a group at once, and once")
		require.Equal(t, int64(1), store.(state.Stats).Commits())
		a.stop()

		// The next agent knows it before any plugin says a word, with all outputs.
		mute := gpus("g", "a", "b")
		mute.Silent = true
		b := newAgent(t, devicemanager.Config{Launchers: inProcess(mute, fpga), Store: store})
		got, given, err := b.Reserve(t.Context(), "alloc", "t", res, true)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Len(t, given, 2)
		mute.Set(gpu.Groups...)
		synctest.Wait()
		_, err = b.get("other", granted("g", "a"))
		require.ErrorIs(t, err, devicemanager.ErrBusy)
		got, _, err = b.Reserve(t.Context(), "alloc", "t", res, false)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Empty(t, mute.Reserved(), "what it said before is kept")
		b.release("alloc")
		b.release("alloc")
		require.Equal(t, []string{"g/a"}, b.must("other", granted("g", "a")))
		b.release("other")
		b.stop()
		require.Empty(t, kept(t, store))
		_, _, err = b.Reserve(t.Context(), "alloc", "t", res, true)
		require.ErrorContains(t, err, "is not known any more", "nothing is made up for a task that runs")
	})
}

// Whoever comes first has it; the others wait for it, half a minute.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(gpus("g", "a"))})
		defer a.stop()
		a.Ready(t.Context())
		a.must("one", wants(ask("gpu", 1)))
		began := time.Now()
		_, err := a.get("two", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, devicemanager.ErrBusy)
		require.True(t, driver.IsRecoverable(err))
		require.Equal(t, 30*time.Second, time.Since(began))
		_, err = a.get("two", granted("g", "a"))
		require.ErrorContains(t, err, `device acme/gpu/g[a] is with task "t" of alloc one`)
		require.True(t, driver.IsRecoverable(err))
		go func() {
			time.Sleep(10 * time.Second)
			a.release("one")
		}()
		began = time.Now()
		require.Equal(t, []string{"g/a"}, a.must("two", wants(ask("gpu", 1))))
		require.Equal(t, 10*time.Second, time.Since(began))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("killed"))
		defer cancel()
		_, _, err = a.Reserve(ctx, "three", "t", wants(ask("gpu", 1)), false)
		require.EqualError(t, err, "killed")
	})
}

// The rule of thirty seconds: a start waits that long for a plugin that is silent,
// at its first start and at any other, and fails recoverably.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("g", "a"))
		f.programs["g"].fake.Silent = true
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{f}})
		defer a.stop()
		for _, res := range []*spec.Resources{wants(ask("gpu", 1)), granted("g", "a")} {
			began := time.Now()
			_, err := a.get("a", res)
			require.ErrorIs(t, err, driver.ErrUnavailable)
			require.ErrorContains(t, err, "device plugin g is silent")
			require.True(t, driver.IsRecoverable(err))
			require.Equal(t, 30*time.Second, time.Since(began))
		}
		go func() {
			time.Sleep(29 * time.Second)
			f.programs["g"].fake.Set(devicetest.Make("acme/gpu/g", nil, "a"))
		}()
		a.must("a", wants(ask("gpu", 1)))

		// Later, between two lives.
		f.mu.Lock()
		for range 100 {
			f.programs["g"].fails = append(f.programs["g"].fails, errStart)
		}
		f.mu.Unlock()
		f.last("g").die()
		synctest.Wait()
		_, err := a.get("a", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, driver.ErrUnavailable)
		require.True(t, driver.IsRecoverable(err))
		_, _, err = a.Reserve(t.Context(), "a", "t", wants(ask("gpu", 1)), true)
		require.NoError(t, err, "one that runs is not disturbed")
		_, err = a.get("b", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, driver.ErrUnavailable, "the device is still with a")
		f.mu.Lock()
		f.programs["g"].fails = nil
		f.mu.Unlock()
		require.Equal(t, []string{"g/a"}, func() []string {
			for {
				if got, err := a.get("a", wants(ask("gpu", 1))); err == nil {
					return got
				}
			}
		}())
	})
}

// A plugin that does not answer Reserve is given up after the same time, and one
// that dies over it is asked again in its next life.
func TestReserveOfAPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm(gpus("g", "a", "b"))
		var hook func(context.Context, []string) error
		f.programs["g"].fake.ReserveHook = func(ctx context.Context, ids []string) error { return hook(ctx, ids) }
		store := state.Memory()
		a := newAgent(t, devicemanager.Config{Launchers: []devicemanager.Launcher{f}, Store: store})
		defer a.stop()
		a.Ready(t.Context())
		hook = func(ctx context.Context, _ []string) error { <-ctx.Done(); return context.Cause(ctx) }
		began := time.Now()
		_, err := a.get("a", wants(ask("gpu", 1)))
		require.True(t, driver.IsRecoverable(err), err)
		require.Equal(t, 30*time.Second, time.Since(began))
		hook = func(context.Context, []string) error { return errors.New("it is on fire") }
		_, err = a.get("a", wants(ask("gpu", 1)))
		require.EqualError(t, err, "device plugin g: reserve a of acme/gpu/g: it is on fire")
		require.False(t, driver.IsRecoverable(err))
		hook = func(context.Context, []string) error { return driver.Recoverable(errors.New("it is warm")) }
		_, err = a.get("a", wants(ask("gpu", 1)))
		require.True(t, driver.IsRecoverable(err))
		require.Empty(t, a.Devices()[0].Owners, "after a failure it has nothing")
		require.Zero(t, store.(state.Stats).Commits())

		died := 0
		hook = func(ctx context.Context, _ []string) error {
			if died++; died <= 3 {
				f.last("g").die()
			}
			return nil
		}
		require.Equal(t, []string{"g/a", "g/b"}, a.must("a", wants(ask("gpu", 2))))
		require.Equal(t, 4, died)

		// Released while the plugin is being asked: nothing is kept.
		a.release("a")
		asked := make(chan bool)
		hook = func(context.Context, []string) error { asked <- true; <-asked; return nil }
		failed := make(chan error)
		go func() {
			_, err := a.get("a", wants(ask("gpu", 1)))
			failed <- err
		}()
		<-asked
		a.release("a")
		asked <- true
		require.ErrorContains(t, <-failed, "were released meanwhile")
		require.Empty(t, a.Devices()[0].Owners)
		require.Empty(t, kept(t, store))
	})
}

// What nobody granted and is unhealthy at the next start is given back for another;
// what the scheduler granted is waited for.
func TestUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := gpus("g", "a", "b", "c")
		store := state.Memory()
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(f), Store: store})
		a.Ready(t.Context())
		require.Equal(t, []string{"g/a"}, a.must("free", wants(ask("gpu", 1))))
		require.Equal(t, []string{"g/b"}, a.must("fixed", granted("g", "b")))
		g := devicetest.Make("acme/gpu/g", nil, "a", "b", "c")
		g.Instances[0] = device.Instance{ID: "a", Description: "fell off the bus"}
		g.Instances[1] = device.Instance{ID: "b", Description: "too hot"}
		f.Set(g)
		synctest.Wait()
		require.Equal(t, []string{"g/c"}, a.must("free", wants(ask("gpu", 1))))
		_, err := a.get("fixed", granted("g", "b"))
		require.ErrorContains(t, err, "device acme/gpu/g[b] is unhealthy: too hot")
		require.True(t, driver.IsRecoverable(err))
		go func() { time.Sleep(time.Second); f.Set(devicetest.Make("acme/gpu/g", nil, "b", "c")) }()
		require.Equal(t, []string{"g/b"}, a.must("fixed", granted("g", "b")))
		a.stop()
	})
}

// Nothing is ever with two tasks, whoever comes and goes.
func TestNoDoubleReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.Memory()
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(gpus("g", "1", "2", "3"), gpus("h", "4", "5")), Store: store})
		a.Ready(t.Context())
		var mu sync.Mutex
		with := map[string]string{}
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(n)))
				id := fmt.Sprint("alloc", n)
				for range 20 {
					got, err := a.get(id, wants(ask("gpu", 1+rnd.IntN(2))))
					if err != nil {
						require.True(t, driver.IsRecoverable(err), err)
						continue
					}
					mu.Lock()
					for _, d := range got {
						require.Empty(t, with[d], "%s has %s already", with[d], d)
						with[d] = id
					}
					mu.Unlock()
					time.Sleep(time.Duration(rnd.IntN(5)) * time.Second)
					mu.Lock()
					for _, d := range got {
						delete(with, d)
					}
					mu.Unlock()
					a.release(id)
				}
			})
		}
		wg.Wait()
		a.stop()
		require.Empty(t, kept(t, store))
	})
}

// An agent that dies at any commit, before it or after it: the next one gives no
// device to two tasks, and in the end none is kept.
func TestCrashSweep(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n, over := 1, false; !over; n++ {
			synctest.Test(t, func(t *testing.T) {
				store := state.Memory()
				crash := statetest.CrashAt(store, n)
				if after {
					crash = statetest.CrashAfter(store, n)
				}
				f := gpus("g", "1", "2", "3")
				life := func(s state.Store) {
					a := newAgent(t, devicemanager.Config{Launchers: inProcess(f), Store: s, Patience: time.Second})
					defer a.stop()
					a.Ready(t.Context())
					has := map[string]string{}
					for _, id := range []string{"a", "b", "c"} {
						got, err := a.get(id, wants(ask("gpu", 1)))
						if err != nil {
							require.ErrorIs(t, err, statetest.ErrCrash)
							return
						}
						require.Empty(t, has[got[0]])
						has[got[0]] = id
					}
					for _, id := range []string{"a", "b", "c"} {
						if err := a.Release(t.Context(), id, "t"); err != nil {
							require.ErrorIs(t, err, statetest.ErrCrash)
							return
						}
					}
				}
				life(crash)
				select {
				case <-crash.Crashed():
				default:
					over = true
				}
				life(store)
				require.Empty(t, kept(t, store))
			})
			require.Less(t, n, 20)
		}
	}
}

// A disk that fails: nothing starts that is not written down, what ends is free at
// once, and the next write makes it good.
func TestDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.Memory()
		bad := statetest.Faulty(store, statetest.Faults{Err: syscall.ENOSPC, At: 2, For: 2})
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(gpus("g", "1", "2")), Store: bad, Patience: time.Second})
		a.Ready(t.Context())
		a.must("a", wants(ask("gpu", 2)))
		require.ErrorIs(t, a.Release(t.Context(), "a", "t"), syscall.ENOSPC)
		_, err := a.get("b", wants(ask("gpu", 1)))
		require.ErrorIs(t, err, state.ErrCommit)
		require.True(t, driver.IsRecoverable(err))
		require.Equal(t, []string{"g/1"}, a.must("b", wants(ask("gpu", 1))))
		a.stop()
		b := newAgent(t, devicemanager.Config{Launchers: inProcess(gpus("g", "1", "2")), Store: store})
		require.Empty(t, b.Ready(t.Context()))
		require.Equal(t, map[string]devicemanager.Owner{"1": {AllocID: "b", Task: "t"}}, b.Devices()[0].Owners)
		require.NoError(t, b.Retain(func(id string) bool { return id == "b" }))
		require.Len(t, b.Devices()[0].Owners, 1)
		require.NoError(t, b.Retain(func(string) bool { return false }))
		require.Empty(t, b.Devices()[0].Owners)
		b.stop()
		require.Empty(t, kept(t, store))
	})
}

// A record that cannot be read harms nobody else; a newer agent's stays.
func TestBadRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.Memory()
		require.NoError(t, store.Update(func(tx state.Tx) error {
			newer := state.Slot[string]{Key: "reservation", Version: 99}
			return errors.Join(tx.Put(state.Path{"v1", "devicemanager", "x", "task-t"}, "reservation", []byte("junk")),
				newer.Save(tx, state.Path{"v1", "devicemanager", "y", "task-t"}, "future"))
		}))
		a := newAgent(t, devicemanager.Config{Launchers: inProcess(gpus("g", "1")), Store: store})
		a.Ready(t.Context())
		a.must("a", wants(ask("gpu", 1)))
		a.stop()
		require.Len(t, kept(t, store), 6, "two records, below two nodes each")
	})
}
