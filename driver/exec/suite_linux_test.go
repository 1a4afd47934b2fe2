// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

// Every rule of the contract, with processes of its own and with the host's.
func TestSuite(t *testing.T) {
	for name, m := range map[string]struct {
		long       bool
		more       map[string]any
		terminated driver.ExitResult
	}{
		// The init passes the signal on and ends with the code of what it ran.
		"init":     {more: map[string]any{"init": true}, terminated: driver.ExitResult{Code: 128 + 15}},
		"host pid": {long: true, more: map[string]any{"pid_mode": "host"}, terminated: driver.ExitResult{Code: 128 + 15, Signal: 15}},
	} {
		t.Run(name, func(t *testing.T) {
			if m.long && os.Getenv("NODEKEEP_LONG") == "" {
				t.Skip("the suite once more; set NODEKEEP_LONG")
			}
			var r *rig
			config := func(command string, args ...string) json.RawMessage {
				c := map[string]any{"command": command, "args": args}
				maps.Copy(c, m.more)
				b, err := json.Marshal(c)
				require.NoError(t, err)
				return b
			}
			drivertest.Suite(t, drivertest.SuiteConfig{
				New: func(t *testing.T) driver.Driver {
					r = newRig(t, Config{Policy: Policy{AllowHostPID: true}})
					return patient{r.d.(*execDriver), t}
				},
				Renew: func(t *testing.T, _ driver.Driver) driver.Driver { return patient{r.renew().(*execDriver), t} },
				Task: func(t *testing.T, _ driver.Driver, id string) driver.TaskConfig {
					c := r.task(id, nil)
					c.Env = append(c.Env, "NK_TASK="+id)
					require.NoError(t, r.tree.Make(c.Cgroup))
					return c
				},
				Sleep:      config("/bin/sleep", "3600"),
				Exit:       func(code int) json.RawMessage { return config("/bin/sh", "-c", fmt.Sprint("exit ", code)) },
				Ignore:     config("/usr/bin/env", "--ignore-signal=TERM", "sleep", "3600"),
				Terminated: m.terminated,
				Bad:        config("no-such-command"),
				Shell:      []string{"/bin/sh", "-c"},
				Left: func(t *testing.T, c driver.TaskConfig) (l []string) {
					other := *r
					other.mark = "NK_TASK=" + c.ID
					return other.left(c)
				},
			})
		})
	}
}

// patient returns from the start of a task once all it is made of is there: the
// program an init starts, and what a program that is to ignore a signal becomes.
type patient struct {
	*execDriver
	t *testing.T
}

func (p patient) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	h, err := p.execDriver.Start(ctx, cfg)
	if err != nil || !strings.Contains(string(cfg.Config), "3600") {
		return h, err
	}
	ignored := strings.Contains(string(cfg.Config), "--ignore-signal")
	eventually(p.t, "the program runs", func() bool {
		for _, pid := range append(below(h.PID), h.PID) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if !strings.HasPrefix(string(b), "sleep\x00") && !strings.HasPrefix(string(b), "/bin/sleep\x00") {
				continue
			}
			b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, rest, _ := strings.Cut(string(b), "\nSigIgn:\t")
			mask, _ := strconv.ParseUint(rest[:min(16, len(rest))], 16, 64)
			return !ignored || mask&(1<<14) != 0
		}
		return false
	})
	return h, err
}

// below returns the children of a process, whichever of its threads forked them.
func below(pid int) (l []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		b, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(b)) {
			n, _ := strconv.Atoi(f)
			l = append(l, n)
		}
	}
	return l
}
