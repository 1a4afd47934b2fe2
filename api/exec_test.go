// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/taskrunner"
)

func execFake(run func(ctx context.Context, req driver.ExecRequest) (driver.ExitResult, error)) *fake {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("a1", "web", "g", 0)}
	f.run = run
	return f
}

// All output, then the code; input and its end; nothing lost in either direction.
func TestExecStreams(t *testing.T) {
	size := driver.TerminalSize{Rows: 3, Cols: 4}
	f := execFake(func(_ context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		if !req.TTY || req.Size != size || len(req.Env) != 1 {
			return driver.ExitResult{}, fmt.Errorf("got %+v", req)
		}
		n, err := io.Copy(req.Stdout, req.Stdin)
		fmt.Fprintf(req.Stderr, "%d bytes", n)
		return driver.ExitResult{Code: 7, Signal: 1}, err
	})
	c := dialFake(t, f, false)
	in := strings.Repeat("0123456789", 300_000) // many times the window
	var out, errs bytes.Buffer
	res, err := c.Exec(within(t), "web", "web", driver.ExecRequest{
		Command: []string{"cat", "-"}, Env: []string{"A=b"}, TTY: true, Size: size,
		Stdin: io.NopCloser(strings.NewReader(in)), Stdout: &out, Stderr: &errs,
	})
	require.NoError(t, err)
	require.Equal(t, driver.ExitResult{Code: 7, Signal: 1}, res)
	require.Equal(t, in, out.String())
	require.Equal(t, "3000000 bytes", errs.String())
	require.Equal(t, []string{`exec a1 task=web ["cat" "-"] tty=true`}, f.made())

	f.run = func(_ context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		if req.Stdin != nil {
			return driver.ExitResult{}, errors.New("there is input")
		}
		return driver.ExitResult{}, nil
	}
	res, err = c.Exec(within(t), "web", "web", driver.ExecRequest{Command: []string{"true"}})
	require.NoError(t, err)
	require.Zero(t, res)
}

// Input that nobody reads hides neither a new size nor the end of the client.
func TestExecInputNotRead(t *testing.T) {
	sized, left := make(chan driver.TerminalSize), make(chan error, 1)
	f := execFake(func(ctx context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		sized <- <-req.Resize
		<-ctx.Done()
		left <- context.Cause(ctx)
		return driver.ExitResult{Code: 129, Signal: 1}, context.Cause(ctx)
	})
	c := dialFake(t, f, false)
	ctx, cancel := context.WithCancel(within(t))
	sizes := make(chan driver.TerminalSize, 1)
	sizes <- driver.TerminalSize{Rows: 5, Cols: 6}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := c.Exec(ctx, "web", "web", driver.ExecRequest{Command: []string{"x"}, TTY: true, Resize: sizes, Stdin: io.NopCloser(endless{})})
		require.ErrorIs(t, err, context.Canceled)
	})
	require.Equal(t, driver.TerminalSize{Rows: 5, Cols: 6}, <-sized)
	cancel()
	wg.Wait()
	require.ErrorIs(t, <-left, errLeft)
}

type closing struct{ done atomic.Bool }

func (c *closing) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closing) Close() error             { c.done.Store(true); return nil }

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// What goes wrong is the same error on both sides, before and after the start.
func TestExecErrors(t *testing.T) {
	f := execFake(nil)
	f.allocs = append(f.allocs, finished(alloc("b1", "done", "g", 0), 0))
	pending := alloc("c1", "slow", "g", 0)
	pending.Tasks = map[string]taskrunner.Snapshot{"web": {Phase: taskrunner.Pending}}
	f.allocs = append(f.allocs, pending)
	c := dialFake(t, f, false)
	run := func(ref, task string, cmd ...string) error {
		closed := &closing{}
		_, err := c.Exec(within(t), ref, task, driver.ExecRequest{Command: cmd, Stdin: closed})
		require.True(t, closed.done.Load(), "input is closed whatever happens")
		return err
	}
	require.ErrorIs(t, run("nobody", "web", "x"), nodekeep.ErrNoAlloc)
	require.ErrorIs(t, run("web", "nix", "x"), ErrNoTask)
	require.ErrorIs(t, run("done", "web", "x"), allocrunner.ErrTerminal)
	require.ErrorIs(t, run("slow", "web", "x"), taskrunner.ErrNotRunning)
	require.ErrorContains(t, run("web", "web"), "no command")
	require.ErrorContains(t, run("web", "web", ""), "no command")
	require.Empty(t, f.made(), "nothing was run")
	for _, want := range []error{nodekeep.ErrExecRefused, driver.ErrCommand, driver.ErrNotImplemented, driver.ErrUnavailable} {
		f.err = fmt.Errorf("%w: because", want)
		require.ErrorIs(t, run("web", "web", "x"), want)
	}
	resp, err := c.http.Post("http://node/v1/allocs/web/exec", "application/json", strings.NewReader(`{}`))
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

// A broken output ends the exec, also while the command writes on.
func TestExecOutputFails(t *testing.T) {
	ended := make(chan error, 1)
	f := execFake(func(_ context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		for {
			if _, err := req.Stdout.Write(make([]byte, 100_000)); err != nil {
				ended <- err
				return driver.ExitResult{Code: 1}, err
			}
		}
	})
	c := dialFake(t, f, false)
	broken := errors.New("disk full")
	_, err := c.Exec(within(t), "web", "web", driver.ExecRequest{Command: []string{"yes"}, Stdout: failing{broken}})
	require.ErrorIs(t, err, broken)
	require.Error(t, <-ended)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// The end of the node ends what runs, for a client that reads and one that does
// not, and none of them keeps it from ending.
func TestExecNodeEnds(t *testing.T) {
	began := make(chan struct{}, 2)
	f := execFake(func(ctx context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		began <- struct{}{}
		for ctx.Err() == nil {
			if _, err := req.Stdout.Write(make([]byte, 100_000)); err != nil {
				break
			}
		}
		<-ctx.Done()
		return driver.ExitResult{Code: 129}, context.Cause(ctx)
	})
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, ln, Handler(Config{Agent: f}), nil) }()
	c := Dial(path)
	defer c.Close()
	var clients sync.WaitGroup
	stuck := make(chan struct{})
	for _, out := range []io.Writer{io.Discard, blocked(stuck)} {
		clients.Go(func() {
			_, err := c.Exec(within(t), "web", "web", driver.ExecRequest{Command: []string{"x"}, Stdout: out})
			require.Error(t, err)
		})
	}
	<-began
	<-began
	cancel()
	require.NoError(t, <-served)
	close(stuck)
	clients.Wait()
}

