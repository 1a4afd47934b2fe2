// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

// script reads what a task does from its configuration, as a real driver does.
func script(_ int, cfg driver.TaskConfig) drivertest.Life {
	var c struct {
		Do   string
		Code int
	}
	if err := json.Unmarshal(cfg.Config, &c); err != nil {
		return drivertest.Life{Err: err}
	}
	switch c.Do {
	case "exit":
		return drivertest.Life{Exit: driver.ExitResult{Code: c.Code}}
	case "ignore":
		return drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever}
	case "bad":
		return drivertest.Life{Err: errors.New("no such command")}
	}
	return drivertest.Life{Run: drivertest.Forever}
}

func TestSuiteWithFake(t *testing.T) {
	for name, caps := range map[string]driver.Capabilities{
		"idempotent": {SendSignals: true, IdempotentStart: true},
		"not":        {SendSignals: true},
	} {
		t.Run(name, func(t *testing.T) {
			fakes := map[driver.Driver]*drivertest.Fake{}
			var last *drivertest.Fake
			drivertest.Suite(t, drivertest.SuiteConfig{
				New: func(t *testing.T) driver.Driver {
					last = &drivertest.Fake{Capabilities: &caps, Script: script}
					fakes[last] = last
					t.Cleanup(func() { require.Empty(t, last.Faults()) })
					return last
				},
				Renew: func(_ *testing.T, d driver.Driver) driver.Driver {
					fakes[d].Forget()
					return d
				},
				Task: func(_ *testing.T, _ driver.Driver, id string) driver.TaskConfig {
					return driver.TaskConfig{ID: id, Name: "task", Cgroup: "/sys/fs/cgroup/" + id}
				},
				Sleep:  json.RawMessage(`{"do":"sleep"}`),
				Exit:   func(code int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"do":"exit","code":%d}`, code)) },
				Ignore: json.RawMessage(`{"do":"ignore"}`),
				Bad:    json.RawMessage(`{"do":"bad"}`),
				Left: func(_ *testing.T, c driver.TaskConfig) []string {
					var left []string
					for _, id := range last.Left() {
						if id == c.ID {
							left = append(left, id)
						}
					}
					return left
				},
			})
		})
	}
}

func TestFakeCatchesFaults(t *testing.T) {
	f := &drivertest.Fake{}
	ctx := t.Context()
	_, err := f.Start(ctx, driver.TaskConfig{ID: "a/web/0"})
	require.NoError(t, err)
	_, err = f.Start(ctx, driver.TaskConfig{ID: "a/web2/0"})
	require.NoError(t, err)
	require.Empty(t, f.Faults())
	_, err = f.Start(ctx, driver.TaskConfig{ID: "a/web/1"})
	require.NoError(t, err)
	require.Len(t, f.Faults(), 1, "a second life of a/web")
	require.Equal(t, []string{"a/web/0", "a/web2/0", "a/web/1"}, f.Alive())
	require.Equal(t, 3, f.Lives())
	require.True(t, f.Exit("a/web/0", driver.ExitResult{Code: 1}))
	require.False(t, f.Exit("a/web/0", driver.ExitResult{Code: 1}))
	require.Len(t, f.Alive(), 2)
	require.Len(t, f.Left(), 3, "an exit that nobody acknowledged is still there")
}

func TestFakeDisturbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &drivertest.Fake{}
		ctx := t.Context()
		boom := errors.New("boom")
		f.Fail(drivertest.Start, 2, boom)
		for range 2 {
			_, err := f.Start(ctx, driver.TaskConfig{ID: "a/t/0"})
			require.ErrorIs(t, err, boom)
		}
		h, err := f.Start(ctx, driver.TaskConfig{ID: "a/t/0", Cgroup: "/cg"})
		require.NoError(t, err)
		require.Equal(t, 3, f.Count(drivertest.Start))

		time.AfterFunc(time.Minute, func() { f.Break(driver.ErrPluginGone) })
		_, err = f.Wait(ctx, "a/t/0")
		require.ErrorIs(t, err, driver.ErrPluginGone)
		_, err = f.Wait(ctx, "a/t/0")
		require.ErrorIs(t, err, driver.ErrTaskNotFound)
		require.NoError(t, f.Recover(ctx, h))

		f.Slow(drivertest.Stop, time.Minute)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, f.Stop(short, "a/t/0", "", time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))

		release := f.Hang(drivertest.Recover)
		time.AfterFunc(time.Hour, release)
		began = time.Now()
		require.NoError(t, f.Recover(short, h))
		require.Equal(t, time.Hour, time.Since(began))

		f.Lose()
		require.ErrorIs(t, f.Recover(ctx, h), driver.ErrTaskNotFound)
		require.NotEmpty(t, f.Alive())
		require.NoError(t, f.Destroy(ctx, driver.TaskRef{ID: "a/t/0", Cgroup: "/cg"}, true), "the cgroup is proof enough")
		require.Empty(t, f.Left())
		f.Check(t)
	})
}

func TestFakeReboot(t *testing.T) {
	f := &drivertest.Fake{}
	h, err := f.Start(t.Context(), driver.TaskConfig{ID: "a/t/0"})
	require.NoError(t, err)
	f.Reboot()
	require.ErrorIs(t, f.Recover(t.Context(), h), driver.ErrTaskNotFound)
	require.Empty(t, f.Left())
	_, err = f.Driver(t.Context(), "other")
	require.ErrorContains(t, err, `"fake"`)
}
