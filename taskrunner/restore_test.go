// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// D1: the task is found again, untouched and without an event; prestart hooks
// rebuild their outputs, poststart hooks run again.
func TestReattach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		events, handle := w.kinds.list(), a.Snapshot().Handle
		a.detach()
		require.Equal(t, []string{"h prestart", "h poststart"}, j.list(), "detach calls no hook")
		w.fake.Forget()

		b := w.start()
		b.phase(taskrunner.Running)
		require.Equal(t, handle, b.Snapshot().Handle)
		require.Equal(t, []string{"h prestart restored", "h poststart"}, j.list()[2:])
		require.Equal(t, events, w.kinds.list())
		require.Equal(t, 1, w.fake.Count(drivertest.Start))
		time.Sleep(time.Hour)
		w.fake.Exit("a1/web/0", driver.ExitResult{Code: 1})
		synctest.Wait()
		time.Sleep(time.Minute)
		b.phase(taskrunner.Running)
		require.Equal(t, []string{"h exited", "h prestart", "h poststart"}, j.list()[4:], "the next attempt is a fresh one")
		require.Equal(t, 1, b.Snapshot().Attempt)
		b.killNow()
		b.end()
	})
}

// An exit that happened while the agent was away: true result, no prestart.
func TestExitedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.alloc = alloc(spec.JobBatch)
		w.fake.Script = script(exits(time.Minute, 0))
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		w.start().detach()
		time.Sleep(time.Hour)
		w.fake.Forget()
		s := w.start().end()
		require.Equal(t, &driver.ExitResult{}, s.Exit)
		require.False(t, s.Failed)
		require.Equal(t, []string{"h prestart", "h poststart", "h exited", "h stop"}, j.list())
		require.Equal(t, []string{"Received", "Task Setup", "Started", "Terminated"}, w.kinds.list())
	})
}

// FF-004: a task that is gone is not started again before the control plane has
// spoken; the order to stop then ends it without a start.
func TestFirstContact(t *testing.T) {
	for _, stop := range []bool{true, false} {
		t.Run(fmt.Sprintf("stop %v", stop), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				j := &journal{}
				w.hooks = []taskrunner.HookFunc{j.hook("h")}
				w.start().detach()
				w.fake.Reboot()
				contact := make(chan struct{})
				w.edit = func(c *taskrunner.Config) { c.FirstContact = contact }
				a := w.start()
				time.Sleep(5 * time.Second)
				a.phase(taskrunner.Pending)
				require.Equal(t, "Failed Restoring Task, Waiting for First Contact", strings.Join(w.kinds.list()[3:], ", "))
				require.Equal(t, 1, w.fake.Count(drivertest.Start))
				require.Equal(t, 1, j.count("h exited"), "every exit, also one that nobody saw")
				a.detach() // a second restart forgets none of it
				a = w.start()
				time.Sleep(5 * time.Second)
				a.phase(taskrunner.Pending)
				if stop {
					require.NoError(t, a.Update(t.Context(), w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop })))
					require.False(t, a.end().Failed)
					close(contact)
					require.Equal(t, 1, w.fake.Count(drivertest.Start))
					return
				}
				close(contact)
				synctest.Wait()
				a.phase(taskrunner.Running)
				require.Equal(t, "Started", w.kinds.list()[5])
				require.Equal(t, 2, w.fake.Lives())
				require.Zero(t, a.Snapshot().Resume.WindowCount, "no restart that counts")
				a.killNow()
				a.end()
			})
		})
	}
}

// System jobs do not wait, nor does a host that has no control plane.
func TestNoFirstContactNeeded(t *testing.T) {
	for name, edit := range map[string]func(*world){
		"system": func(w *world) {
			w.alloc = alloc(spec.JobSystem)
			w.edit = func(c *taskrunner.Config) { c.FirstContact = make(chan struct{}) }
		},
		"no control plane": func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				edit(w)
				w.start().detach()
				w.fake.Reboot()
				a := w.start()
				a.phase(taskrunner.Running)
				require.Equal(t, "Failed Restoring Task, Started", strings.Join(w.kinds.list()[3:], ", "))
				a.killNow()
				a.end()
			})
		})
	}
}

// A task that lives but that its driver has lost is destroyed before it is
// started again.
func TestLostHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().detach()
		w.fake.Lose()
		a := w.start()
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"a1/web/1"}, w.fake.Alive())
		a.killNow()
		a.end()
	})
}

