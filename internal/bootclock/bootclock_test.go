// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package bootclock_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/internal/bootclock"
)

func TestDeadline(t *testing.T) {
	wall := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(boot string, up, w time.Duration) bootclock.Instant {
		return bootclock.Instant{Boot: boot, Up: up, Wall: wall.Add(w)}
	}
	d := bootclock.Deadline{From: at("a", time.Hour, 0), Delay: 10 * time.Minute}
	for name, tc := range map[string]struct {
		now  bootclock.Instant
		left time.Duration
	}{
		"same boot":                  {at("a", time.Hour+4*time.Minute, 4*time.Minute), 6 * time.Minute},
		"same boot, wall an hour on": {at("a", time.Hour+4*time.Minute, time.Hour), 6 * time.Minute},
		"same boot, wall back":       {at("a", time.Hour+4*time.Minute, -time.Hour), 6 * time.Minute},
		"same boot, over":            {at("a", 2*time.Hour, 4*time.Minute), 0},
		"same boot, time of before":  {at("a", time.Minute, 0), 10 * time.Minute},
		"other boot":                 {at("b", time.Second, 3*time.Minute), 7 * time.Minute},
		"other boot, wall back":      {at("b", time.Second, -time.Hour), 10 * time.Minute},
		"other boot, wall far ahead": {at("b", 2*time.Hour, 100*time.Hour), 0},
		"no boot id":                 {at("", 0, 9*time.Minute), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tc.left, d.Left(tc.now))
		})
	}
	require.Zero(t, bootclock.Deadline{}.Left(at("a", 0, 0)))
	require.True(t, bootclock.Deadline{}.IsZero())
	require.Equal(t, wall.Add(10*time.Minute), d.At())

	raw, err := json.Marshal(d)
	require.NoError(t, err)
	var back bootclock.Deadline
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, d, back)
}

func TestSystem(t *testing.T) {
	c := bootclock.System()
	a := c.Now()
	require.WithinDuration(t, time.Now(), a.Wall, time.Minute)
	require.GreaterOrEqual(t, c.Now().Since(a), time.Duration(0))
	synctest.Test(t, func(t *testing.T) {
		c := bootclock.System()
		a := c.Now()
		require.Empty(t, a.Boot, "the kernel's clock does not follow virtual time")
		time.Sleep(time.Hour)
		require.Equal(t, time.Hour, c.Now().Since(a))
	})
}
