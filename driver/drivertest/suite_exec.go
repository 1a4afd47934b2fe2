// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
)

// The scripts the suite runs with SuiteConfig.Shell.
const (
	scriptBoth   = `echo out; echo err >&2; exit 7`
	scriptCat    = `cat; exit 3`
	scriptTrue   = `exit 0`
	scriptSleep  = `echo up; exec sleep 3600`
	scriptKilled = `kill -9 $$`
	scriptMuch   = `head -c 300000 /dev/zero; exit 5`
	scriptEnv    = `echo "$ADDED"`
	// What is typed may overtake a new size.
	scriptSize = `was=$(stty size); echo "$was"; read -r line; while now=$(stty size); [ "$now" = "$was" ]; do sleep 0.01; done; echo "$now"; exit 4`
	scriptTTY  = `test -t 0 && test -t 1 && test -t 2 && exit 9`
)

// execer returns the driver as one that runs commands; the test is skipped if it
// is none.
func (s *suite) execer() driver.Execer {
	s.Helper()
	x, ok := s.d.(driver.Execer)
	if !s.d.Info().Capabilities.Exec || s.cfg.Shell == nil {
		s.Skip("this driver runs no commands beside a task, or no shell is named")
	}
	require.True(s, ok, "the capability says that the driver is an Execer")
	return x
}

func (s *suite) command(script string) []string {
	return append(append([]string(nil), s.cfg.Shell...), script)
}

// output runs a script to its end, within the limit of the test.
func (s *suite) output(x driver.Execer, id, script string, req driver.ExecRequest) (res driver.ExitResult, out, errs string) {
	s.Helper()
	var o, e buffer
	req.Command, req.Stdout, req.Stderr = s.command(script), &o, &e
	res, err := x.Exec(s.limit(), id, req)
	require.NoError(s, err)
	return res, o.String(), e.String()
}

func (s *suite) exec() {
	x := s.execer()
	c := s.task("exec/task/0", s.cfg.Sleep)
	s.start(c)
	res, out, errs := s.output(x, c.ID, scriptBoth, driver.ExecRequest{})
	require.Equal(s, driver.ExitResult{Code: 7}, res)
	require.Equal(s, "out\n", out)
	require.Equal(s, "err\n", errs)

	res, out, _ = s.output(x, c.ID, scriptCat, driver.ExecRequest{Stdin: io.NopCloser(strings.NewReader("hello"))})
	require.Equal(s, driver.ExitResult{Code: 3}, res, "the end of the input ends nothing but the input")
	require.Equal(s, "hello", out)

	in, stuck := io.Pipe() // kept open by the caller
	defer func() { _ = stuck.Close() }()
	res, _, _ = s.output(x, c.ID, scriptTrue, driver.ExecRequest{Stdin: in})
	require.Equal(s, driver.ExitResult{}, res)
	_, err := stuck.Write([]byte("x"))
	require.ErrorIs(s, err, io.ErrClosedPipe, "what was to be read is closed once the command has ended")

	res, _, _ = s.output(x, c.ID, scriptKilled, driver.ExecRequest{})
	require.Equal(s, driver.ExitResult{Code: 128 + 9, Signal: 9}, res)
	_, out, _ = s.output(x, c.ID, scriptEnv, driver.ExecRequest{Env: []string{"ADDED=a b"}})
	require.Equal(s, "a b\n", out)

	all, err := driver.Output(s.limit(), x, c.ID, s.command(scriptMuch), 0, 1000)
	require.NoError(s, err)
	require.Equal(s, 5, all.Code, "a command whose output is not wanted ends all the same")
	require.Len(s, all.Stdout, 1000)
	require.True(s, all.Truncated)
}

func (s *suite) execEnds() {
	x := s.execer()
	c := s.task("exec/ends/0", s.cfg.Sleep)
	s.start(c)
	began := time.Now()
	_, err := driver.Output(s.limit(), x, c.ID, s.command(scriptSleep), 200*time.Millisecond, 100)
	require.ErrorIs(s, err, context.DeadlineExceeded)
	require.Less(s, time.Since(began), 20*time.Second)

	ctx, cancel := context.WithCancelCause(s.limit())
	why := errors.New("the client left")
	up := &trigger{on: "up", f: func() { cancel(why) }}
	res, err := x.Exec(ctx, c.ID, driver.ExecRequest{Command: s.command(scriptSleep), Stdout: up})
	require.ErrorIs(s, err, why)
	require.NotZero(s, res.Code, "the result is known also to a client that left")

	broken := errors.New("nobody reads")
	_, err = x.Exec(s.limit(), c.ID, driver.ExecRequest{Command: s.command(scriptSleep), Stdout: failing{broken}})
	require.ErrorIs(s, err, broken)

	_, err = x.Exec(s.limit(), c.ID, driver.ExecRequest{})
	require.ErrorIs(s, err, driver.ErrCommand)
	_, err = x.Exec(s.limit(), c.ID, driver.ExecRequest{Command: []string{"no-such-command"}})
	require.ErrorIs(s, err, driver.ErrCommand)
	_, err = x.Exec(s.limit(), "exec/nobody/0", driver.ExecRequest{Command: s.command(scriptTrue)})
	require.ErrorIs(s, err, driver.ErrTaskNotFound)

	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", time.Second))
	s.wait(c.ID)
	_, err = x.Exec(s.limit(), c.ID, driver.ExecRequest{Command: s.command(scriptTrue)})
	require.ErrorIs(s, err, driver.ErrTaskExited)
}