// FF-017: the agent died while it was stopping the task, and whoever kept the
// patience died with it. Nobody waits for an exit record that nobody will write.
func TestDiesWhileStopping(t *testing.T) {
	for name, lose := range map[string]func(*drivertest.Fake){
		"lost":           (*drivertest.Fake).Lose,
		"adopted":        (*drivertest.Fake).Orphan,
		"only the agent": (*drivertest.Fake).Forget,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.task().KillTimeout = 30 * time.Second
				w.fake.Script = script(drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever})
				a := w.start()
				began := time.Now()
				a.killNow()
				time.Sleep(time.Second)
				a.phase(taskrunner.Stopping)
				a.detach()
				lose(w.fake)
				restarted := time.Now()
				b := w.start()
				require.NoError(t, b.Kill(t.Context(), taskrunner.KillRequest{}))
				require.Zero(t, time.Since(restarted), "a second stop returns at once")
				b.end()
				if name != "only the agent" {
					require.Less(t, time.Since(restarted), 5*time.Second)
				} else {
					require.Equal(t, 30*time.Second, time.Since(began), "what was left of the kill timeout")
				}
				kinds := w.kinds.list()
				require.Equal(t, "Killing, Terminated, Killed", strings.Join(kinds[len(kinds)-3:], ", "))
			})
		})
	}
}

// Output that was lost because nobody was there to read it is told once, before
// the exit.
func TestOutputLostIsAnEvent(t *testing.T) {
	for name, lost := range map[string]bool{"lost": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.task().Restart = &spec.RestartPolicy{Mode: spec.RestartFail}
				w.fake.Script = script(exits(time.Minute, 3))
				w.start().detach()
				w.fake.Orphan()
				if lost {
					w.fake.Mute()
				}
				time.Sleep(2 * time.Minute)
				s := w.start().end()
				var seen []string
				for _, e := range s.Events {
					switch e.Kind {
					case taskrunner.OutputLost:
						require.Equal(t, map[string]string{"task_id": "a1/web/0", "attempt": "0"}, e.Attrs)
						require.Contains(t, e.Text(), "may be lost")
						fallthrough
					case taskrunner.Terminated:
						seen = append(seen, string(e.Kind))
					}
				}
				want := []string{"Terminated"}
				if lost {
					want = []string{"Output Lost", "Terminated"}
				}
				require.Equal(t, want, seen)
			})
		})
	}
}

// A kill that was persisted and not carried out is carried out.
func TestPersistedKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.task().ShutdownDelay = time.Minute
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		began := time.Now()
		a.killNow()
		time.Sleep(20 * time.Second)
		a.detach()
		time.Sleep(10 * time.Second)
		w.fake.Forget()
		s := w.start().end()
		require.Equal(t, time.Minute, time.Since(began), "the delay went on")
		require.False(t, s.Failed)
		require.Equal(t, 1, j.count("h prekill"))
		require.Zero(t, j.count("h prestart restored"))
		require.Equal(t, 1, j.count("h exited"))
		require.Equal(t, 1, j.count("h stop"))
	})
}

// A handle of an alloc that is not wanted any more is stopped.
func TestRestoreOfTerminalAlloc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().detach()
		w.fake.Forget()
		w.with(func(a *spec.Alloc) { a.DesiredStatus, a.DesiredReason = spec.DesiredStop, "moved" })
		s := w.start().end()
		require.Equal(t, "moved", s.Reason)
		require.Equal(t, "Started, Killing, Terminated, Killed", strings.Join(w.kinds.list()[2:], ", "))
		require.Equal(t, 143, s.Exit.Code)
	})
}

// Also if nothing of it is left.
func TestRestoreOfTerminalAllocAfterReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().detach()
		w.fake.Reboot()
		w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredEvict })
		s := w.start().end()
		require.Equal(t, "Started, Killing, Terminated, Killed", strings.Join(w.kinds.list()[2:], ", "))
		require.Equal(t, -1, s.Exit.Code)
		require.NotEmpty(t, s.Exit.Err)
		require.False(t, s.Failed)
	})
}

// A driver that cannot answer proves nothing: it is asked again, and the task is
// neither destroyed nor started a second time.
func TestDriverUnavailable(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable":   driver.ErrUnavailable,
		"plugin gone":   fmt.Errorf("dial: %w", driver.ErrPluginGone),
		"foreign scope": driver.ErrForeignScope,
		"recoverable":   driver.Recoverable(errors.New("once more")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				j := &journal{}
				w.hooks = []taskrunner.HookFunc{j.hook("h")}
				w.start().detach()
				w.fake.Forget()
				w.fake.Fail(drivertest.Recover, 5, err)
				a := w.start()
				time.Sleep(time.Second / 2)
				a.phase(taskrunner.Running)
				require.Equal(t, 1, w.fake.Count(drivertest.Recover))
				time.Sleep(time.Minute)
				a.phase(taskrunner.Running)
				require.Equal(t, 6, w.fake.Count(drivertest.Recover))
				require.Zero(t, w.fake.Count(drivertest.Destroy))
				require.Equal(t, 1, j.count("h prestart restored"))
				require.Len(t, w.kinds.list(), 3)
				a.killNow()
				a.end()
			})
		})
	}
}

