// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// creators are the children of a supervisor that make containers.
func creators(supervisor int) (l []int) {
	for _, pid := range below(supervisor) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(b), creator.Argv0+"\x00"+creator.Create+"\x00") {
			l = append(l, pid)
		}
	}
	return l
}

// Whenever a creator or the supervisor is killed, or what is being made, a start
// that fails has run nothing and leaves nothing, one that is asked for again
// succeeds, and the program ran once.
func TestKilledDuringStart(t *testing.T) {
	for name, kill := range map[string]func(r *rig, c driver.TaskConfig, supervisor int){
		"creator": func(_ *rig, _ driver.TaskConfig, supervisor int) {
			for _, pid := range creators(supervisor) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		"supervisor": func(_ *rig, _ driver.TaskConfig, supervisor int) { _ = syscall.Kill(supervisor, syscall.SIGKILL) },
		"task": func(_ *rig, c driver.TaskConfig, _ int) {
			for _, dir := range cgroup.Everywhere(c.Cgroup) {
				for _, pid := range cgroup.Procs(dir) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			failures := 0
			for i := range rounds(4, 20) {
				c := r.sh("a/web/0", "echo >>/local/ran; exec sleep 3600")
				ran := r.dirs.Local + "/ran"
				_ = os.Remove(ran)
				supervisor := r.supervisor()
				var wg sync.WaitGroup
				var h *driver.Handle
				var err error
				require.NoError(t, r.tree.Make(c.Cgroup))
				wg.Go(func() { h, err = r.d.Start(r.ctx(), c) })
				<-time.After(time.Duration(i*37%60) * 3 * time.Millisecond) // the moment of death
				kill(r, c, supervisor)
				wg.Wait()
				if err != nil {
					failures++
					require.NoFileExists(t, ran, "%v", err)
					r.empty(c)
					h, err = r.start(c)
				}
				require.NoError(t, err)
				if name == "task" { // it may have been killed as a task that runs
					r.destroy(c, h)
					continue
				}
				eventually(t, "one process", func() bool { l := r.alive(); return len(l) == 1 && l[0] == h.PID })
				eventually(t, "it ran", func() bool { b, _ := os.ReadFile(ran); return string(b) == "\n" })
				r.destroy(c, h)
			}
			t.Logf("%d starts failed", failures)
		})
	}
}

// The agent dies in a start: the next one asks again and finds one process.
func TestAgentDiesInStart(t *testing.T) {
	r := newRig(t, Config{})
	for i := range rounds(3, 10) {
		c := r.sh("a/web/0", "exec sleep 3600")
		require.NoError(t, r.tree.Make(c.Cgroup))
		var wg sync.WaitGroup
		d := r.d
		wg.Go(func() { _, _ = d.Start(r.ctx(), c) })
		<-time.After(time.Duration(i*37%60) * 3 * time.Millisecond)
		d2 := r.renew() // closes the connection
		wg.Wait()
		h, err := d2.Start(r.ctx(), c)
		require.NoError(t, err)
		eventually(t, "one process", func() bool { l := r.alive(); return slices.Equal(l, []int{h.PID}) })
		r.destroy(c, h)
	}
}

// Destroy by what the caller can prove, without a handle, while a start is under
// way: nothing is left, whoever was first.
func TestDestroyedInStart(t *testing.T) {
	r := newRig(t, Config{})
	for i := range rounds(3, 10) {
		c := r.sh("a/web/0", "exec sleep 3600")
		require.NoError(t, r.tree.Make(c.Cgroup))
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = r.d.Start(r.ctx(), c) })
		<-time.After(time.Duration(i*37%60) * 3 * time.Millisecond)
		_ = r.d.Destroy(r.ctx(), ref(c, nil), true)
		wg.Wait()
		_ = r.d.Destroy(r.ctx(), ref(c, nil), true)
		r.empty(c)
	}
}

// Fifty at once, in as many scopes, start without an error.
func TestManyScopes(t *testing.T) {
	r := newRig(t, Config{})
	n := rounds(10, 50)
	var wg sync.WaitGroup
	tasks := make([]driver.TaskConfig, n)
	for i := range n {
		tasks[i] = r.sh(fmt.Sprintf("a%d/web/0", i), "exec sleep 3600")
		tasks[i].Scope = fmt.Sprint("scope", i)
		require.NoError(t, r.tree.Make(tasks[i].Cgroup))
		wg.Go(func() {
			if _, err := r.d.Start(r.ctx(), tasks[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, r.alive(), n)
	for _, c := range tasks {
		wg.Go(func() {
			if err := r.d.Destroy(r.ctx(), ref(c, nil), true); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range tasks {
		r.empty(c)
	}
}
