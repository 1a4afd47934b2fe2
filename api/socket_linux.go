// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

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
