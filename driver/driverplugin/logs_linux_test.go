// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/drivermanager"
	"github.com/nodekeep/nodekeep/internal/proctest"
)

func kill(t *testing.T, p *driverplugin.Plugin) {
	t.Helper()
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	<-p.Done()
}

// alive are the processes that were launched so.
func alive(l drivermanager.Launch) []int { return withEnv("NK_DIR=" + l.Dir) }

// withEnv are the processes that have kv in their environment.
func withEnv(kv string) []int { return proctest.Marked(kv) }

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

// playAgent is an agent that launches a driver, starts a task, has it log later, says
// what it knows, and waits for its death.
func playAgent() {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	exe, err := os.Executable()
	fail(err)
	ctx := context.Background()
	dir := os.Getenv("NK_DIR")
	p, err := driverplugin.Launch(ctx, exe, drivermanager.Launch{Dir: dir + "/p", Config: json.RawMessage(richConfig),
		Env: []string{roleEnv + "=rich", "NK_DIR=" + dir}, Log: hclog.NewNullLogger()})
	fail(err)
	h, err := p.Driver().Start(ctx, fullTask)
	fail(err)
	fail(p.Driver().(driver.Signaler).Signal(ctx, "1000", "LATER"))
	fail(json.NewEncoder(os.Stdout).Encode(said{p.Record(), h}))
	select {}
}

type said struct {
	Record json.RawMessage
	Handle *driver.Handle
}

// kill -9 of an agent, and only then the driver logs a thousand lines: the next
// agent finds the same process and reads every line; the task is untouched.
func TestLogsOfKilledAgent(t *testing.T) {
	l, log := launch(t, "rich")
	require.NoError(t, os.MkdirAll(l.Dir, 0o700))
	cmd := exec.Command(self(t))
	cmd.Env = append(os.Environ(), roleEnv+"=agent", "NK_DIR="+l.Dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var s said
	require.NoError(t, json.NewDecoder(out).Decode(&s))
	require.NoError(t, cmd.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	require.Error(t, cmd.Wait())

	p, err := driverplugin.Reattach(bounded(t), s.Record, l)
	require.NoError(t, err)
	eventually(t, "all lines", func() bool { return strings.Contains(log.String(), " i=999\n") })
	require.Equal(t, 1000, strings.Count(log.String(), "[INFO]  line: "))
	require.Equal(t, []int{p.PID()}, alive(l))
	d := p.Driver().(whole)
	require.NoError(t, d.Recover(bounded(t), s.Handle))
	st, err := d.Inspect(bounded(t), fullTask.ID)
	require.NoError(t, err)
	require.Equal(t, "running", st.State)
	require.NoError(t, d.Destroy(bounded(t), driver.TaskRef{ID: fullTask.ID, Handle: s.Handle}, true))
	closePlugin(t, p)
	require.NoError(t, os.RemoveAll(l.Dir))
}

// What was read is given back to the file system, and a flood is cut short.
func TestLogFlood(t *testing.T) {
	p, log, l := launchRich(t)
	require.NoError(t, p.Driver().(driver.Signaler).Signal(bounded(t), "10000", "MANY"))
	closePlugin(t, p)
	require.Contains(t, log.String(), "i=9999")
	require.NoDirExists(t, l.Dir)
	_, err := os.Stat(l.Dir)
	require.Error(t, err)
}
