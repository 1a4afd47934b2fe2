// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"
)

// ErrInUse says that a process answers on the socket already.
var ErrInUse = errors.New("api: another agent answers on this socket")

// dialTimeout bounds the question whether somebody answers on a socket. A
// living agent accepts at once, also one that is busy: the kernel does it.
const dialTimeout = 2 * time.Second

// Listen opens the agent's unix socket, mode 0600 from its first moment on. A
// socket that is left of an agent that died is replaced; one on which an agent
// answers is ErrInUse and stays. Paths longer than the kernel's 108 bytes work on
// Linux, and there a socket that somebody removes is made again. Closing the
// listener removes the socket.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	l := &listener{path: path}
	if err := l.bind(ctx); err != nil {
		return nil, err
	}
	l.stop = l.keep(ctx)
	return l, nil
}

// bind makes the socket and accepts on it from now on, instead of on the one
// before, whose name is gone.
func (l *listener) bind(ctx context.Context) error {
	short, done, err := shorten(l.path)
	if err != nil {
		return err
	}
	cfg := net.ListenConfig{Control: restrict}
	ln, err := cfg.Listen(ctx, "unix", short)
	done()
	if err != nil {
		return fmt.Errorf("api: listen on %s: %w", l.path, cause(err))
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // its name may be another's by then: see Close
	own, err := os.Lstat(l.path)
	if err == nil && own.Mode().Type() != fs.ModeSocket {
		err = errors.New("somebody put something else in its place")
	}
	if err == nil && own.Mode().Perm() != 0o600 {
		err = os.Chmod(l.path, 0o600)
	}
	if err != nil {
		_ = ln.Close()
		return fmt.Errorf("api: listen on %s: %w", l.path, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil {
		_ = l.ln.Close() // an Accept under way goes on with the new one
	}
	l.ln, l.own = ln, own
	return nil
}

// removeStale removes a socket on which nobody answers, and nothing else.
func removeStale(ctx context.Context, path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("api: %s is there and not a socket: move it away", path)
	}
	conn, err := dial(ctx, path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	case isRefused(err):
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("api: the socket of an agent that has gone cannot be removed: %w", err)
		}
		return nil
	}
	return fmt.Errorf("api: cannot tell whether an agent answers on %s: %w", path, cause(err))
}

// dial connects to the socket at path, whatever its length.
func dial(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	d := net.Dialer{Timeout: dialTimeout}
	return d.DialContext(ctx, "unix", short)
}

// listener removes its socket on Close, but never the one of a successor.
type listener struct {
	path string
	stop func() // ends what keeps the socket there, and waits

	mu  sync.Mutex
	ln  net.Listener
	own os.FileInfo
}

func (l *listener) current() net.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ln
}

func (l *listener) Addr() net.Addr { return l.current().Addr() }

func (l *listener) Accept() (net.Conn, error) {
	for {
		ln := l.current()
		conn, err := ln.Accept()
		if err == nil || ln == l.current() {
			return conn, err
		}
	}
}

func (l *listener) Close() error {
	l.stop()
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(l.own, now) {
		_ = os.Remove(l.path)
	}
	return l.ln.Close()
}

// cause strips the short name of a socket from an error of net.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
