// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/internal/supervised"
	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// family is a task of five processes: its own, a plain child, one in a session of
// its own, one that forked twice, one that ignores SIGTERM.
const family = `
sleep 3601 &
setsid sleep 3602 &
(setsid sh -c 'sleep 3603 & exit 0' &) 
sh -c 'trap "" TERM; while :; do sleep 3604; done' &
`

// FF-044: Destroy leaves none of it: after a stop, after the main process ended
// by itself, and after the supervisor was killed; with a cgroup and without.
func TestWholeFamily(t *testing.T) {
	for _, noCgroups := range []bool{false, true} {
		for name, end := range map[string]func(r *rig, c driver.TaskConfig){
			"stop": func(r *rig, c driver.TaskConfig) {
				require.NoError(r.t, r.d.Stop(r.ctx(), c.ID, "SIGTERM", time.Minute))
				require.Equal(r.t, driver.ExitResult{Code: 143, Signal: 15}, r.wait(c.ID))
				// The signal was for the main process only.
				require.True(r.t, r.complete())
			},
			"exit": func(r *rig, c driver.TaskConfig) {
				require.NoError(r.t, os.WriteFile(filepath.Join(r.dirs.Task, "end"), nil, 0o600))
				require.Equal(r.t, driver.ExitResult{}, r.wait(c.ID))
			},
			"supervisor killed": func(r *rig, _ driver.TaskConfig) { r.killSupervisor() },
		} {
			t.Run(fmt.Sprintf("%s, no_cgroups %v", name, noCgroups), func(t *testing.T) {
				r := newRig(t, Config{Enabled: true, NoCgroups: noCgroups})
				c := r.sh("f/web/0", family+`while [ ! -e end ]; do sleep 0.01; done`)
				h := r.mustStart(c)
				eventually(t, "the family", r.complete)
				end(r, c)
				r.destroy(c, h)
			})
		}
	}
}

// complete says whether the whole family is there.
func (r *rig) complete() bool {
	seen := map[string]bool{}
	for _, pid := range r.alive() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		seen[string(b)] = true
	}
	for i := 3601; i <= 3604; i++ {
		if !seen[fmt.Sprintf("sleep\x00%d\x00", i)] {
			return false
		}
	}
	return true
}

// FF-057: with no_cgroups there is none, also not the one the runner made, and a
// kill after the grace still reaches all.
func TestNoCgroups(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	if r.tree.Mode() == cgroup.None {
		t.Skip("this system has no cgroups: ", r.tree.Reason())
	}
	c := r.task("n/web/0", map[string]any{"command": "/bin/sh", "no_cgroups": true,
		"args": []string{"-c", family + `trap "" TERM; echo up; while :; do sleep 1; done`}})
	out := r.logs(&c)
	h := r.mustStart(c)
	eventually(t, "the task", func() bool { return out() == "up\n" })
	list, err := r.tree.List()
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoDirExists(t, c.Cgroup)
	require.NoError(t, r.d.Stop(r.ctx(), c.ID, "SIGTERM", 50*time.Millisecond))
	require.Equal(t, driver.ExitResult{Code: 137, Signal: 9}, r.wait(c.ID))
	eventually(t, "the end of all", func() bool { return len(r.alive()) == 0 })
	r.destroy(c, h)
}

// One that forks and ends, again and again, is not missed by a kill that looks for
// it: what appears while the kill looks is found the next time.
func TestNoCgroupsForkChain(t *testing.T) {
	r := newRig(t, Config{Enabled: true, NoCgroups: true})
	c := r.task("n/web/0", map[string]any{"command": "/bin/sh", "args": []string{"-c", `
		(setsid sh -c 'n=0; f() { n=$((n+1)); [ $n -lt 100000 ] && f & }; f' &)
		sh -c 'n=0; f() { n=$((n+1)); [ $n -lt 100000 ] && f & }; f' &
		trap "" TERM; echo up; while :; do sleep 1; done`}})
	out := r.logs(&c)
	h := r.mustStart(c)
	eventually(t, "the task", func() bool { return out() == "up\n" })
	require.NoError(t, r.d.Stop(r.ctx(), c.ID, "SIGTERM", 50*time.Millisecond))
	require.Equal(t, driver.ExitResult{Code: 137, Signal: 9}, r.wait(c.ID))
	eventually(t, "the end of all", func() bool { return len(r.alive()) == 0 })
	r.destroy(c, h)
}