// A driver that is never there again keeps a kill back for some minutes, no more.
func TestKillWithoutDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start().detach()
		w.fake.Forget()
		w.fake.Fail(drivertest.Recover, -1, driver.ErrUnavailable)
		a := w.start()
		time.Sleep(time.Hour)
		a.killNow()
		began := time.Now()
		a.end()
		require.LessOrEqual(t, time.Since(began), 5*time.Minute)
		require.NotZero(t, w.kinds.last(taskrunner.Leaked).Seq)
	})
}

// A plugin that dies is not a task that exits.
func TestPluginDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		w.hooks = []taskrunner.HookFunc{j.hook("h")}
		a := w.start()
		for range 3 {
			time.Sleep(time.Minute)
			w.fake.Break(driver.ErrPluginGone)
			time.Sleep(10 * time.Second)
			a.phase(taskrunner.Running)
		}
		require.Equal(t, 3, w.fake.Count(drivertest.Recover))
		require.Equal(t, []string{"h prestart", "h poststart"}, j.list(), "hooks do not notice")
		w.fake.Exit("a1/web/0", driver.ExitResult{Code: 6})
		a.phase(taskrunner.Pending)
		require.Equal(t, 6, a.Snapshot().Exit.Code)

		// If the task died with it, nobody saw how, and the policy decides.
		time.Sleep(time.Minute)
		w.fake.Break(driver.ErrPluginGone)
		w.fake.Lose()
		time.Sleep(2 * time.Second)
		a.phase(taskrunner.Pending)
		require.Equal(t, -1, a.Snapshot().Exit.Code)
		require.Equal(t, 2, a.Snapshot().Resume.WindowCount)
		a.killNow()
		a.end()
	})
}

// D1: no error of a prestart hook harms a recovered task. What may be repeated is.
func TestRestoredPrestartErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		j := &journal{}
		fails := 3
		w.hooks = []taskrunner.HookFunc{
			hookOf(&taskrunner.Hook[struct{}]{Name: "final", Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				if r.Restored {
					j.add("final")
					err = errors.New("final")
				}
				return c, err
			}}),
			hookOf(&taskrunner.Hook[struct{}]{Name: "again", Prestart: func(_ context.Context, r *taskrunner.Request, _ *struct{}) (c taskrunner.Contribution, err error) {
				if r.Restored && fails > 0 {
					fails--
					j.add("again")
					err = driver.Recoverable(errors.New("not yet"))
				}
				return c, err
			}}),
			j.hook("h"),
		}
		w.start().detach()
		w.fake.Forget()
		a := w.start()
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"h prestart", "h poststart", "final", "again", "h prestart restored", "h poststart"}, j.list(),
			"an error ends neither the chain nor keeps poststart back")
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		require.Equal(t, []string{"again", "again"}, j.list()[6:])
		require.Equal(t, "Started, Task Hook Failed, Task Hook Failed", strings.Join(w.kinds.list()[2:], ", "))
		require.Equal(t, "true", w.kinds.last(taskrunner.HookFailed).Attrs["restored"])
		require.Equal(t, 1, w.fake.Lives())
		w.fake.Exit("a1/web/0", driver.ExitResult{Code: 1})
		time.Sleep(time.Minute)
		a.phase(taskrunner.Running)
		a.killNow()
		a.end()
	})
}

// D5: a start intent without a handle. A driver that can repeat a start gets it
// again, also if the task was started; any other has it destroyed.
func TestStartIntent(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		for _, happened := range []bool{true, false} {
			for _, reboot := range []bool{true, false} {
				t.Run(fmt.Sprintf("idempotent %v, started %v, reboot %v", idempotent, happened, reboot), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { startIntent(newWorld(t), idempotent, happened, reboot) })
				})
			}
		}
	}
}

func startIntent(w *world, idempotent, happened, reboot bool) {
	w.fake.Capabilities = &driver.Capabilities{IdempotentStart: idempotent}
	clock := &fakeClock{boot: "one"}
	cgroups := &cgroupLog{}
	w.edit = func(c *taskrunner.Config) { c.Clock, c.Cgroups = clock, cgroups }
	j := &journal{}
	w.hooks = []taskrunner.HookFunc{j.hook("h")}
	disk := w.store
	// The second write is the handle: before it the agent dies.
	crash := statetest.CrashAt(disk, 2)
	w.store = crash
	if !happened {
		w.fake.Slow(drivertest.Start, time.Hour)
	}
	a := w.start()
	a.cancel(errDetach)
	<-a.ended
	w.fake.Slow(drivertest.Start, 0)
	require.Equal(w, happened, len(w.fake.Alive()) == 1)
	w.store = disk
	contact := make(chan struct{})
	w.edit = func(c *taskrunner.Config) { c.Clock, c.Cgroups, c.FirstContact = clock, cgroups, contact }
	if reboot {
		clock.boot = "two"
		w.fake.Reboot()
	} else {
		w.fake.Forget()
	}
	b := w.start()
	time.Sleep(time.Minute)
	if reboot {
		b.phase(taskrunner.Pending)
		require.Equal(w, taskrunner.AwaitingContact, w.kinds.last(taskrunner.AwaitingContact).Kind)
		close(contact)
	}
	b.phase(taskrunner.Running)
	want := "a1/web/1"
	if idempotent && !reboot {
		want = "a1/web/0"
		require.Equal(w, 1, j.count("h prestart restored"))
	}
	require.Equal(w, []string{want}, w.fake.Alive())
	b.killNow()
	b.end()
	require.Empty(w, cgroups.left())
}

