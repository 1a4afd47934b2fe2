// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package nodekeep

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver/rawexec"
	"github.com/nodekeep/nodekeep/internal/proctest"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// D4, with processes and without cgroups: all that an unreadable alloc had is
// ended, whatever is left of what knew of it, and nothing else is.
func TestUnreadableRecordWithoutCgroups(t *testing.T) {
	for _, scope := range []ScopeMode{ScopeAlloc, ScopeTask, ScopeNode} {
		for name, damage := range map[string]func(t *testing.T, dir string, stranger int){
			"all is there":    nil,
			"supervisor dead": func(*testing.T, string, int) {},
			"journal damaged": func(t *testing.T, dir string, stranger int) {
				b, err := os.ReadFile(dir + "/journal")
				require.NoError(t, err)
				text := "S\ta/t/0\t" // what it says of the alloc leads to a stranger
				for l := range strings.Lines(string(b)) {
					if strings.HasPrefix(l, "B\ta/t/0\t") {
						text = l + text
					} else if !strings.Contains(l, "\ta/t") {
						text = l + text
					}
				}
				require.NoError(t, os.WriteFile(dir+"/journal", fmt.Appendf(nil, "%s%d\t12345\n", text, stranger), 0o600))
			},
			"journal lost": func(t *testing.T, dir string, _ int) { require.NoError(t, os.RemoveAll(dir)) },
		} {
			switch {
			case scope == ScopeNode && name == "journal lost":
				continue // b's tasks would be lost as well
			case scope != ScopeAlloc && !strings.HasPrefix(name, "journal"):
				continue // no other case
			}
			t.Run(string(scope)+", "+name, func(t *testing.T) {
				t.Parallel()
				quarantineOne(t, scope, damage)
			})
		}
	}
}

// lostScript is a task with a daemon that has left its session, its group and its
// output, and a child that forks.
const lostScript = `setsid sh -c 'exec >/dev/null 2>&1 </dev/null; (env -i sleep 3601 &); exec sleep 3602' & echo up; exec sleep 3600`

func quarantineOne(t *testing.T, scope ScopeMode, damage func(t *testing.T, dir string, stranger int)) {
	cfg := config(t, fake())
	cfg.Scope = scope
	cfg.Drivers = append(cfg.Drivers, rawexec.New(rawexec.Config{Enabled: true, NoCgroups: true}))
	t.Cleanup(func() { leaveNothing(t, cfg) })
	task, err := json.Marshal(map[string]any{"command": "/bin/sh", "args": []string{"-c", lostScript}})
	require.NoError(t, err)
	stranger := exec.Command("/bin/sleep", "3600")
	require.NoError(t, stranger.Start())
	defer func() { _, _ = stranger.Process.Kill(), stranger.Wait() }()
	n := start(t, cfg)
	var allocs []*spec.Alloc
	for _, id := range []string{"a", "b"} {
		al := alloc(id, 1, spec.JobService)
		al.Tasks[0].Driver, al.Tasks[0].Config = "raw_exec", task
		al.Tasks[0].Env = map[string]string{"NK_LOST": cfg.DataDir + id}
		allocs = append(allocs, al)
	}
	n.apply(1, allocs...)
	for _, id := range []string{"a", "b"} {
		n.status(id, allocrunner.Running)
		require.Eventually(t, func() bool { return family(cfg.DataDir+id) == 3 }, 20*time.Second, 5*time.Millisecond)
	}
	sessions := sessionsOf(proctest.Marked("NK_LOST=" + cfg.DataDir + "a"))
	theirs := living(sessionsOf(proctest.Marked("NK_LOST=" + cfg.DataDir + "b")))
	name := map[ScopeMode]string{ScopeAlloc: "alloc/a", ScopeTask: "task/a/t", ScopeNode: "node"}[scope]
	_, pid, err := n.pool.Scope(name).Hello(t.Context())
	require.NoError(t, err)
	n.stop()
	if damage != nil {
		dir := cfg.RuntimeDir + "/" + strings.ReplaceAll(name, "/", "%2F")
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		require.Eventually(t, func() bool { return session(pid) == "" }, 20*time.Second, time.Millisecond)
		damage(t, dir, stranger.Process.Pid)
	}
	n = start(t, cfg, func(a *Agent) {
		require.NoError(t, a.store.Update(func(tx state.Tx) error {
			return tx.Put(allocsPath.Join("a"), "alloc", []byte("garbage"))
		}))
	})
	require.NoDirExists(t, filepath.Join(cfg.DataDir, "alloc", "a"))
	require.Empty(t, living(sessions), "processes of the alloc are left")
	s, ok := n.Alloc("a")
	require.True(t, ok)
	require.NotEmpty(t, s.Quarantined)
	n.status("b", allocrunner.Running)
	require.Equal(t, theirs, living(sessionsOf(proctest.Marked("NK_LOST="+cfg.DataDir+"b"))), "another alloc's tasks")
	require.NotEmpty(t, session(stranger.Process.Pid), "a stranger was killed")
}

// family counts the living processes of the sessions that what carries the
// variable is in, once none of them is on its way to become another.
func family(value string) int {
	pids := living(sessionsOf(proctest.Marked("NK_LOST=" + value)))
	for _, pid := range pids {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); string(comm) != "sleep\n" {
			return 0
		}
	}
	return len(pids)
}

func sessionsOf(pids []int) map[string]bool {
	out := map[string]bool{}
	for _, pid := range pids {
		out[session(pid)] = true
	}
	return out
}

func living(sessions map[string]bool) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && sessions[session(pid)] {
			pids = append(pids, pid)
		}
	}
	return pids
}

// session returns the session of a living process, "" of any other.
func session(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if err != nil || len(f) < 4 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[3]
}
