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
// Linux. Closing the listener removes the socket.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	cfg := net.ListenConfig{Control: restrict}
	ln, err := cfg.Listen(ctx, "unix", short)
	done()
	if err != nil {
		return nil, fmt.Errorf("api: listen on %s: %w", path, cause(err))
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // its name may be another's by then: see Close
	l := &listener{Listener: ln, path: path}
	if l.own, err = os.Lstat(path); err == nil && l.own.Mode().Perm() != 0o600 {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("api: listen on %s: %w", path, err)
	}
	return l, nil
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
		return os.Remove(path)
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
	net.Listener
	path string
	own  os.FileInfo
}

func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && l.own != nil && os.SameFile(l.own, now) {
		_ = os.Remove(l.path)
	}
	return l.Listener.Close()
}

// cause strips the short name of a socket from an error of net.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