func (s *suite) execTTY() {
	x := s.execer()
	c := s.task("exec/tty/0", s.cfg.Sleep)
	s.start(c)
	res, _, _ := s.output(x, c.ID, scriptTTY, driver.ExecRequest{TTY: true})
	require.Equal(s, driver.ExitResult{Code: 9}, res)

	in, typed := io.Pipe()
	sizes := make(chan driver.TerminalSize)
	var out buffer
	first := &trigger{on: "33 101", f: func() {
		sizes <- driver.TerminalSize{Rows: 44, Cols: 132}
		_, _ = typed.Write([]byte("\n"))
	}, apart: true}
	res, err := x.Exec(s.limit(), c.ID, driver.ExecRequest{
		Command: s.command(scriptSize), TTY: true, Size: driver.TerminalSize{Rows: 33, Cols: 101}, Resize: sizes,
		Stdin: in, Stdout: io.MultiWriter(&out, first),
	})
	first.Wait()
	require.NoError(s, err)
	require.Equal(s, driver.ExitResult{Code: 4}, res)
	require.Contains(s, out.String(), "33 101\r\n")
	require.Contains(s, out.String(), "44 132\r\n")

	res, out2, _ := s.output(x, c.ID, scriptCat, driver.ExecRequest{TTY: true, Stdin: io.NopCloser(strings.NewReader("typed\n"))})
	require.Equal(s, driver.ExitResult{Code: 3}, res, "the end of the input is typed")
	require.Contains(s, out2, "typed\r\n")
}

// execMany runs commands side by side, and those of the next agent.
func (s *suite) execMany() {
	x := s.execer()
	c := s.task("exec/many/0", s.cfg.Sleep)
	h := s.start(c)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			in := fmt.Sprintf("input of %d", i)
			out, err := driver.Output(s.limit(), withInput{x, in}, c.ID, s.command(scriptCat), 0, 1<<10)
			if err != nil || out.Code != 3 || string(out.Stdout) != in {
				s.Errorf("command %d: %+v, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	s.renew()
	require.NoError(s, s.d.Recover(s.limit(), h))
	_, out, _ := s.output(s.execer(), c.ID, scriptEnv, driver.ExecRequest{Env: []string{"ADDED=again"}})
	require.Equal(s, "again\n", out)
}

func (s *suite) stats() {
	m, ok := s.d.(driver.Meter)
	if !ok {
		s.Skip("this driver measures nothing")
	}
	_, err := m.Stats(s.limit(), "stats/nobody/0", 0)
	if errors.Is(err, driver.ErrNotImplemented) {
		s.Skip("this driver measures nothing") // and is on the other side of the wire
	}
	require.ErrorIs(s, err, driver.ErrTaskNotFound)
	c := s.task("stats/task/0", s.cfg.Sleep)
	s.start(c)
	ctx, cancel := context.WithCancel(s.limit())
	defer cancel()
	ch, err := m.Stats(ctx, c.ID, 100*time.Millisecond)
	require.NoError(s, err)
	var last driver.Usage
	for range 3 {
		u, ok := <-ch
		require.True(s, ok, "the stream ended while the task runs")
		require.True(s, u.Time.After(last.Time))
		require.GreaterOrEqual(s, u.CPU.User, last.CPU.User)
		require.GreaterOrEqual(s, u.CPU.System, last.CPU.System)
		require.NotEmpty(s, append(u.Memory.Measured, u.CPU.Measured...))
		last = u
	}
	cancel()
	s.closed(ch, "its context ended")

	ch, err = m.Stats(s.limit(), c.ID, time.Hour)
	require.NoError(s, err)
	_, ok = <-ch
	require.True(s, ok, "the first sample comes at once")
	require.NoError(s, s.d.Stop(s.limit(), c.ID, "SIGTERM", 30*time.Second))
	s.closed(ch, "the task ended")
}

func (s *suite) closed(ch <-chan driver.Usage, when string) {
	s.Helper()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-s.limit().Done():
			s.Fatal("the stream of samples does not end when ", when)
		}
	}
}

// withInput gives every command an input.
type withInput struct {
	driver.Execer
	in string
}

func (w withInput) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	req.Stdin = io.NopCloser(strings.NewReader(w.in))
	return w.Execer.Exec(ctx, id, req)
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// trigger calls f once when a text was written; apart: in a goroutine of its own.
type trigger struct {
	on    string
	f     func()
	apart bool

	mu   sync.Mutex
	seen string
	once sync.Once
	wg   sync.WaitGroup
}

func (t *trigger) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen += string(p)
	if strings.Contains(t.seen, t.on) {
		t.once.Do(func() {
			if t.apart {
				t.wg.Go(t.f)
			} else {
				t.f()
			}
		})
	}
	return len(p), nil
}

func (t *trigger) Wait() { t.wg.Wait() }

// failing is an output that is broken.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
