// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"os"
	"strconv"
	"syscall"
)

// checkOwner refuses a directory that another user made: what it holds could
// have us run or kill anything, and what we put there would be his.
func checkOwner(dir string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return failed("uid "+itoa(int(st.Uid))+" owns "+dir+", this is uid "+itoa(os.Geteuid()), ErrForeignScope)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return &os.PathError{Op: "use", Path: dir, Err: syscall.ENOTDIR}
	}
	return nil
}

// withSockaddr names dir/sock through an open directory, so that a path longer
// than the 108 bytes of sun_path works too.
func withSockaddr(dir string, fn func(syscall.Sockaddr) error) error {
	d, err := syscall.Open(dir, syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = syscall.Close(d) }()
	return fn(&syscall.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(d) + "/sock"})
}

func newSocket() (int, error) {
	return syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
}

// listen binds dir/sock, which only its owner may connect to.
func listen(dir string) (fd int, err error) {
	_ = syscall.Unlink(dir + "/sock")
	if fd, err = newSocket(); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = syscall.Fchmod(fd, 0o600) // before bind it is the mode of the file to be
	if err == nil {
		err = withSockaddr(dir, func(sa syscall.Sockaddr) error { return syscall.Bind(fd, sa) })
	}
	if err == nil {
		err = syscall.Listen(fd, 512)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, failed("supervisor: listen in "+dir, err)
	}
	return fd, nil
}

// dial connects while blocking (it only waits when the backlog is full, and not
// for ever) and then hands the descriptor to the runtime's poller. A listener of
// another user is refused.
func dial(dir string) (*os.File, error) {
	fd, err := newSocket()
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	bound := syscall.NsecToTimeval(int64(silenceBound))
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &bound)
	err = withSockaddr(dir, func(sa syscall.Sockaddr) error { return syscall.Connect(fd, sa) })
	if err == nil {
		var c *syscall.Ucred
		if c, err = syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil && int(c.Uid) != os.Geteuid() {
			err = failed("uid "+itoa(int(c.Uid))+" listens in "+dir, ErrForeignScope)
		}
	}
	if err == nil {
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, failed("supervisor: connect", err)
	}
	return os.NewFile(uintptr(fd), "sock"), nil
}

// accept waits on the runtime's poller and refuses peers of another user.
func accept(l *os.File) (*os.File, error) {
	rc, err := l.SyscallConn()
	if err != nil {
		return nil, err
	}
	for {
		nfd, aerr := -1, error(nil)
		err = rc.Read(func(fd uintptr) bool {
			for {
				nfd, _, aerr = syscall.Accept4(int(fd), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
				if aerr != syscall.EINTR && aerr != syscall.ECONNABORTED {
					return aerr != syscall.EAGAIN
				}
			}
		})
		if err = errors.Join(err, aerr); err != nil {
			return nil, err
		}
		c, cerr := syscall.GetsockoptUcred(nfd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		if cerr == nil && (c.Uid == 0 || int(c.Uid) == os.Geteuid()) {
			return os.NewFile(uintptr(nfd), "conn"), nil
		}
		_ = syscall.Close(nfd)
	}
}
