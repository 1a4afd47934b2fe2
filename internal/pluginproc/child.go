// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin/runner"
)

const processName = "process"

// maxLine is the longest line that is looked into.
const maxLine = 64 << 10

// child is a process that we started. A goroutine reaps it, another reads what it
// writes to stdout; both end with it.
type child struct {
	spec *Spec
	cmd  *exec.Cmd
	let  <-chan struct{} // closed: we no longer care
	out  *os.File        // our end of its stdout
	line *io.PipeReader  // its first line
	end  chan struct{}
	text string // how it ended, before end is closed
	work sync.WaitGroup
	once sync.Once
}

// runnerFunc makes what go-plugin starts, and notes it in c once it runs. When
// canceled says so, it does not start any more.
func runnerFunc(spec *Spec, let <-chan struct{}, c *atomic.Pointer[child], canceled func() error) func(hclog.Logger, *exec.Cmd, string) (runner.Runner, error) {
	return func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
		own := exec.Command(spec.Path, spec.Args...)
		own.Env = append(append(own.Env, spec.Env...), cmd.Env...)
		own.SysProcAttr = ownSession()
		return &starter{child: &child{spec: spec, cmd: own, let: let, end: make(chan struct{})}, made: c, canceled: canceled}, nil
	}
}

// starter is a child that tells when it was started.
type starter struct {
	*child
	made     *atomic.Pointer[child]
	canceled func() error
}

func (s *starter) Start(context.Context) error {
	err := s.canceled()
	if err == nil {
		err = s.start()
	}
	if err != nil {
		return err
	}
	s.made.Store(s.child)
	if s.canceled() != nil { // meanwhile: whoever canceled did not see it
		return s.kill()
	}
	return nil
}

// start runs the program with nothing of ours but a pipe for its stdout.
func (c *child) start() error {
	errs, err := os.OpenFile(filepath.Join(c.spec.Dir, stderrName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = errs.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.cmd.Stdout, c.cmd.Stderr = w, errs
	// It is there before the process is, so that Sweep takes the directory for ours.
	err = os.WriteFile(filepath.Join(c.spec.Dir, processName), nil, 0o600)
	if err == nil {
		err = c.cmd.Start()
	}
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return err
	}
	first, send := io.Pipe()
	c.out, c.line = r, first
	c.work.Go(func() { c.read(send) })
	go func() { // until the process ends, which Detach does not wait for
		err := c.cmd.Wait()
		c.text = "exit status 0"
		if err != nil {
			c.text = err.Error()
		}
		// A program of the plugin's own may hold the pipe open.
		_ = r.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		c.work.Wait()
		close(c.end)
	}()
	return c.note()
}

// note writes down who the process is.
func (c *child) note() error {
	start, boot, err := identify(c.pid())
	if errors.Is(err, ErrStale) || errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended already
	}
	if err == nil {
		var raw []byte
		if raw, err = json.Marshal(Record{Pid: c.pid(), Start: start, BootID: boot, Dir: c.spec.Dir}); err == nil {
			err = os.WriteFile(filepath.Join(c.spec.Dir, processName), raw, 0o600)
		}
	}
	if err != nil {
		return errors.Join(err, c.kill())
	}
	return nil
}

// read passes the first line on and logs the rest.
func (c *child) read(first *io.PipeWriter) {
	defer func() { _ = c.out.Close() }()
	in := bufio.NewReaderSize(c.out, maxLine)
	line, err := in.ReadSlice('\n')
	_, _ = first.Write(bytes.TrimRight(line, "\r\n"))
	if err == nil {
		_, _ = first.Write([]byte("\n"))
	}
	_ = first.CloseWithError(io.EOF)
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return
	}
	l := lines{log: c.spec.Log}
	for {
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			l.plain(string(bytes.TrimRight(line, "\r\n")))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (c *child) Stdout() io.ReadCloser { return c.line }

// Stderr is ours; go-plugin sees nothing.
func (c *child) Stderr() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }

// Diagnose tells what a program that did not shake hands said.
func (c *child) Diagnose(context.Context) string {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	how := "it still runs"
	select {
	case <-c.end:
		how = "it ended with " + c.text
	case <-t.C:
	}
	return fmt.Sprintf("%s; its last words: %q", how, tail(c.spec.Dir))
}

func (c *child) Name() string { return c.spec.Path }

func (c *child) pid() int { return c.cmd.Process.Pid }

// ID is the pid; empty before the start.
func (c *child) ID() string {
	if c.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(c.pid())
}

// Wait ends with the process, or when we no longer care.
func (c *child) Wait(ctx context.Context) error {
	select {
	case <-c.end:
	case <-c.let:
	case <-ctx.Done():
	}
	return nil
}

func (c *child) Kill(context.Context) error { return c.kill() }

func (c *child) kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("pluginproc: kill pid %d: %w", c.pid(), err)
	}
	return nil
}

func (c *child) done() <-chan struct{} { return c.end }
func (c *child) how() string           { return c.text }

// release gives up our end of stdout, so that its reader returns.
func (c *child) release() { c.once.Do(func() { _ = c.out.SetReadDeadline(time.Now()) }) }

func (c *child) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }
func (c *child) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }
