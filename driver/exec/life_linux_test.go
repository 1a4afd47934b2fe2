// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/exec/internal/container"
	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// rounds is how often what is a matter of luck, or may leak a little, is tried.
func rounds(short, long int) int {
	if os.Getenv("NODEKEEP_LONG") != "" {
		return long
	}
	return short
}

// FF-041: however and how often a start fails, it says what is wrong, nothing is
// left, and the same ID starts with a good configuration.
func TestFailedStarts(t *testing.T) {
	r := newRig(t, Config{})
	const id = "a/web/0"
	require.NoError(t, os.WriteFile(r.dirs.Local+"/data", []byte("no program\n"), 0o755))
	require.NoError(t, os.WriteFile(r.dirs.Local+"/orphan", []byte("#!/no/interpreter\n"), 0o755))
	user := r.sh(id, "true")
	user.User = "no-such-user"
	rootUser := r.sh(id, "true")
	rootUser.User = "root"
	output := r.sh(id, "true")
	output.Stdio.Stdout = "/none/stdout"
	small := r.sh(id, "true")
	small.Res.MemoryMB = 1
	for _, c := range []struct {
		name string
		task driver.TaskConfig
		want any // what errors.As or errors.Is finds
	}{
		{"capability", r.sh(id, "true", map[string]any{"cap_add": []string{"sys_admin"}}), &container.FieldError{}},
		{"unknown capability", r.sh(id, "true", map[string]any{"cap_add": []string{"everything"}}), &container.FieldError{}},
		{"host pid", r.sh(id, "true", map[string]any{"pid_mode": "host"}), &container.FieldError{}},
		{"command", r.task(id, map[string]any{"command": "no-such-command"}), fs.ErrNotExist},
		{"format", r.task(id, map[string]any{"command": "data"}), syscall.ENOEXEC},
		{"interpreter", r.task(id, map[string]any{"command": "orphan"}), fs.ErrNotExist},
		{"image", r.sh(id, "true", map[string]any{"image": "local/none"}), nil},
		{"user", user, nil},
		{"root", rootUser, &container.FieldError{}},
		{"output", output, fs.ErrNotExist},
		{"memory", small, nil},
		{"attribute", r.sh(id, "true", map[string]any{"no_such_thing": 1}), &container.FieldError{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range rounds(2, 10) {
				_, err := r.start(c.task)
				require.Error(t, err)
				switch want := c.want.(type) {
				case *container.FieldError:
					require.ErrorAs(t, err, &want)
					require.NotEmpty(t, want.Allowed)
				case error:
					require.ErrorIs(t, err, want)
				}
				require.False(t, driver.IsRecoverable(err), "%v", err)
			}
			r.empty(c.task)
		})
	}
	eventually(t, "no child of the supervisor", func() bool { return len(below(r.supervisor())) == 0 })
	good := r.sh(id, "exit 3")
	h := r.mustStart(good)
	require.Equal(t, driver.ExitResult{Code: 3}, r.wait(id))
	r.destroy(good, h)
}

// Out of memory is counted by the kernel: of the main process, of a child of one
// that then ends well, and also if the task is destroyed at once.
func TestOutOfMemory(t *testing.T) {
	r := newRig(t, Config{})
	const eat = "tail /dev/zero"
	for script, want := range map[string]driver.ExitResult{
		"exec " + eat:           {Code: 137, Signal: 9, OOMKilled: true},
		"(" + eat + "); exit 0": {OOMKilled: true},
		"exit 5":                {Code: 5},
	} {
		c := r.sh("a/web/0", script)
		c.Res.MemoryMB = 48 // libcontainer's init, with the race detector, is half of it
		h := r.mustStart(c)
		ended := make(chan driver.ExitResult, 1)
		go func() {
			res, err := r.d.Wait(r.ctx(), c.ID)
			if err != nil {
				t.Error(err)
			}
			ended <- res
			if err := r.d.Destroy(r.ctx(), ref(c, h), false); err != nil {
				t.Error(err)
			}
			close(ended)
		}()
		require.Equal(t, want, <-ended, script)
		<-ended
		r.empty(c)
	}
}

