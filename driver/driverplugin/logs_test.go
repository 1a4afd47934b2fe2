// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/drivermanager"
)

func kill(t *testing.T, p *driverplugin.Plugin) {
	t.Helper()
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	<-p.Done()
}

// alive are the processes that were launched so.
func alive(l drivermanager.Launch) []int { return withEnv("NK_DIR=" + l.Dir) }

// withEnv are the processes that have kv in their environment.
func withEnv(kv string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
		if bytes.Contains(append([]byte{0}, env...), []byte("\x00"+kv+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// What a driver logs arrives at its own level with its keys, what it prints too.
func TestLogs(t *testing.T) {
	p, log, _ := launchRich(t)
	require.NoError(t, p.Driver().(driver.Signaler).Signal(bounded(t), "", "LOG"))
	closePlugin(t, p)
	got := log.String()
	for _, want := range []string{
		"[INFO]  an answer: @module=rich ", `list="[\"a\",\"b\"]"`, "n=42", "nothing=<nil>",
		"[WARN]  beware: @module=rich", "[ERROR] woe: @module=rich", "error=cause", "[TRACE] detail: @module=rich",
		"[DEBUG] printed", "[WARN]  [WARN] as a prefix",
	} {
		require.Contains(t, got, want)
	}
	require.Equal(t, 1, strings.Count(got, "an answer"))
}

// The agent dies, the driver logs on: it neither ends nor stands still, the next
// agent finds the same process, and every line arrives once.
func TestLogsOutliveAgent(t *testing.T) {
	p, log, l := launchRich(t)
	d := p.Driver().(driver.Signaler)
	const lines = 1000
	require.NoError(t, d.Signal(bounded(t), fmt.Sprint(lines), "MANY"))
	eventually(t, "the first lines", func() bool { return strings.Count(log.String(), "[INFO]  line: ") == lines })
	rec, pid := p.Record(), p.PID()
	p.Detach() // as far as the plugin can see, the agent's death: pipes and connections are closed

	var err error
	quiet, _ := launch(t, "rich")
	quiet.Log = nil
	p, err = driverplugin.Reattach(bounded(t), rec, quiet)
	require.NoError(t, err)
	require.Equal(t, pid, p.PID())
	p.Detach()

	between := &logged{}
	l.Log = between.logger()
	p, err = driverplugin.Reattach(bounded(t), rec, l)
	require.NoError(t, err)
	require.NoError(t, p.Driver().(driver.Signaler).Signal(bounded(t), fmt.Sprint(lines), "MANY"), "prints to a pipe that nobody reads")
	kill(t, p)
	closePlugin(t, p)
	for i := range lines {
		require.Equal(t, 1, strings.Count(between.String(), fmt.Sprintf(" i=%d\n", i)), "line %d", i)
	}
	require.Equal(t, lines, strings.Count(log.String(), "[INFO]  line: "), "what the first agent read does not come again")
	require.NoDirExists(t, l.Dir)
}

// What was read is given back to the file system, and a flood is cut short.
func TestLogFlood(t *testing.T) {
	p, log, l := launchRich(t)
	require.NoError(t, p.Driver().(driver.Signaler).Signal(bounded(t), "30000", "MANY"))
	closePlugin(t, p)
	require.Contains(t, log.String(), "i=29999")
	require.NoDirExists(t, l.Dir)
	_, err := os.Stat(l.Dir)
	require.Error(t, err)
}
