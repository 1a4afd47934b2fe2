// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// removeBound is how long Remove waits for killed processes to be gone: one
// that gives back a lot of memory takes a while, one in a dead device for ever.
const removeBound = 10 * time.Second

// Make makes the directory anew, and its parents.
func Make(path string) error {
	err := syscall.Mkdir(path, 0o755)
	if err == syscall.EEXIST {
		if err := Remove(path); err != nil {
			return err
		}
		err = syscall.Mkdir(path, 0o755)
	}
	if err == syscall.ENOENT {
		return os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

// Kill sends SIGKILL to everything in path and below, also if it is frozen. It
// does not wait for the end. A path that is not there is no error.
func Kill(path string) {
	if path != "" && write(path+"/cgroup.kill", "1") != nil {
		killListed(path)
	}
}

// killListed is for v1 and for kernels before 5.14: frozen, nothing can fork
// while it is listed, and no pid of the list can pass to a stranger.
func killListed(path string) {
	freeze(path, true)
	for _, dir := range below(path) {
		for _, pid := range procsOf(dir) {
			if pid > 1 && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	// A task may have frozen a cgroup of its own, and what is frozen in v1 dies
	// only once thawed.
	for _, dir := range below(path) {
		freeze(dir, false)
	}
}

func freeze(path string, on bool) {
	v1, v2 := "THAWED", "0"
	if on {
		v1, v2 = "FROZEN", "1"
	}
	if write(path+"/freezer.state", v1) != nil {
		_ = write(path+"/cgroup.freeze", v2)
	}
}

// Remove kills everything in path and below and removes it, what the task made
// inside first. It waits for killed processes, ten seconds at most, and then
// says who is left. A path that is not there is no error.
func Remove(path string) error {
	if path == "" {
		return nil
	}
	end := time.Now().Add(removeBound)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := removeTree(path)
		if err == nil {
			return nil
		}
		if err != syscall.EBUSY && err != syscall.ENOTEMPTY {
			return &fs.PathError{Op: "rmdir", Path: path, Err: err}
		}
		if time.Now().After(end) {
			return &fs.PathError{Op: "rmdir", Path: path, Err: errors.New("processes do not die: " + pidList(Procs(path)))}
		}
		Kill(path)
		time.Sleep(pause)
	}
}

// removeTree is one try, children first.
func removeTree(path string) error {
	if err := rmdir(path); err == nil {
		return nil
	} else if err != syscall.EBUSY && err != syscall.ENOTEMPTY {
		return err
	}
	for _, name := range children(path) {
		_ = removeTree(path + "/" + name)
	}
	return rmdir(path)
}

// rmdir counts what is gone as removed.
func rmdir(path string) error {
	err := syscall.Rmdir(path)
	if err == syscall.ENOENT || err == syscall.ENODEV {
		return nil
	}
	return err
}

// Procs returns the pids in path and below, sorted; none if it is not there.
func Procs(path string) []int {
	var l []int
	for _, dir := range below(path) {
		l = append(l, procsOf(dir)...)
	}
	slices.Sort(l)
	return l
}

func procsOf(dir string) (l []int) {
	b, _ := os.ReadFile(dir + "/cgroup.procs")
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			l = append(l, pid)
		}
	}
	return l
}

// OOMKills returns how many processes of the cgroups, one task's, the kernel killed
// for want of memory. ok is false where no controller counts for them. A cgroup of
// v1 does not count for those that the task made below it.
func OOMKills(paths ...string) (n int, ok bool) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		b, err := os.ReadFile(path + "/memory.events")
		if err != nil {
			b, err = os.ReadFile(path + "/memory.oom_control")
		}
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
				if k, err := strconv.Atoi(v); err == nil {
					n, ok = n+k, true
				}
			}
		}
	}
	return n, ok
}

// below returns path and all directories under it.
func below(path string) []string {
	l := []string{path}
	for _, name := range children(path) {
		l = append(l, below(path+"/"+name)...)
	}
	return l
}

func children(path string) (l []string) {
	des, _ := os.ReadDir(path)
	for _, e := range des {
		if e.IsDir() {
			l = append(l, e.Name())
		}
	}
	return l
}

func pidList(pids []int) string {
	var b []byte
	for i, p := range pids {
		if i == 20 {
			return string(b) + " …"
		}
		b = strconv.AppendInt(append(b, ' '), int64(p), 10)
	}
	return string(b)
}

// write writes to a control file, which is never made.
func write(path, val string) error {
	fd, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = syscall.Write(fd, []byte(val))
	_ = syscall.Close(fd)
	return err
}

func itoa(n int) string { return strconv.Itoa(n) }
