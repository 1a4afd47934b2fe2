// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/taskrunner"
)

// A text stands beside its kind and does not say the same again.
func TestEventText(t *testing.T) {
	for _, tc := range []struct {
		kind  taskrunner.Kind
		attrs map[string]string
		want  string
	}{
		{taskrunner.DriverFailure, map[string]string{"error": "no such file"}, "no such file"},
		{taskrunner.SetupFailure, map[string]string{"error": "no space"}, "no space"},
		{taskrunner.FailedValidation, map[string]string{"message": "args: is a number"}, "args: is a number"},
		{taskrunner.Driver, map[string]string{"message": "pulling", "error": "gone"}, "pulling: gone"},
		{taskrunner.TaskSetup, nil, "Preparing the task"},
		{taskrunner.TaskSetup, map[string]string{"message": "waits for x"}, "Preparing the task: waits for x"},
		{taskrunner.Restarting, map[string]string{"delay": "1s", "reason": "exit code 3"}, "The next start is in 1s: exit code 3"},
		{taskrunner.Restarting, map[string]string{"delay": "17.10736949s"}, "The next start is in 17.1s"},
		{taskrunner.Restarting, map[string]string{"delay": "1m30.499999999s"}, "The next start is in 1m30s"},
		{taskrunner.Restarting, map[string]string{"delay": "12.345678ms"}, "The next start is in 12ms"},
		{taskrunner.Restarting, map[string]string{"delay": "0s"}, "The next start is in 0s"},
		{taskrunner.Restarting, map[string]string{"delay": "soon"}, "The next start is in soon"},
		{taskrunner.ShutdownDelay, map[string]string{"delay": "1.23456s"}, "Waiting 1.2s before stopping the task"},
		{taskrunner.Signaling, map[string]string{"signal": "1", "reason": "asked for"}, "Sending signal SIGHUP: asked for"},
		{taskrunner.Signaling, map[string]string{"signal": "usr1"}, "Sending signal SIGUSR1"},
		{taskrunner.Signaling, map[string]string{"signal": "42"}, "Sending signal 42"},
		{taskrunner.NotRestarting, map[string]string{"reason": "exit code 3"}, "The task is not started again: exit code 3"},
		{taskrunner.RestartSignaled, nil, "The restart was asked for"},
		{taskrunner.RestartSignaled, map[string]string{"reason": "asked for by process 7"}, "asked for by process 7"},
		{"Lease", map[string]string{"port": "7", "host": "a"}, "host=a, port=7"},
		{"Lease", nil, "Lease"},
	} {
		text := taskrunner.Event{Kind: tc.kind, Attrs: tc.attrs}.Text()
		require.Equal(t, tc.want, text, tc.kind)
		if tc.kind != "Lease" {
			require.False(t, strings.HasPrefix(strings.ToLower(text), strings.ToLower(string(tc.kind))), text)
		}
	}
}
