// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/nodekeep/nodekeep/internal/creator"
)

// A creator that isolates nothing: a state directory, cgroups, and a process that
// waits in the FIFO. Its spec is five lines, the last one open-ended.
type fakeSpec struct {
	dir    string // of the state; the FIFO is in it
	groups string // separated by blanks
	how    string // "", fail, die, die late, hang
	path   string // of the program; "" is /bin/sh
	script string
}

func (f fakeSpec) encode() []byte {
	return []byte(strings.Join([]string{f.dir, f.groups, f.how, f.path, f.script}, "\n"))
}

func fakeCreator() int {
	if os.Args[1] == creator.Init {
		return fakeInit()
	}
	for fd := creator.SocketFD; fd <= creator.ExecFD; fd++ { // as libcontainer does
		syscall.CloseOnExec(fd)
	}
	sock := os.NewFile(creator.SocketFD, "socket")
	b, err := creator.ReadSpec(sock)
	if err != nil {
		return 1
	}
	l := strings.SplitN(string(b), "\n", 5)
	f := fakeSpec{l[0], l[1], l[2], l[3], l[4]}
	switch f.how {
	case "fail":
		_ = creator.Fail(sock, &os.PathError{Op: "fake", Path: "config", Err: syscall.ENOTDIR})
		return 1
	case "die":
		return 3
	}
	pid, err := f.make()
	if err != nil {
		_ = creator.Fail(sock, err)
		return 1
	}
	switch f.how {
	case "die late":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		select {}
	}
	if creator.Done(sock, pid) != nil {
		return 1
	}
	return 0
}

func (f fakeSpec) make() (int, error) {
	if f.path == "" {
		f.path = "/bin/sh"
	}
	argv, exe, files := []string{creator.Argv0, creator.Init, f.dir + "/" + creator.FIFO, f.path, f.script}, "/proc/self/exe", []uintptr{0, 1, 2, 5}
	if os.Args[1] == creator.Exec {
		argv, exe, files = []string{"sh", "-c", f.script}, "/bin/sh", files[:3]
	} else {
		if err := os.Mkdir(f.dir, 0o700); err != nil {
			return 0, err
		}
		if err := syscall.Mkfifo(f.dir+"/"+creator.FIFO, 0o600); err != nil {
			return 0, err
		}
	}
	groups := strings.Fields(f.groups)
	for _, g := range groups {
		if err := os.MkdirAll(g, 0o755); err != nil {
			return 0, err
		}
	}
	if os.Args[1] == creator.Exec { // or what it forks at once would be outside
		for _, g := range groups {
			if !strings.Contains(g, "/cpuset/") {
				if err := os.WriteFile(g+"/cgroup.procs", []byte("0"), 0); err != nil {
					return 0, err
				}
			}
		}
		groups = nil
	}
	// What could not join its cgroup does not live.
	pid, err := syscall.ForkExec(exe, argv, &syscall.ProcAttr{
		Env: append(os.Environ(), "PATH=/bin:/usr/bin"), Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		if !strings.Contains(g, "/cpuset/") {
			err = errors.Join(err, os.WriteFile(g+"/cgroup.procs", []byte(itoa(pid)), 0))
		}
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return pid, err
}

func fakeInit() int {
	f, err := os.OpenFile(os.Args[2], os.O_WRONLY, 0)
	if err != nil {
		return 1
	}
	_, _ = f.Write([]byte("0"))
	syscall.CloseOnExec(3)
	err = syscall.Exec(os.Args[3], []string{"sh", "-c", os.Args[4]}, []string{"PATH=/bin:/usr/bin"})
	e := byte(err.(syscall.Errno))
	_, _ = syscall.Write(3, []byte{e, 0, 0, 0})
	return 127
}