// FF-064: a killed supervisor is not the end of the task: same process, true exit
// code later; and the Wait under way goes on.
func TestSupervisorKilled(t *testing.T) {
	for _, noCgroups := range []bool{false, true} {
		r := newRig(t, Config{Enabled: true, NoCgroups: noCgroups})
		c := r.sh("k/web/0", `echo up; while [ ! -e end ]; do sleep 0.01; done; echo down; exit 7`)
		out := r.logs(&c)
		h := r.mustStart(c)
		got := make(chan driver.ExitResult, 1)
		go func() {
			res, err := r.d.Wait(r.ctx(), c.ID)
			if err != nil {
				t.Error(err)
			}
			got <- res
		}()
		for range 3 {
			r.killSupervisor()
		}
		st, err := r.d.(driver.Inspector).Inspect(r.ctx(), c.ID)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(h.PID), st.Attrs["pid"])
		require.Equal(t, "running", st.State)
		require.NoError(t, os.WriteFile(filepath.Join(r.dirs.Task, "end"), nil, 0o600))
		res := <-got
		if res.Code == -1 { // a kernel that tells nobody but the parent
			require.NotEmpty(t, res.Err)
		} else {
			require.Equal(t, driver.ExitResult{Code: 7}, res)
		}
		require.Equal(t, "up\ndown\n", out())
		r.destroy(c, h)
		require.NoError(t, os.Remove(filepath.Join(r.dirs.Task, "end")))
	}
}

// FF-038: a handle whose pid is somebody else's by now neither recovers nor
// touches that one, whatever part of the proof still fits.
func TestBystander(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	bystander := exec.Command("/bin/sleep", "3600")
	require.NoError(t, bystander.Start())
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	c := r.sh("b/web/0", "sleep 3600")
	h := r.mustStart(c)
	r.destroy(c, h)
	var rec supervised.Record
	require.NoError(t, json.Unmarshal(h.State, &rec))
	for name, change := range map[string]func(*supervised.Record){
		"pid":      func(rec *supervised.Record) { rec.PID = bystander.Process.Pid },
		"boot":     func(rec *supervised.Record) { rec.PID, rec.BootID = bystander.Process.Pid, "another" },
		"init":     func(rec *supervised.Record) { rec.PID = 1 },
		"our pid":  func(rec *supervised.Record) { rec.PID = os.Getpid() },
		"gone":     func(*supervised.Record) {},
		"no scope": func(rec *supervised.Record) { rec.PID, rec.Scope = bystander.Process.Pid, "another" },
	} {
		forged := rec
		change(&forged)
		raw, err := json.Marshal(forged)
		require.NoError(t, err)
		fh := *h
		fh.State = raw
		require.ErrorIs(t, r.d.Recover(r.ctx(), &fh), driver.ErrTaskNotFound, name)
		require.NoError(t, r.d.Destroy(r.ctx(), ref(c, &fh), true), name) // by proof: there is none
		require.NoError(t, bystander.Process.Signal(syscall.Signal(0)), name)
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", bystander.Process.Pid))
		require.NoError(t, err)
		require.NotContains(t, string(st), ") Z ", name)
	}
	// The same with a supervisor that does know the task, as another process.
	h = r.mustStart(c)
	require.NoError(t, json.Unmarshal(h.State, &rec))
	rec.PID = bystander.Process.Pid
	raw, err := json.Marshal(rec)
	require.NoError(t, err)
	fh := *h
	fh.State = raw
	require.ErrorIs(t, r.renew().Recover(r.ctx(), &fh), driver.ErrTaskNotFound)
	require.NoError(t, syscall.Kill(h.PID, 0)) // one odd answer destroys nothing
	r.destroy(c, h)
	require.NoError(t, bystander.Process.Signal(syscall.Signal(0)))
}

