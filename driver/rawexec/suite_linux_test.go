// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/drivertest"
)

// Every rule of the contract, with cgroups and without.
func TestSuite(t *testing.T) {
	for name, cfg := range map[string]Config{"cgroups": {Enabled: true}, "no cgroups": {Enabled: true, NoCgroups: true}} {
		t.Run(name, func(t *testing.T) {
			var r *rig
			config := func(command string, args ...string) json.RawMessage {
				b, err := json.Marshal(map[string]any{"command": command, "args": args})
				require.NoError(t, err)
				return b
			}
			drivertest.Suite(t, drivertest.SuiteConfig{
				New: func(t *testing.T) driver.Driver {
					r = newRig(t, cfg)
					return patient{r.d.(*rawexec), t}
				},
				Renew: func(t *testing.T, _ driver.Driver) driver.Driver { return patient{r.renew().(*rawexec), t} },
				Task: func(t *testing.T, _ driver.Driver, id string) driver.TaskConfig {
					c := r.task(id, nil)
					c.Env = append(c.Env, "NK_TASK="+id)
					if c.Cgroup != "" {
						require.NoError(t, r.tree.Make(c.Cgroup))
					}
					return c
				},
				Sleep:  config("/bin/sleep", "3600"),
				Exit:   func(code int) json.RawMessage { return config("/bin/sh", "-c", fmt.Sprint("exit ", code)) },
				Ignore: config("/usr/bin/env", "--ignore-signal=TERM", "sleep", "3600"),
				Bad:    config("no-such-command"),
				Shell:  []string{"/bin/sh", "-c"},
				Left: func(t *testing.T, c driver.TaskConfig) (l []string) {
					other := *r
					other.mark = "NK_TASK=" + c.ID
					return other.left(c)
				},
			})
		})
	}
}

// patient returns from the start of a task that is to ignore a signal once it
// does: a plain process needs a moment for that.
type patient struct {
	*rawexec
	t *testing.T
}

func (p patient) Start(ctx context.Context, cfg driver.TaskConfig) (*driver.Handle, error) {
	h, err := p.rawexec.Start(ctx, cfg)
	if err == nil && strings.Contains(string(cfg.Config), "--ignore-signal") {
		eventually(p.t, "the signal is ignored", func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.PID))
			_, rest, _ := strings.Cut(string(b), "\nSigIgn:\t")
			mask, _ := strconv.ParseUint(rest[:min(16, len(rest))], 16, 64)
			return mask&(1<<14) != 0
		})
	}
	return h, err
}
