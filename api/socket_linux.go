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
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what fits into the kernel's sockaddr_un with its final zero.
const maxSocketPath = 107

// shorten gives a name for path that fits into a socket address: through the
// descriptor of its directory when it is too long. done releases it.
func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, fmt.Errorf("api: %w", err)
	}
	short = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	if len(short) > maxSocketPath {
		_ = dir.Close()
		return "", nil, fmt.Errorf("api: the name of the socket %s is too long", path)
	}
	return short, func() { _ = dir.Close() }, nil
}

// restrict makes the socket 0600 before it has a name: there is no moment in
// which another user could connect.
func restrict(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
		return cerr
	}
	return err
}

func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// keep makes the socket again when somebody has removed it, until stop is called,
// which waits. The kernel tells which names come and go in the directory; what a
// stranger put in the socket's place stays until it goes. A user has few such
// watches: where there is none left, the socket works without.
func (l *listener) keep(ctx context.Context) (stop func()) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return func() {}
	}
	events := os.NewFile(uintptr(fd), "inotify")
	const names = unix.IN_DELETE | unix.IN_CREATE | unix.IN_MOVE
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(l.path), names|unix.IN_ONLYDIR); err != nil {
		_ = events.Close()
		return func() {}
	}
	ctx = context.WithoutCancel(ctx) // it listens until Close
	done := make(chan struct{})
	go func() {
		defer close(done)
		const first, limit = 100 * time.Millisecond, 30 * time.Second
		delay := first      // between tries where the disk takes no socket
		var what [4096]byte // of no interest
		for {
			var again time.Time
			if _, err := os.Lstat(l.path); errors.Is(err, fs.ErrNotExist) {
				if l.bind(ctx) == nil {
					delay = first
				} else {
					again, delay = time.Now().Add(delay), min(2*delay, limit)
				}
			}
			if events.SetReadDeadline(again) != nil {
				return
			}
			if _, err := events.Read(what[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
		}
	}()
	return func() {
		_ = events.Close()
		<-done
	}
}

// peer says which process is at the other end, for the log.
func peer(c net.Conn) string {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return "unknown"
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return "unknown"
	}
	who := "unknown"
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			who = fmt.Sprintf("uid %d pid %d", cred.Uid, cred.Pid)
		}
	})
	return who
}
