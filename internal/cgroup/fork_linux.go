// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Target is an open cgroup to fork into. The zero Target forks into no cgroup
// but the caller's.
type Target struct {
	set  bool
	v2   bool
	fd   int // v2: the directory; v1: its tasks file
	path string
}

// OpenTarget opens a cgroup to fork into, making it if it is not there. One that
// holds processes is killed and made anew. "" is the zero Target.
func OpenTarget(path string) (t Target, err error) {
	if path == "" {
		return t, nil
	}
	if st, serr := os.Stat(path); serr != nil || !st.IsDir() || len(children(path)) > 0 || len(procsOf(path)) > 0 {
		if err = Make(path); err != nil {
			return t, err
		}
	}
	t, err = JoinTarget(path)
	if err == nil && !t.v2 {
		freeze(path, false) // whoever died while killing it may have left it frozen
	}
	return t, err
}

// JoinTarget opens a cgroup to fork into beside what runs in it. It must be
// there. "" is the zero Target.
func JoinTarget(path string) (t Target, err error) {
	if path == "" {
		return t, nil
	}
	if t.fd, err = syscall.Open(path+"/tasks", syscall.O_WRONLY|syscall.O_CLOEXEC, 0); err != nil {
		t.v2 = true
		t.fd, err = syscall.Open(path, syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	}
	t.set, t.path = err == nil, path
	return t, wrap("open", path, err)
}

func wrap(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// homeTasks finds the tasks file of this thread's cgroup in the v1 hierarchy of path:
// up from path to the top of the mount, and down again by what the kernel says
// of us. A mount that shows only a part of the hierarchy hides the head of that.
func homeTasks(path string) string {
	top := path
	for {
		up := top[:max(0, strings.LastIndexByte(top, '/'))]
		if _, err := os.Stat(up + "/cgroup.procs"); up == "" || err != nil {
			break
		}
		top = up
	}
	b, _ := os.ReadFile("/proc/thread-self/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !hasWord(f[1], "freezer") {
			continue
		}
		for own := f[2]; own != ""; {
			if _, err := os.Stat(top + own + "/tasks"); err == nil {
				return top + own + "/tasks"
			}
			i := strings.IndexByte(own[1:], '/')
			if i < 0 {
				break
			}
			own = own[1+i:]
		}
	}
	return top + "/tasks"
}

// Close closes the target; what was forked into it stays.
func (t Target) Close() {
	if t.set {
		_ = syscall.Close(t.fd)
	}
}

// ForkExec is syscall.ForkExec into the cgroup, with no moment outside it: v2
// through CLONE_INTO_CGROUP; v1 by moving this one thread in and out again,
// which the kernel does without its global lock when a thread moves itself.
func (t Target) ForkExec(path string, argv []string, attr *syscall.ProcAttr) (int, error) {
	switch {
	case !t.set:
	case t.v2:
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, t.fd
	default:
		// Where this thread is at home is asked on it and now: any other thread
		// may be in a task's cgroup at this moment, for a fork of its own.
		runtime.LockOSThread()
		home, err := syscall.Open(homeTasks(t.path), syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			return 0, err
		}
		defer func() { _ = syscall.Close(home) }()
		if _, err := syscall.Write(t.fd, []byte("0")); err != nil {
			runtime.UnlockOSThread()
			return 0, err
		}
		defer func() {
			if _, err := syscall.Write(home, []byte("0")); err == nil {
				runtime.UnlockOSThread() // else the thread ends with this goroutine
			}
		}()
	}
	return syscall.ForkExec(path, argv, attr)
}
