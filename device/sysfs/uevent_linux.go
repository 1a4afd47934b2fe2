// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	kernelGroup = 1       // of NETLINK_KOBJECT_UEVENT: the kernel's own words
	maxUevent   = 8 << 10 // the kernel's limit is 2 KiB of variables and a path
	backlog     = 1 << 20 // what may wait in the kernel until it forgets some
)

// uevents are the kernel's messages about devices, from a netlink socket.
type uevents struct {
	f   *os.File
	buf [maxUevent]byte
}

// listen opens the socket. Not everybody can: a seccomp filter may forbid it, and
// in a user namespace of its own, or below another root than /sys, a process hears
// nothing.
func listen(cfg *Config) (source, error) {
	if filepath.Clean(cfg.Sys) != "/sys" {
		return nil, fmt.Errorf("%s is not /sys", cfg.Sys)
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	if f := strings.Fields(string(ids)); len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295" {
		return nil, errors.New("this is a user namespace, which hears nothing of devices")
	}
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	// Only root may have more than the system's default; less is no error.
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, backlog)
	return &uevents{f: os.NewFile(uintptr(fd), "uevents")}, nil
}

// next returns the next message. When the kernel had to drop some, that is a change
// of everything.
func (u *uevents) next() (change, error) {
	n, err := u.f.Read(u.buf[:])
	switch {
	case errors.Is(err, syscall.ENOBUFS):
		return change{}, nil
	case err != nil:
		return change{}, err
	}
	return parse(u.buf[:n]), nil
}

func (u *uevents) Close() error { return u.f.Close() }