// Destroy goes by what is proved, never by what is not known.
func TestDestroyProof(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	// Nothing is known at all.
	require.ErrorIs(t, r.d.Destroy(r.ctx(), driver.TaskRef{ID: "x"}, true), driver.ErrTaskNotFound)
	require.ErrorIs(t, r.d.Destroy(r.ctx(), driver.TaskRef{ID: "x", Scope: scope}, true), driver.ErrTaskNotFound)

	// The runtime directory is lost with its supervisor: the handle is enough.
	for _, force := range []bool{false, true} {
		c := r.sh("d/web/0", "sleep 3600")
		h := r.mustStart(c)
		_, pid, err := r.pool.Scope(scope).Hello(r.ctx())
		require.NoError(t, err)
		require.NoError(t, r.pool.Close())
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		eventually(t, "the end of the supervisor", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
		require.NoError(t, os.RemoveAll(r.base+"/run"))
		r.renew()
		require.ErrorIs(t, r.d.Destroy(r.ctx(), ref(c, h), false), driver.ErrTaskRunning)
		require.NoError(t, syscall.Kill(h.PID, 0))
		if force { // an unreadable handle leaves the cgroup
			if c.Cgroup == "" {
				continue
			}
			h.State = json.RawMessage(`{}`)
		}
		r.destroy(c, h)
	}

	// A start that nobody saw to return is found by its cgroup.
	c := r.sh("d/web/1", family+"exit 0")
	if c.Cgroup == "" {
		t.Skip("this system has no cgroups: ", r.tree.Reason())
	}
	r.mustStart(c)
	r.wait(c.ID)
	r.renew()
	require.NoError(t, r.pool.Scope(scope).Destroy(r.ctx(), c.ID))
	r.destroy(c, nil)

	// Another task's handle proves nothing about this one.
	other := r.sh("d/other/0", "sleep 3600")
	other.Cgroup = r.tree.Path("alloc1", "other")
	oh := r.mustStart(other)
	require.Error(t, r.d.Destroy(r.ctx(), driver.TaskRef{ID: "d/web/2", Handle: oh, Scope: scope}, true))
	require.NoError(t, syscall.Kill(oh.PID, 0))
	require.NoError(t, r.d.Destroy(r.ctx(), ref(other, oh), true))
}

func zombie(pid int) bool {
	st, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(st), ") Z ")
}

// The runtime directory is removed while the agent lives on: the same process is
// recovered by its handle, stopped and destroyed.
func TestRecoverWithoutJournal(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("j/web/0", "trap 'exit 5' TERM; while :; do sleep 0.01; done")
	h := r.mustStart(c)
	_, pid, err := r.pool.Scope(scope).Hello(r.ctx())
	require.NoError(t, err)
	require.NoError(t, r.pool.Close())
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "the end of the supervisor", func() bool { return syscall.Kill(pid, 0) != nil || zombie(pid) })
	require.NoError(t, os.RemoveAll(r.base+"/run"))
	r.renew()
	require.NoError(t, r.d.Recover(r.ctx(), h))
	require.NoError(t, r.d.Stop(r.ctx(), c.ID, "", time.Minute))
	res := r.wait(c.ID)
	if res.Code == -1 {
		require.NotEmpty(t, res.Err)
	} else {
		require.Equal(t, driver.ExitResult{Code: 5}, res)
	}
	r.destroy(c, h)
}

// D13: a scope that belongs to another user is a typed error at once, and the
// task is neither gone nor touched.
func TestForeignScope(t *testing.T) {
	root(t)
	r := newRig(t, Config{Enabled: true})
	c := r.sh("o/web/0", "sleep 3600")
	h := r.mustStart(c)
	r.renew()
	dirs, err := filepath.Glob(r.base + "/run/*")
	require.NoError(t, err)
	require.Len(t, dirs, 1)
	require.NoError(t, os.Chown(dirs[0], 65534, -1))
	require.ErrorIs(t, r.d.Recover(r.ctx(), h), driver.ErrForeignScope)
	require.ErrorIs(t, r.d.Destroy(r.ctx(), ref(c, h), true), driver.ErrForeignScope)
	_, err = r.d.Start(r.ctx(), c)
	require.ErrorIs(t, err, driver.ErrForeignScope)
	require.False(t, driver.IsRecoverable(err))
	require.NoError(t, syscall.Kill(h.PID, 0))
	require.NoError(t, os.Chown(dirs[0], 0, -1))
	require.NoError(t, r.renew().Recover(r.ctx(), h))
	r.destroy(c, h)
}

// Exits while no agent was there are told with their true result, also after the
// supervisor was killed meanwhile.
func TestExitWhileAway(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("w/web/0", `while [ ! -e end ]; do sleep 0.01; done; exit 42`)
	h := r.mustStart(c)
	require.NoError(t, r.pool.Close())
	require.NoError(t, os.WriteFile(filepath.Join(r.dirs.Task, "end"), nil, 0o600))
	eventually(t, "the exit", func() bool { return len(r.alive()) == 0 })
	require.NoError(t, r.renew().Recover(r.ctx(), h))
	require.Equal(t, driver.ExitResult{Code: 42}, r.wait(c.ID))
	r.killSupervisor()
	require.Equal(t, driver.ExitResult{Code: 42}, r.wait(c.ID))
	r.destroy(c, h)
}
