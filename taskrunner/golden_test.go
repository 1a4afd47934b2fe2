// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/bootclock"
	"github.com/nodekeep/nodekeep/taskrunner/restart"
)

func instant(up time.Duration) bootclock.Instant {
	return bootclock.Instant{Boot: "b", Up: up, Wall: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(up)}
}

// A snapshot of version 1 with every field set, as it is kept in the store. What
// is in testdata was written once and must be readable for ever: a change of it
// is a new version of the slot, with a migration and a file of its own.
func TestGoldenSnapshot(t *testing.T) {
	at := instant(time.Hour)
	want := Snapshot{
		Rev: 7, Phase: Stopping, Attempt: 2,
		Handle: &driver.Handle{Driver: "raw_exec", TaskID: "a/web/2", Version: 1, PID: 42, State: json.RawMessage(`42`)},
		Exit:   &driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true, Err: "err"},
		Final:  true, Failed: true, Reason: "reason", Restarts: 3, LastRestart: at.Wall, StartedAt: at.Wall, FinishedAt: at.Wall,
		Backoff:     bootclock.Deadline{From: at, Delay: time.Second},
		Kill:        &KillRequest{Reason: "why", Kind: LeaderDead, NoShutdownDelay: true, Failed: true, Grace: time.Second},
		Restarting:  &RestartRequest{Reason: "why", Counted: true, AlsoDead: true},
		NeedContact: true,
		Events:      []Event{{Seq: 9, Time: at.Wall, Kind: Terminated, Attrs: map[string]string{"exit_code": "137"}}},
		Seq:         9,
		Resume: Resume{Boot: "b", Window: restart.Window{WindowStart: at, WindowCount: 1}, Leaked: true, Replaced: true, Killing: true, Prekilled: true,
			Delay: bootclock.Deadline{From: at, Delay: time.Minute}, Grace: bootclock.Deadline{From: at, Delay: time.Minute}},
	}
	const file = "testdata/snapshot-v1.json"
	if *update {
		raw, err := json.MarshalIndent(want, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, append(raw, '\n'), 0o644))
	}
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var got Snapshot
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&got))
	require.Equal(t, want, got)
	require.Equal(t, 1, taskSlot().Version)
	back, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, string(data), string(back))
}

var update = flag.Bool("update", false, "write testdata anew")
