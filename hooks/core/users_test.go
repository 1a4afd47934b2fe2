// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// newUsers makes users as an agent that is root has them.
func newUsers(t *testing.T, store state.Store, span UserRange) *Users {
	t.Helper()
	u, err := NewUsers(store, span)
	require.NoError(t, err)
	u.allowed = true
	return u
}

func TestUsers(t *testing.T) {
	store := state.Memory()
	u := newUsers(t, store, UserRange{3_000_000, 3_000_002})
	given := map[int]bool{}
	for _, task := range []string{"a", "b", "c"} {
		uid, err := u.Take("x", task)
		require.NoError(t, err)
		require.False(t, given[uid], "%d twice", uid)
		given[uid] = true
		again, err := u.Take("x", task)
		require.NoError(t, err)
		require.Equal(t, uid, again)
	}
	_, err := u.Take("y", "a")
	require.ErrorContains(t, err, "all uids from 3000000 to 3000002 are in use")
	require.True(t, driver.IsRecoverable(err))
	a, _ := u.Held("x", "a")

	// The next agent knows them, also with another range.
	u = newUsers(t, store, UserRange{})
	got, ok := u.Held("x", "a")
	require.True(t, ok)
	require.Equal(t, a, got)

	u = newUsers(t, store, UserRange{3_000_000, 3_000_003})
	uid, err := u.Take("y", "a")
	require.NoError(t, err)
	require.Equal(t, 3_000_003, uid, "the only one that is free")
	require.NoError(t, u.Retain(func(id string) bool { return id == "y" }))
	_, ok = u.Held("x", "a")
	require.False(t, ok)
	commits := store.(state.Stats).Commits()
	for range 2 {
		require.NoError(t, u.Release("y"))
	}
	require.Equal(t, commits+1, store.(state.Stats).Commits(), "nothing to take back: nothing is written")
	for range 4 {
		next, err := u.Take("z", fmt.Sprint(len(u.by)))
		require.NoError(t, err)
		if len(u.by) < 4 {
			require.NotEqual(t, uid, next, "what was given back comes again last")
		}
	}
}

func TestUsersOfTheHostArePassedOver(t *testing.T) {
	u := newUsers(t, state.Memory(), UserRange{1, 1}) // daemon, on every host
	if known, err := u.host.Known(1); err != nil || !known {
		t.Skip("uid 1 is nobody here")
	}
	_, err := u.Take("x", "a")
	require.ErrorContains(t, err, "are in use")
}

func TestUsersFaults(t *testing.T) {
	for _, span := range []UserRange{{0, 5}, {5, 4}, {-1, 3}, {1, 1<<32 - 1}, {7, 0}} {
		_, err := NewUsers(state.Memory(), span)
		require.Error(t, err, "%+v", span)
	}
	store := state.Memory()
	u := newUsers(t, statetest.Faulty(store, statetest.Faults{Err: syscall.ENOSPC, At: 1}), UserRange{3_000_000, 3_000_000})
	_, err := u.Take("x", "a")
	require.ErrorIs(t, err, state.ErrCommit)
	require.True(t, driver.IsRecoverable(err))
	uid, err := u.Take("x", "b")
	require.NoError(t, err, "what was not written is not taken")

	// A record that cannot be read keeps its uid from everybody.
	require.NoError(t, store.Update(func(tx state.Tx) error {
		return errors.Join(tx.Put(usersPath(), strconv.Itoa(uid), []byte("?")), tx.Put(usersPath(), "who", nil))
	}))
	u = newUsers(t, store, UserRange{uid, uid})
	require.NoError(t, u.Retain(func(string) bool { return false }))
	_, err = u.Take("y", "a")
	require.ErrorContains(t, err, "are in use")
}

// household is an alloc of two tasks with users of their own under agents that die.
type household struct {
	t     *testing.T
	store state.Store
	fake  *drivertest.Fake
	alloc *spec.Alloc
}

func newHousehold(t *testing.T) *household {
	h := &household{t: t, store: state.Memory()}
	h.fake = &drivertest.Fake{Capabilities: &driver.Capabilities{IdempotentStart: true, CollectsLogs: true, DynamicUsers: true},
		Script: func(n int, c driver.TaskConfig) drivertest.Life {
			if c.Owner.Attempt == 0 && c.Name == "web" {
				return drivertest.Life{Run: time.Second, Exit: driver.ExitResult{Code: 1}}
			}
			return drivertest.Life{Run: drivertest.Forever}
		}}
	h.alloc = &spec.Alloc{ID: "a", JobID: "j", Group: "g", ModifyIndex: 1, Tasks: []spec.Task{
		{Name: "web", Driver: "fake"}, {Name: "side", Driver: "fake"}, {Name: "own", Driver: "fake", User: "nobody"}}}
	return h
}

// agent is one life of the agent: until the alloc is destroyed, or it has died.
func (h *household) agent(store *statetest.Crash, wait func(time.Duration)) (crashed bool) {
	users := newUsers(h.t, store, UserRange{3_000_000, 3_000_001})
	cfg := Config{Users: users}
	r, err := allocrunner.New(allocrunner.Config{Alloc: h.alloc, Store: store, Hooks: AllocHooks(cfg),
		Tasks: taskrunner.Config{Drivers: h.fake, Hooks: TaskHooks(cfg)}})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for _, step := range []func(){
		func() { wait(time.Minute) },
		func() {
			_ = r.Restart(ctx, allocrunner.RestartRequest{All: true})
			wait(time.Minute)
		},
		func() { _ = r.Kill(ctx, allocrunner.KillRequest{}); wait(time.Minute) },
	} {
		step()
		select {
		case <-store.Crashed():
			cancel()
			<-ended
			h.fake.Forget()
			return true
		default:
		}
	}
	require.NoError(h.t, <-ended)
	err = r.Destroy(ctx)
	select {
	case <-store.Crashed():
		return true
	default:
	}
	require.NoError(h.t, err)
	return false
}

