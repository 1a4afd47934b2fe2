// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/hooks/core"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Real tasks under users of their own: each has another uid, owns its directories and
// can open its output, keeps its uid over an agent that has no range any more, and
// gives it back with its files.
func TestDynamicUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run tasks as other users")
	}
	cfg := config(t, fake())
	cfg.DynamicUsers = core.UserRange{Min: 3_100_000, Max: 3_100_001}
	cfg.Drivers = []DriverFunc{func(p *supervisor.Pool) (driver.Driver, error) {
		return rawexec.New(rawexec.Config{Enabled: true, DynamicUsers: true})(p)
	}}
	passable(t, filepath.Dir(cfg.DataDir))
	n := start(t, cfg)
	al := alloc("a", 1, spec.JobService)
	script := `id -u >/dev/stdout; id -g; umask 077; id -u >$NOMAD_TASK_DIR/uid && exec sleep 1000`
	al.Tasks = nil
	for _, name := range []string{"one", "two"} {
		al.Tasks = append(al.Tasks, spec.Task{Name: name, Driver: "raw_exec", KillTimeout: time.Second,
			Restart: &spec.RestartPolicy{Attempts: 1000, Interval: time.Hour, Delay: 20 * time.Millisecond, Mode: spec.RestartFail},
			Config:  fmt.Appendf(nil, `{"command": "/bin/sh", "args": ["-c", %q]}`, script)})
	}
	n.apply(1, al)
	uids := map[string]string{}
	look := func() {
		dir, ok := n.Dir("a")
		require.True(t, ok)
		for _, name := range []string{"one", "two"} {
			file := filepath.Join(dir.Task(name).Local, "uid")
			var uid string
			require.Eventually(t, func() bool {
				b, _ := os.ReadFile(file)
				uid = strings.TrimSpace(string(b))
				return uid != ""
			}, 10*time.Second, 2*time.Millisecond)
			if uids[name] == "" {
				uids[name] = uid
			}
			require.Equal(t, uids[name], uid)
			for _, path := range []string{file, dir.Task(name).Local, dir.Task(name).Secrets} {
				require.Equal(t, uid, owner(t, path), path)
			}
			log := filepath.Join(dir.Logs(), name+".stdout.0")
			require.Eventually(t, func() bool {
				b, _ := os.ReadFile(log)
				return strings.HasPrefix(string(b), uid+"\n"+uid+"\n")
			}, 10*time.Second, 2*time.Millisecond)
		}
	}
	look()
	require.NotEqual(t, uids["one"], uids["two"])
	for _, uid := range uids {
		u, err := strconv.Atoi(uid)
		require.NoError(t, err)
		require.Contains(t, []int{3_100_000, 3_100_001}, u)
	}

	n.stop()
	n.cfg.DynamicUsers = core.UserRange{}
	n = start(t, n.cfg)
	look()
	require.NoError(t, n.Restart(t.Context(), "a", allocrunner.RestartRequest{}))
	n.until("a", "started again", func(s AllocStatus, _ bool) bool {
		return s.Tasks["one"].Attempt == 1 && s.Tasks["two"].Attempt == 1 && s.Tasks["one"].State() == "running" && s.Tasks["two"].State() == "running"
	})
	look()

	n.stop()
	n.cfg.DynamicUsers = cfg.DynamicUsers
	n = start(t, n.cfg)
	next := al.Clone()
	next.ID, next.ModifyIndex = "b", 2
	n.apply(2, next) // all are taken until a is gone
	n.absent("a")
	n.status("b", allocrunner.Running)
	n.apply(3)
	n.absent("b")
}

// passable lets other users pass.
func passable(t *testing.T, dir string) {
	t.Helper()
	for dir != "/" && strings.HasPrefix(dir, os.TempDir()+"/") {
		require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // of a test's own
		dir = filepath.Dir(dir)
	}
}
func owner(t *testing.T, path string) string {
	t.Helper()
	fi, err := os.Stat(path)
	require.NoError(t, err)
	return strconv.Itoa(int(fi.Sys().(*syscall.Stat_t).Uid))
}