// A kill finds a start intent: whatever it left is destroyed, nothing is started.
func TestKillOfStartIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		disk := w.store
		w.store = statetest.CrashAt(disk, 2)
		a := w.start()
		a.cancel(errDetach)
		<-a.ended
		w.store = disk
		w.fake.Forget()
		w.with(func(a *spec.Alloc) { a.DesiredStatus = spec.DesiredStop })
		b := w.start()
		b.end()
		require.Equal(t, 1, w.fake.Count(drivertest.Start))
		require.Equal(t, "Killed", w.kinds.list()[len(w.kinds.list())-1])
	})
}

// "Already exists" from a driver that cannot repeat starts: destroyed, once.
func TestTaskExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Fail(drivertest.Start, 1, driver.ErrTaskExists)
		a := w.start()
		a.phase(taskrunner.Running)
		require.Equal(t, 1, a.Snapshot().Attempt)
		require.Equal(t, "a1/web/1", w.fake.Configs()[0].ID)
		require.Zero(t, a.Snapshot().Restarts)
		a.killNow()
		a.end()
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.fake.Fail(drivertest.Start, -1, driver.ErrTaskExists)
		require.True(t, w.start().end().Failed)
		require.Equal(t, 2, w.fake.Count(drivertest.Start))
	})
}

// fakeClock is virtual time on a machine whose wall clock and boots are ours.
type fakeClock struct {
	boot string
	jump atomic.Int64
}

func (c *fakeClock) Now() bootclock.Instant {
	return bootclock.Instant{Boot: c.boot, Up: time.Duration(time.Now().UnixNano()), Wall: time.Now().Add(time.Duration(c.jump.Load())).Round(0)}
}

// FF-028: a wall clock that jumps changes no delay, in a process or over two.
func TestWallClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", jump, restart), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					clock := &fakeClock{boot: "one"}
					w.edit = func(c *taskrunner.Config) { c.Clock = clock }
					w.fake.Script = script(exits(time.Minute, 1), forever())
					a := w.start()
					time.Sleep(time.Minute)
					a.phase(taskrunner.Pending)
					left := a.Snapshot().Backoff.Delay
					began := time.Now()
					time.Sleep(5 * time.Second)
					clock.jump.Store(int64(jump))
					if restart {
						a.detach()
						time.Sleep(5 * time.Second)
						a = w.start()
					}
					for s := range a.Watch(t.Context()) {
						if s.Phase == taskrunner.Running {
							break
						}
					}
					require.Equal(t, left, time.Since(began))
					require.Equal(t, 1, a.Snapshot().Restarts)
					require.Zero(t, w.kinds.gaps)
					a.killNow()
					a.end()
				})
			})
		}
	}
}

// A record that no runner wrote is refused and left alone.
func TestUnreadableRecord(t *testing.T) {
	path := state.Path{"v1", "alloc", "a1", "task-web"}
	for name, tc := range map[string]struct {
		put  func(state.Tx) error
		want error
	}{
		"garbage": {func(tx state.Tx) error { return tx.Put(path, "task", []byte("garbage")) }, state.ErrCorrupt},
		"unsound": {func(tx state.Tx) error {
			return state.Slot[map[string]any]{Key: "task", Version: 1}.Save(tx, path, map[string]any{"phase": "running"})
		}, state.ErrCorrupt},
		"too new": {func(tx state.Tx) error {
			return state.Slot[map[string]any]{Key: "task", Version: 2}.Save(tx, path, nil)
		}, state.ErrTooNew},
		"hook": {func(tx state.Tx) error { return tx.Put(path, "hook.h", []byte("garbage")) }, state.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			require.NoError(t, w.store.Update(tc.put))
			j := &journal{}
			_, err := taskrunner.New(taskrunner.Config{Alloc: w.alloc, Task: "web", Drivers: w.fake, Store: w.store,
				Hooks: []taskrunner.HookFunc{j.hook("h")}})
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, "a1")
		})
	}
}