// FF-049: every process of a task is in its cgroup in all hierarchies, also one of
// a command, and the supervisor is in none; FF-050: what the agent is by
// oom_score_adj, its tasks are not.
func TestPlaces(t *testing.T) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0))
	defer func() { _ = os.WriteFile("/proc/self/oom_score_adj", own, 0) }()
	r := newRig(t, Config{})
	c := r.sh("a/web/0", "setsid sleep 3600 & sleep 3600; true", map[string]any{"oom_score_adj": 7})
	h := r.mustStart(c)
	eventually(t, "three processes", func() bool { return len(r.alive()) == 3 })
	up := make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(r.ctx())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = r.d.(driver.Execer).Exec(ctx, c.ID, driver.ExecRequest{Command: []string{"sh", "-c", "echo; exec sleep 3600"},
			Stdout: writer(func(b []byte) (int, error) { once.Do(func() { close(up) }); return len(b), nil })})
	})
	<-up
	eventually(t, "four processes", func() bool { return len(r.alive()) == 4 })
	pids := r.alive()
	for _, dir := range cgroup.Everywhere(c.Cgroup) {
		in := cgroup.Procs(dir)
		slices.Sort(pids)
		require.Equal(t, pids, in, dir)
		require.NotContains(t, in, r.supervisor())
	}
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		require.NoError(t, err)
		require.Equal(t, "7\n", string(b))
	}
	b, _ := os.ReadFile("/proc/self/oom_score_adj")
	require.Equal(t, "500\n", string(b))
	cancel()
	wg.Wait()
	r.destroy(c, h)
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// FF-046, FF-044: what is frozen is stopped, what forks all the time too, with and
// without processes of its own; two Destroys at once both succeed.
func TestStubborn(t *testing.T) {
	r := newRig(t, Config{Policy: Policy{AllowHostPID: true}})
	freeze := func(c driver.TaskConfig) {
		for _, dir := range cgroup.Everywhere(c.Cgroup) {
			_ = os.WriteFile(dir+"/freezer.state", []byte("FROZEN"), 0)
			_ = os.WriteFile(dir+"/cgroup.freeze", []byte("1"), 0)
		}
	}
	const bomb = "trap '' TERM; while :; do (setsid sleep 0.05 &); done"
	host := map[string]any{"pid_mode": "host", "pids_limit": 100}
	for name, c := range map[string]struct {
		task   driver.TaskConfig
		freeze bool
	}{
		"frozen":        {r.sh("a/web/0", "sleep 3600"), true},
		"frozen, host":  {r.sh("b/web/0", "sleep 3600 & sleep 3600", host), true},
		"fork bomb":     {r.sh("c/web/0", bomb, map[string]any{"pids_limit": 100}), false},
		"its own, host": {r.sh("d/web/0", bomb, host), false},
	} {
		t.Run(name, func(t *testing.T) {
			h := r.mustStart(c.task)
			eventually(t, "it runs", func() bool { return len(r.alive()) > 0 })
			if c.freeze {
				freeze(c.task)
			}
			began := time.Now()
			require.NoError(t, r.d.Stop(r.ctx(), c.task.ID, "SIGTERM", 50*time.Millisecond))
			require.Less(t, time.Since(began), 5*time.Second)
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := r.d.Destroy(r.ctx(), ref(c.task, h), true); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			r.empty(c.task)
		})
	}
}

// PID 1 of a namespace is deaf to what it has no handler for; an init is not.
func TestSignals(t *testing.T) {
	r := newRig(t, Config{})
	deaf := r.task("a/web/0", map[string]any{"command": "sleep", "args": []string{"3600"}})
	h := r.mustStart(deaf)
	require.NoError(t, r.d.(driver.Signaler).Signal(r.ctx(), deaf.ID, "SIGTERM"))
	began := time.Now()
	require.NoError(t, r.d.Stop(r.ctx(), deaf.ID, "SIGTERM", 100*time.Millisecond))
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	require.Equal(t, driver.ExitResult{Code: 137, Signal: 9}, r.wait(deaf.ID))
	r.destroy(deaf, h)

	heard := r.sh("b/web/0", "trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done")
	out := r.logs(&heard)
	h = r.mustStart(heard)
	eventually(t, "its handler", func() bool { return out() == "up\n" })
	require.NoError(t, r.d.Stop(r.ctx(), heard.ID, "SIGTERM", time.Minute))
	require.Equal(t, driver.ExitResult{Code: 9}, r.wait(heard.ID))
	r.destroy(heard, h)
}

// The agent and then the supervisor die: the same process, its log goes on though
// its FIFOs belong to its user by now (the owner is not looked at), commands run in
// it as its user, and its exit is the true one.
func TestAgentAndSupervisorDie(t *testing.T) {
	r := newRig(t, Config{})
	c := r.sh("a/web/0", "trap 'exit 6' USR1; i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
	out := r.logs(&c)
	h := r.mustStart(c)
	lines := func() int { return strings.Count(out(), "\n") }
	eventually(t, "output", func() bool { return lines() > 3 })
	d := r.renew()
	require.NoError(t, d.Recover(r.ctx(), h))
	for range 2 {
		r.killSupervisor()
		was := lines()
		eventually(t, "more output", func() bool { return lines() > was })
	}
	var o bytes.Buffer
	res, err := r.run(c.ID, "id -u; cat /proc/1/comm; exit 4", driver.ExecRequest{Stdout: &o})
	require.NoError(t, err)
	require.Equal(t, driver.ExitResult{Code: 4}, res)
	require.Equal(t, "65534\nsh\n", o.String())
	st, err := d.(driver.Inspector).Inspect(r.ctx(), c.ID)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(h.PID), st.Attrs["pid"])
	require.Contains(t, st.Attrs["isolation"], `"seccomp":true`)
	require.NoError(t, d.Stop(r.ctx(), c.ID, "SIGUSR1", time.Minute))
	if res := r.wait(c.ID); res.Code != 6 && res.Err == "" {
		t.Errorf("%+v", res)
	}
	for i, l := range strings.Split(strings.TrimSpace(out()), "\n") {
		require.Equal(t, strconv.Itoa(i+1), l)
	}
	r.destroy(c, h)
}

