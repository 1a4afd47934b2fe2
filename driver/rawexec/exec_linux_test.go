// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package rawexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// run runs a script beside a task.
func (r *rig) run(id, script string, req driver.ExecRequest) (driver.ExitResult, error) {
	r.t.Helper()
	req.Command = []string{"sh", "-c", script}
	return r.d.(driver.Execer).Exec(r.ctx(), id, req)
}

// counted is a slow reader that remembers the end of what it got.
type counted struct {
	pause time.Duration // for each write
	n     int
	tail  []byte
}

func (c *counted) Write(p []byte) (int, error) {
	if c.pause > 0 {
		<-time.After(c.pause)
	}
	c.n += len(p)
	c.tail = append(c.tail, p...)
	c.tail = slices.Clone(c.tail[max(0, len(c.tail)-64):])
	return len(p), nil
}

// All output is there, then the code, also for a reader that is slow (FF-152).
func TestExecOutputBeforeCode(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("out/a/0", "exec sleep 3600")
	r.mustStart(c)
	const last = 40000
	want := 0
	for i := 1; i <= last; i++ {
		want += len(fmt.Sprint(i)) + 1
	}
	for round := range 6 {
		for _, tty := range []bool{false, true} {
			out := &counted{}
			if round == 0 {
				out.pause = 5 * time.Millisecond
			}
			res, err := r.run(c.ID, fmt.Sprintf("seq 1 %d; exit 7", last), driver.ExecRequest{TTY: tty, Stdout: out})
			require.NoError(t, err)
			require.Equal(t, driver.ExitResult{Code: 7}, res)
			end, size := fmt.Sprintf("\n%d\n", last), want
			if tty {
				end, size = fmt.Sprintf("\r\n%d\r\n", last), want+last
			}
			require.True(t, bytes.HasSuffix(out.tail, []byte(end)), "tty %v: %q", tty, out.tail)
			require.Equal(t, size, out.n, "tty %v", tty)
		}
	}
	r.destroy(c, nil)
}

// Commands that end do not wait for what they left in the background, whatever
// that does with the output.
func TestExecBackground(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("back/a/0", "exec sleep 3600")
	r.mustStart(c)
	for _, tty := range []bool{false, true} {
		var out counted
		began := time.Now()
		res, err := r.run(c.ID, `trap '' HUP; (while :; do echo y; done) & echo done; exit 2`, driver.ExecRequest{TTY: tty, Stdout: &out})
		require.NoError(t, err)
		require.Equal(t, driver.ExitResult{Code: 2}, res)
		require.Less(t, time.Since(began), 10*time.Second)
	}
	r.destroy(c, nil)
}

// The command sees its terminal: size, controlling terminal, keys, and a job that
// is stopped by one.
func TestExecTerminal(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("tty/a/0", "exec sleep 3600")
	r.mustStart(c)
	in, typed := io.Pipe()
	var seen counted
	watch := writer(func(p []byte) {
		_, _ = seen.Write(p)
		if bytes.Contains(p, []byte("ready")) {
			go func() { _, _ = typed.Write([]byte{3}) }() // Ctrl-C
		}
	})
	res, err := r.run(c.ID, `trap 'echo interrupted; exit 8' INT; tty; echo x >/dev/tty; echo ready; while :; do sleep 0.05; done`,
		driver.ExecRequest{TTY: true, Stdin: in, Stdout: watch})
	require.NoError(t, err)
	require.Equal(t, driver.ExitResult{Code: 8}, res)
	require.Contains(t, string(seen.tail), "interrupted")
	r.destroy(c, nil)
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// Without cgroups a command runs as well, and neither it nor its end disturbs the
// task (FF-061). The first signs of life after the death of agent and supervisor.
func TestExecNoCgroups(t *testing.T) {
	r := newRig(t, Config{Enabled: true, NoCgroups: true})
	c := r.sh("nocg/a/0", "exec sleep 3600")
	c.Cgroup = ""
	h := r.mustStart(c)
	for range 3 {
		out, err := driver.Output(r.ctx(), r.d.(driver.Execer), c.ID, []string{"id", "-u"}, time.Minute, 100)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintln(os.Geteuid()), string(out.Stdout))
		r.killSupervisor()
		r.renew()
		require.NoError(t, r.d.Recover(r.ctx(), h))
	}
	st, err := r.d.(driver.Inspector).Inspect(r.ctx(), c.ID)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(h.PID), st.Attrs["pid"])
	r.destroy(c, h)
}

// The agent and the supervisor may go while a command runs.
func TestExecLosesSupervisor(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("lost/a/0", "exec sleep 3600")
	h := r.mustStart(c)
	for name, lose := range map[string]func(){"supervisor": r.killSupervisor, "agent": func() { require.NoError(t, r.pool.Close()) }} {
		up := make(chan struct{})
		var once sync.Once
		var end sync.WaitGroup
		end.Go(func() {
			res, err := r.run(c.ID, "echo up; exec sleep 3601", driver.ExecRequest{Stdout: writer(func([]byte) { once.Do(func() { close(up) }) })})
			require.ErrorIs(t, err, driver.ErrUnavailable, name)
			require.Equal(t, -1, res.Code, name)
		})
		<-up
		lose()
		end.Wait()
		eventually(t, "the end of the command", func() bool {
			return !slices.ContainsFunc(r.alive(), func(pid int) bool { return strings.Contains(cmdline(pid), "3601") })
		})
		r.renew()
		require.NoError(t, r.d.Recover(r.ctx(), h))
	}
	require.Equal(t, []int{h.PID}, r.alive())
	r.destroy(c, h)
}

