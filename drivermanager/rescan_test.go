// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivermanager_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/state"
)

// A program that was replaced is started anew, without its tasks noticing; new ones
// are started, those that are gone stay; and nothing happens to all others.
func TestRescan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("x", "y")
		f.programs["x"].fake.Script = func(int, driver.TaskConfig) drivertest.Life {
			return drivertest.Life{Run: time.Hour, Exit: driver.ExitResult{Code: 3}}
		}
		store := state.Memory()
		cfg := drivermanager.Config{Launchers: []drivermanager.Launcher{f}, Records: drivermanager.StateRecords(store), Deny: []string{"*-denied"}}
		a := newAgent(t, cfg)
		x := a.driver("x")
		a.driver("y")
		h, err := x.Start(t.Context(), task("a/t/0"))
		require.NoError(t, err)
		exit := make(chan driver.ExitResult, 1)
		go func() {
			res, err := x.Wait(t.Context(), h.TaskID)
			if err != nil {
				t.Error(err)
			}
			exit <- res
		}()
		rescan := func() {
			t.Helper()
			require.NoError(t, a.Rescan())
			time.Sleep(time.Second)
			synctest.Wait()
		}
		rescan()
		require.Len(t, f.programs["x"].lives, 1, "nothing has changed")

		f.mu.Lock()
		f.programs["x"].id = "2"
		delete(f.programs, "y")
		for name, p := range newFarm("z", "denied").programs {
			f.programs[name] = p
		}
		f.mu.Unlock()
		rescan()
		require.Len(t, f.programs["x"].lives, 2)
		require.True(t, f.programs["x"].lives[0].closed)
		require.Empty(t, f.programs["denied"].lives)
		a.driver("z")
		a.driver("y")
		for _, s := range a.Status() {
			require.Equal(t, driver.Healthy, s.Health, s.Program)
			require.Zero(t, s.Restarts, "that was no death")
		}
		time.Sleep(2 * time.Hour)
		require.Equal(t, driver.ExitResult{Code: 3}, <-exit)
		require.NoError(t, x.Destroy(t.Context(), driver.TaskRef{ID: h.TaskID, Handle: h}, true))
		a.stop()

		// The record is of the new program: it is found again.
		f.programs["y"] = newFarm("y").programs["y"]
		a = newAgent(t, cfg)
		a.driver("x")
		require.Equal(t, 1, f.programs["x"].attached)
		a.stop()
		f.programs["x"].fake.Check(t)
	})
}

// A new program ends the pause after the old one's failures, and the refusal of one
// that was none of ours.
func TestRescanOfABadOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFarm("a", "b")
		f.programs["a"].fails, f.programs["b"].refuse = 1000, drivermanager.ErrOtherKind
		a := newAgent(t, drivermanager.Config{Launchers: []drivermanager.Launcher{f}, MaxBackoff: 24 * time.Hour})
		defer a.stop()
		time.Sleep(48 * time.Hour)
		require.Equal(t, driver.Unhealthy, a.Status()[0].Health)
		require.True(t, a.Status()[1].OtherKind)
		require.Len(t, f.programs["b"].launches, 1)
		f.mu.Lock()
		for _, p := range f.programs {
			p.fails, p.refuse, p.id = 0, nil, "2"
		}
		f.mu.Unlock()
		require.NoError(t, a.Rescan())
		synctest.Wait()
		for _, s := range a.Status() {
			require.Equal(t, driver.Healthy, s.Health)
			require.False(t, s.OtherKind)
		}
	})
}

// A list that cannot be read is an error, and the others are read.
func TestRescanFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, bad := newFarm("x"), &blind{newFarm()}
		m, err := drivermanager.New(drivermanager.Config{Launchers: []drivermanager.Launcher{bad, f}})
		require.ErrorContains(t, err, "cannot be read")
		require.Len(t, m.Status(), 1)
		f.programs["y"] = newFarm("y").programs["y"]
		require.ErrorContains(t, m.Rescan(), "cannot be read")
		require.Len(t, m.Status(), 2)
	})
}

type blind struct{ *farm }

func (*blind) List() ([]drivermanager.Program, error) {
	return nil, errors.New("the directory cannot be read")
}