// The runtime directory goes, with what is known of the container: the task is
// adopted by its identity and ended by its cgroups; a command says why it cannot
// run.
func TestRuntimeDirRemoved(t *testing.T) {
	r := newRig(t, Config{})
	c := r.sh("a/web/0", "sleep 3600")
	h := r.mustStart(c)
	pid := r.supervisor()
	require.NoError(t, r.pool.Close())
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.NoError(t, os.RemoveAll(filepath.Join(r.base, "run")))
	d := r.renew()
	require.NoError(t, d.Recover(r.ctx(), h))
	_, err := r.run(c.ID, "true", driver.ExecRequest{})
	require.ErrorIs(t, err, driver.ErrUnavailable)
	r.destroy(c, h)
}

// FF-048: a big process takes a while to give its memory back.
func TestHuge(t *testing.T) {
	r := newRig(t, Config{})
	size := rounds(256, 1024)
	c := r.sh("a/web/0", fmt.Sprintf("exec dd if=/dev/zero of=/dev/null bs=%dM", size))
	c.Res.MemoryMB = int64(size) + 100
	h := r.mustStart(c)
	eventually(t, "its memory", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", h.PID))
		f := strings.Fields(string(b))
		if len(f) < 2 {
			return false
		}
		n, _ := strconv.Atoi(f[1])
		return n >= size<<20/4096
	})
	ch, err := r.d.(driver.Meter).Stats(r.ctx(), c.ID, time.Second)
	require.NoError(t, err)
	u := <-ch
	require.Equal(t, 1, u.Pids)
	require.GreaterOrEqual(t, u.Memory.RSS, uint64(size)<<20*9/10)
	require.Less(t, u.Memory.Usage, uint64(size+100)<<20)
	r.destroy(c, h)
}

// The program that makes containers is kept where an upgrade does not reach it.
func TestKeptProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	old := filepath.Join(dir, creatorName+"-1-1")
	require.NoError(t, os.WriteFile(old, nil, 0o755))
	r := newRig(t, Config{BinDir: dir})
	d := r.d.(*execDriver)
	require.Equal(t, dir, filepath.Dir(d.creator()))
	require.NoFileExists(t, old)
	c := r.sh("a/web/0", "exit 2")
	h := r.mustStart(c)
	require.Equal(t, driver.ExitResult{Code: 2}, r.wait(c.ID))
	r.destroy(c, h)
	require.Equal(t, d.creator(), r.renew().(*execDriver).creator())

	own, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, own, (&execDriver{}).creator())
	require.NoError(t, copyProgram(filepath.Join(dir, "copy")))
	a, err := os.Stat(own)
	require.NoError(t, err)
	b, err := os.Stat(filepath.Join(dir, "copy"))
	require.NoError(t, err)
	require.Equal(t, a.Size(), b.Size())
}

func TestConfig(t *testing.T) {
	for _, cfg := range []Config{
		{Policy: Policy{DeniedEnv: []string{"["}}}, {Policy: Policy{DeniedUsers: []string{"a:b"}}},
		{CreatorExe: "/none"}, {CreatorExe: "relative"}, {BinDir: "relative"}, {PidsLimit: -1},
	} {
		_, err := New(cfg)(nil)
		require.Error(t, err, "%+v", cfg)
	}
	d, err := New(Config{Disabled: true})(nil)
	require.NoError(t, err)
	_, err = d.Start(t.Context(), driver.TaskConfig{ID: "a"})
	require.Error(t, err)
	r := newRig(t, Config{})
	require.Equal(t, driver.Healthy, r.fingerprint().Health)
	r.cfg.Disabled = true
	d = r.renew()
	require.Equal(t, driver.Undetected, r.fingerprint().Health)
	_, err = d.Start(r.ctx(), r.sh("a/web/0", "true"))
	require.ErrorContains(t, err, "turned off")
	_, err = d.Start(r.ctx(), driver.TaskConfig{ID: "a"})
	require.False(t, errors.Is(err, driver.ErrTaskNotFound))
}