type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

// Nothing is left of execs on either side.
func TestExecLeavesNothing(t *testing.T) {
	f := execFake(func(_ context.Context, req driver.ExecRequest) (driver.ExitResult, error) {
		_, err := req.Stdout.Write([]byte("x"))
		return driver.ExitResult{}, err
	})
	c := dialFake(t, f, false)
	round := func() {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				in, stuck := io.Pipe()
				defer stuck.Close()
				_, err := c.Exec(within(t), "web", "web", driver.ExecRequest{Command: []string{"x"}, Stdin: in, Stdout: io.Discard, Resize: make(chan driver.TerminalSize)})
				require.NoError(t, err)
			})
		}
		wg.Wait()
	}
	round()
	before := runtime.NumGoroutine()
	for range 5 {
		round()
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(10 * time.Second); runtime.NumGoroutine() > before+5; {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%d goroutines, were %d", runtime.NumGoroutine(), before)
		}
	}
}

// A client that sends more than it may is cut off.
func TestExecWindow(t *testing.T) {
	left := make(chan error, 1)
	f := execFake(func(ctx context.Context, _ driver.ExecRequest) (driver.ExitResult, error) {
		<-ctx.Done()
		left <- context.Cause(ctx)
		return driver.ExitResult{}, context.Cause(ctx)
	})
	c := dialFake(t, f, false)
	conn, err := net.Dial("unix", c.socket)
	require.NoError(t, err)
	defer conn.Close()
	in := bufio.NewReader(conn)
	require.NoError(t, c.upgrade(within(t), conn, in, "web", execRequest{Task: "web", Command: []string{"x"}, Stdin: true}))
	out := &frames{w: conn}
	require.NoError(t, out.write(200, []byte("a kind of the future")))
	for range window/chunk + 1 {
		require.NoError(t, out.write(frameStdin, make([]byte, chunk)))
	}
	require.ErrorContains(t, <-left, "more input")
}

func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	_ = (&frames{w: &b}).write(frameStdin, []byte("hello"))
	f.Add(b.Bytes())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		var again bytes.Buffer
		out := &frames{w: &again}
		var buf []byte
		for {
			kind, body, err := readFrame(in, buf)
			if err != nil {
				break
			}
			if err := out.write(kind, body); err != nil {
				t.Fatal(err)
			}
			buf = body
		}
		if !bytes.HasPrefix(data, again.Bytes()) {
			t.Errorf("%x became %x", data, again.Bytes())
		}
		box := newInbox(func(int) {})
		_ = receive(bufio.NewReader(bytes.NewReader(data)), box, make(chan driver.TerminalSize, 1))
		_ = box.Close()
	})
}

func TestStats(t *testing.T) {
	f := execFake(nil)
	f.allocs = append(f.allocs, finished(alloc("b1", "done", "g", 0), 0))
	f.samples = 3
	c := dialFake(t, f, false)
	var pids []int
	read := func(ref, task string, interval time.Duration, follow bool) (err error) {
		pids = nil
		for u, e := range c.Stats(within(t), ref, task, interval, follow) {
			if e != nil {
				err = e
				continue
			}
			require.Equal(t, "a1", u.AllocID)
			pids = append(pids, u.Pids)
		}
		return err
	}
	require.NoError(t, read("web", "", 2*time.Second, true))
	require.Equal(t, []int{0, 1, 2}, pids, "it ends with the tasks")
	require.Equal(t, []string{"stats a1 task= 2s"}, f.made())
	require.NoError(t, read("web", "web", 0, false))
	require.Equal(t, []int{1}, pids, "a look is the second sample")
	require.ErrorIs(t, read("nobody", "", 0, true), nodekeep.ErrNoAlloc)
	require.ErrorIs(t, read("web", "nix", 0, true), ErrNoTask)
	require.ErrorIs(t, read("done", "", 0, false), allocrunner.ErrTerminal)
	f.err = driver.ErrNotImplemented
	require.ErrorIs(t, read("web", "", 0, true), driver.ErrNotImplemented)
	require.Equal(t, []int{0, 1, 2}, pids)
}