// recorded says that the store still knows the alloc.
func (h *household) recorded() (is bool) {
	require.NoError(h.t, h.store.View(func(tx state.Tx) error {
		al, err := allocrunner.Load(tx, "a")
		is = al != nil
		return err
	}))
	return is
}

// The sweep: whatever write an agent dies before or after, each task has one user
// over all its lives, no two tasks the same, and in the end all are given back.
func TestUsersCrashSweep(t *testing.T) {
	for name, crash := range map[string]func(state.Store, int) *statetest.Crash{"before": statetest.CrashAt, "after": statetest.CrashAfter} {
		t.Run(name, func(t *testing.T) {
			for n, died := 1, true; died && !t.Failed(); n++ {
				synctest.Test(t, func(t *testing.T) {
					h := newHousehold(t)
					wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
					if died = h.agent(crash(h.store, n), wait); died && (h.recorded() || len(h.fake.Configs()) == 0) {
						require.False(t, h.agent(statetest.CrashAt(h.store, 0), wait))
					}
					by := map[string]string{}
					for _, c := range h.fake.Configs() {
						if c.Name == "own" {
							require.Equal(t, "nobody", c.User)
							continue
						}
						require.NotEmpty(t, c.User)
						if by[c.Name] == "" {
							by[c.Name] = c.User
						}
						require.Equal(t, by[c.Name], c.User, "write %d: %s", n, c.Name)
					}
					require.NotEqual(t, by["web"], by["side"], "write %d", n)
					require.NoError(t, h.store.View(func(tx state.Tx) error {
						require.Empty(t, tx.Keys(usersPath()), "write %d", n)
						return nil
					}))
					h.fake.Check(t)
				})
			}
		})
	}
}

// Who is given a user, and who is not.
func TestWhoGetsAUser(t *testing.T) {
	able := driver.Info{Capabilities: driver.Capabilities{DynamicUsers: true}}
	for name, tc := range map[string]struct {
		edit  func(*Users, *taskrunner.Request)
		given bool
	}{
		"a task without a user": {func(*Users, *taskrunner.Request) {}, true},
		"one with a user":       {func(_ *Users, r *taskrunner.Request) { r.Task.User = "nobody" }, false},
		"its driver takes none": {func(_ *Users, r *taskrunner.Request) { r.Driver = driver.Info{} }, false},
		"it runs already":       {func(_ *Users, r *taskrunner.Request) { r.Restored = true }, false},
		"the agent is not root": {func(u *Users, _ *taskrunner.Request) { u.allowed = false }, false},
		"no range":              {func(u *Users, _ *taskrunner.Request) { u.span = UserRange{} }, false},
		"it has one": {func(u *Users, r *taskrunner.Request) {
			_, err := u.Take("a", "t")
			require.NoError(t, err)
			r.Restored, u.span, r.Driver = true, UserRange{}, driver.Info{}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUsers(t, state.Memory(), UserRange{3_000_000, 3_000_009})
			r := &taskrunner.Request{Alloc: &spec.Alloc{ID: "a"}, Task: &spec.Task{Name: "t"}, Driver: able}
			tc.edit(u, r)
			_, given, err := u.of(r)
			require.NoError(t, err)
			require.Equal(t, tc.given, given)
		})
	}
	var none *Users
	_, given, err := none.of(&taskrunner.Request{})
	require.NoError(t, err)
	require.False(t, given)
}

// The stats hook measures each attempt, goes on over a restart of the agent, and
// leaves nothing.
func TestStatsHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, fake := state.Memory(), &drivertest.Fake{Capabilities: &driver.Capabilities{SendSignals: true, IdempotentStart: true}}
		fake.Script = func(int, driver.TaskConfig) drivertest.Life { return drivertest.Life{Run: drivertest.Forever} }
		alloc := &spec.Alloc{ID: "a", JobID: "j", Group: "g", Tasks: []spec.Task{{Name: "t", Driver: "fake"}}}
		var got []string
		begin := func() (*taskrunner.TaskRunner, func()) {
			cfg := Config{Stats: &Stats{Interval: 10 * time.Second, Sample: func(alloc, task string, _ driver.Usage) {
				got = append(got, alloc+"/"+task)
			}}}
			r, err := taskrunner.New(taskrunner.Config{Alloc: alloc, Task: "t", Drivers: fake, Store: store, Hooks: TaskHooks(cfg)})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- r.Run(ctx) }()
			return r, func() { cancel(); <-ended; fake.Forget() }
		}
		r, detach := begin()
		time.Sleep(65 * time.Second)
		synctest.Wait()
		require.GreaterOrEqual(t, len(got), 5, "%v", got)
		require.Equal(t, strings.Repeat("a/t ", len(got)), strings.Join(got, " ")+" ")
		before := len(got)
		require.NoError(t, r.Restart(t.Context(), taskrunner.RestartRequest{}))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, len(got), before, "also the next attempt")
		detach()
		before = len(got)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, got, before, "nobody is there")
		r, _ = begin()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, len(got), before, "also a task that was found again")
		require.NoError(t, r.Kill(t.Context(), taskrunner.KillRequest{}))
		<-r.Done()
		fake.Check(t)
	})
}