// Nothing is left of commands in the agent: no descriptor and no goroutine,
// whatever became of them (FF-153).
func TestExecLeavesNothing(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("leak/a/0", "exec sleep 3600")
	r.mustStart(c)
	fds := func() int { l, _ := os.ReadDir("/proc/self/fd"); return len(l) }
	round := func() {
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				in, stuck := io.Pipe()
				defer func() { _ = stuck.Close() }()
				_, err := r.run(c.ID, "exit 0", driver.ExecRequest{Stdin: in, TTY: i%2 == 0, Stdout: io.Discard})
				require.NoError(t, err)
				_, err = r.run(c.ID, "no-such-thing-as-this", driver.ExecRequest{})
				require.NoError(t, err, "the shell says 127")
				_, err = r.d.(driver.Execer).Exec(r.ctx(), c.ID, driver.ExecRequest{Command: []string{"/no/such"}, Stdin: io.NopCloser(strings.NewReader(""))})
				require.ErrorIs(t, err, driver.ErrCommand)
				ctx, cancel := context.WithCancel(r.ctx())
				_, err = r.d.(driver.Execer).Exec(ctx, c.ID, driver.ExecRequest{Command: []string{"sh", "-c", "echo; exec sleep 3600"},
					TTY: i%2 == 0, Stdout: writer(func([]byte) { cancel() })})
				require.ErrorIs(t, err, context.Canceled)
				cancel()
			})
		}
		all.Wait()
	}
	round()
	eventually(t, "rest", func() bool { return len(r.alive()) == 1 })
	files, routines := fds(), runtime.NumGoroutine()
	for range 3 {
		round()
	}
	eventually(t, "that nothing is left", func() bool { return fds() <= files && runtime.NumGoroutine() <= routines })
	r.destroy(c, nil)
}

func TestExecRefusals(t *testing.T) {
	r := newRig(t, Config{Enabled: true})
	c := r.sh("refuse/a/0", "exec sleep 3600")
	r.mustStart(c)
	x := r.d.(driver.Execer)
	for _, req := range []driver.ExecRequest{{}, {Command: []string{""}}, {Command: []string{"true", "a\x00b"}}, {Command: []string{"true"}, Env: []string{"x"}},
		{Command: []string{"/etc/passwd"}}, {Command: []string{"/etc"}}, {Command: []string{"./local"}}, {Command: []string{"true", strings.Repeat("x", 200<<10)}}} {
		_, err := x.Exec(r.ctx(), c.ID, req)
		require.ErrorIs(t, err, driver.ErrCommand, "%.40q", req.Command)
	}
	_, err := x.Exec(r.ctx(), "nobody/a/0", driver.ExecRequest{Command: []string{"true"}})
	require.ErrorIs(t, err, driver.ErrTaskNotFound)
	r.destroy(c, nil)
}

// The samples are the task's own: what it burns and holds, and that of commands
// beside it, with cgroups and without.
func TestStats(t *testing.T) {
	for name, cfg := range map[string]Config{"cgroups": {Enabled: true}, "no cgroups": {Enabled: true, NoCgroups: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, cfg)
			burn := r.sh("stats/burn/0", `(while :; do :; done) & head -c 30000000 /dev/zero | tail -c 30000000 | (sleep 3600; cat) >/dev/null`)
			idle := r.sh("stats/idle/0", "exec sleep 3600")
			r.mustStart(burn)
			r.mustStart(idle)
			stream := func(id string) <-chan driver.Usage {
				ch, err := r.d.(driver.Meter).Stats(r.ctx(), id, 200*time.Millisecond)
				require.NoError(t, err)
				return ch
			}
			ch := stream(burn.ID)
			var u driver.Usage
			eventually(t, "that the task is seen at work", func() bool {
				u = <-ch
				return u.CPU.Percent > 10 && u.Memory.RSS > 25<<20 && u.Pids >= 4 && u.CPU.User > 50*time.Millisecond
			})
			require.GreaterOrEqual(t, u.Threads, u.Pids)
			require.GreaterOrEqual(t, u.Memory.Usage, u.Memory.RSS)
			require.Less(t, u.CPU.Percent, 800.0)
			if cfg.NoCgroups || r.tree.Mode() == cgroup.Freezer || r.tree.Mode() == cgroup.None {
				require.Nil(t, u.Pressure)
			}
			quiet := stream(idle.ID)
			<-quiet
			u = <-quiet
			require.Less(t, u.CPU.Percent, 50.0)
			require.Less(t, u.Memory.RSS, uint64(20<<20))
			require.Equal(t, 1, u.Pids)
			end := make(chan struct{})
			var beside sync.WaitGroup
			beside.Go(func() {
				ctx, cancel := context.WithCancelCause(r.ctx())
				context.AfterFunc(ctx, func() {})
				go func() { <-end; cancel(errors.New("seen")) }()
				_, _ = r.d.(driver.Execer).Exec(ctx, idle.ID, driver.ExecRequest{Command: []string{"sleep", "3602"}})
			})
			eventually(t, "that the command is counted", func() bool { u = <-quiet; return u.Pids == 2 })
			close(end)
			beside.Wait()
			require.NoError(t, r.d.Stop(r.ctx(), idle.ID, "SIGKILL", 0))
			for range quiet { //nolint:revive // until it is closed
			}
			r.destroyAll(burn, idle)
		})
	}
}

// destroyAll destroys tasks that all carry the rig's mark.
func (r *rig) destroyAll(list ...driver.TaskConfig) {
	r.t.Helper()
	for _, c := range list {
		require.NoError(r.t, r.d.Destroy(r.ctx(), ref(c, nil), true))
	}
	for _, c := range list {
		r.empty(c)
	}
}
