// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// rounds is how often the storm strikes: NODEKEEP_STORM, or 20.
func rounds(t *testing.T) int {
	n := 20
	if v := os.Getenv("NODEKEEP_STORM"); v != "" {
		var err error
		n, err = strconv.Atoi(v)
		require.NoError(t, err, "NODEKEEP_STORM")
	}
	return n
}

// TestStorm kills the agent at a random instant of a start, of its own restore,
// and of a stop, and starts it again each time. Whatever the instant: no task is
// started twice, none is lost, none is left behind.
func TestStorm(t *testing.T) {
	n := rounds(t)
	for name, tt := range map[string]struct {
		agent  func() (string, error)
		rounds int
	}{"as it is": {plain, n}, "under the race detector": {raced, (n + 4) / 5}} {
		t.Run(name, func(t *testing.T) {
			b := newBoxOf(t, tt.agent)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			s := &storm{box: b, rnd: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir()}
			s.agent = b.serve()
			// How long things take here and now sets the range of the instants.
			began := time.Now()
			b.ok("apply", s.job("calm"), "--wait", "running")
			s.start = time.Since(began)
			began = time.Now()
			b.ok("stop", "calm")
			s.stop = time.Since(began)
			for i := range tt.rounds {
				s.round(fmt.Sprintf("j%d", i))
				if t.Failed() {
					return
				}
			}
			t.Logf("killed %d times during a start, %d during a restore, %d during a stop (%d starts and %d stops were cut)",
				s.kills[0], s.kills[1], s.kills[2], s.cut[0], s.cut[1])
		})
	}
}

// storm is a node in one.
type storm struct {
	*box
	rnd         *rand.Rand
	dir         string
	agent       *agentProc
	start, stop time.Duration
	kills       [3]int
	cut         [2]int // commands that the kill made fail
}

// job is two tasks, one beside the other; each writes down that it was started.
func (s *storm) job(name string) string {
	path := filepath.Join(s.dir, name+".hcl")
	task := func(task, more string) string {
		return fmt.Sprintf(`
    task %q {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ >> %s; exec sleep 1000"]
      }
      env {
        MARK = %q
      }
      %s
    }`, task, filepath.Join(s.dir, name+"."+task), s.mark, more)
	}
	text := fmt.Sprintf("job %q {\n  group \"g\" {%s%s\n  }\n}\n", name, task("main", ""),
		task("side", "lifecycle {\n        hook    = \"prestart\"\n        sidecar = true\n      }"))
	require.NoError(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// strike runs a command and kills the agent at a random instant of it.
func (s *storm) strike(span time.Duration, cut *int, args ...string) {
	s.t.Helper()
	cmd := exec.Command(s.cli, append(args, "--data", s.data)...)
	require.NoError(s.t, cmd.Start())
	timer := time.NewTimer(time.Duration(s.rnd.Int64N(int64(span + span/4))))
	<-timer.C
	s.agent.kill(syscall.SIGKILL)
	if cmd.Wait() != nil {
		*cut++
	}
}

// again starts the agent, in one of two cases kills it while it restores, and
// starts it again.
func (s *storm) again() {
	s.t.Helper()
	if s.rnd.IntN(2) == 0 {
		a := s.box.start(s.serveArgs()...)
		timer := time.NewTimer(time.Duration(s.rnd.Int64N(int64(100 * time.Millisecond))))
		<-timer.C
		a.kill(syscall.SIGKILL)
		s.kills[1]++
	}
	s.agent = s.serve()
}

func (s *storm) round(name string) {
	file := s.job(name)
	s.strike(s.start, &s.cut[0], "apply", file, "--wait", "running")
	s.kills[0]++
	s.again()
	s.ok("apply", file, "--wait", "running") // the first one may not have got through
	al := s.ps()[name]
	require.Equal(s.t, "running", string(al.Status), "%+v", al)
	for _, task := range al.Tasks {
		s.onlyLife(name, task)
		require.NotEmpty(s.t, started(task.PID), "%s/%s is lost", name, task.Name)
	}
	require.Len(s.t, s.marked(), 2, "tasks of %s", name)

	s.strike(s.stop, &s.cut[1], "stop", name)
	s.kills[2]++
	s.again()
	s.ok("stop", name)
	al = s.ps()[name]
	require.True(s.t, al.Done, "%+v", al)
	require.Equal(s.t, "complete", string(al.Status), "%+v", al)
	require.Empty(s.t, s.marked(), "left behind by %s", name)
	for _, task := range al.Tasks {
		s.onlyLife(name, task)
	}
}

// onlyLife requires that a task was started once, as the process the agent says.
func (s *storm) onlyLife(name string, task api.Task) {
	s.t.Helper()
	var lives []string
	eventually(s.t, "the first words of "+name+"/"+task.Name, func() string {
		data, err := os.ReadFile(filepath.Join(s.dir, name+"."+task.Name))
		if lives = strings.Fields(string(data)); len(lives) > 0 {
			return ""
		}
		return fmt.Sprint("none: ", err)
	})
	require.Len(s.t, lives, 1, "%s/%s was started more than once; events: %s", name, task.Name, s.nk("events", "--json", name).out)
	if task.PID != 0 {
		require.Equal(s.t, lives[0], strconv.Itoa(task.PID))
	}
	require.Zero(s.t, task.Restarts, "%+v", task)
}
