// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cpu counts the processor time of this program and all it started, in ns: the
// cpuacct group it moved itself into, else what the whole machine was busy.
type cpu struct{ group string }

func newCPU() *cpu {
	dir := fmt.Sprintf("/sys/fs/cgroup/cpuacct/nodekeep-bench-%d", os.Getpid())
	if os.Mkdir(dir, 0o755) != nil {
		return &cpu{}
	}
	if os.WriteFile(dir+"/cgroup.procs", []byte("0"), 0) != nil {
		_ = os.Remove(dir)
		return &cpu{}
	}
	return &cpu{dir}
}

func (c *cpu) exact() bool { return c.group != "" }

func (c *cpu) now() int64 {
	if c.group != "" {
		b, _ := os.ReadFile(c.group + "/cpuacct.usage")
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return n
	}
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line)[1:] {
		if i != 3 && i != 4 && i < 8 { // all but idle and iowait
			n, _ := strconv.ParseInt(f, 10, 64)
			busy += n
		}
	}
	return busy * int64(10*time.Millisecond)
}

func (c *cpu) close() {
	if c.group == "" {
		return
	}
	_ = os.WriteFile("/sys/fs/cgroup/cpuacct/cgroup.procs", []byte("0"), 0)
	_ = os.Remove(c.group)
}

// supervisors returns the pids of the supervisors below dir.
func supervisors(dir string) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		b, _ := os.ReadFile(name)
		if bytes.HasPrefix(b, []byte("nodekeep-supervisor\x00")) && bytes.Contains(b, []byte(dir)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// smaps sums one field of smaps_rollup over processes, in bytes.
func smaps(field string, pids ...int) (sum int64) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == field+":" {
				n, _ := strconv.ParseInt(f[1], 10, 64)
				sum += n << 10
			}
		}
	}
	return sum
}

// activity is what processes did so far: context switches of all threads and
// time on a processor.
func activity(pids ...int) (switches, ns int64) {
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, dir := range tasks {
			b, _ := os.ReadFile(dir + "/status")
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, "ctxt_switches") {
					n, _ := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
					switches += n
				}
			}
			b, _ = os.ReadFile(dir + "/schedstat")
			if f := strings.Fields(string(b)); len(f) > 0 {
				n, _ := strconv.ParseInt(f[0], 10, 64)
				ns += n
			}
		}
	}
	return switches, ns
}

// written returns the bytes processes sent to the disk.
func written(pids ...int) (sum int64) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				sum += n
			}
		}
	}
	return sum
}

// execRate starts and reaps a program n times on w workers: the limit behind
// every start.
func execRate(w, n int, path string, args []string, env []string) float64 {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0
	}
	defer null.Close()
	fds := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	start := time.Now()
	var wg sync.WaitGroup
	for range w {
		wg.Go(func() {
			for range n / w {
				pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{Env: env, Files: fds})
				if err == nil {
					_, _ = syscall.Wait4(pid, nil, 0, nil)
				}
			}
		})
	}
	wg.Wait()
	return float64(n) / time.Since(start).Seconds()
}

// bareCopy is the limit of a log: the same writer, a FIFO, one reader and a file.
func bareCopy(dir string, size int, total int64) (float64, error) {
	fifo := filepath.Join(dir, "bare.fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		return 0, err
	}
	defer os.Remove(fifo)
	out, err := os.Create(filepath.Join(dir, "bare.out"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	cmd := exec.Command(self, writerArgs(size, total)...)
	keep, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer keep.Close()
	in, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if cmd.Stdout, err = os.OpenFile(fifo, os.O_WRONLY, 0); err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for n := int64(0); n < total; {
		k, err := in.Read(buf)
		if err != nil {
			return 0, err
		}
		if _, err := out.Write(buf[:k]); err != nil {
			return 0, err
		}
		n += int64(k)
	}
	if err := cmd.Wait(); err != nil {
		return 0, err
	}
	return float64(total) / time.Since(start).Seconds(), nil
}

func writerArgs(size int, total int64) []string {
	return []string{"-role", "writer", "-size", strconv.Itoa(size), "-total", strconv.FormatInt(total, 10)}
}

// writer writes lines of size bytes to stdout, one write each.
func writer(size int, total int64) error {
	line := append(bytes.Repeat([]byte{'x'}, size-1), '\n')
	for n := int64(0); n < total; n += int64(size) {
		if _, err := os.Stdout.Write(line); err != nil {
			return err
		}
	}
	return nil
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// lines answers a child's lines one at a time.
type lines struct{ s *bufio.Scanner }

func (l lines) next() (string, error) {
	if l.s.Scan() {
		return l.s.Text(), nil
	}
	if err := l.s.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("bench: the agent ended")
}

// unmount takes down what an agent that was killed left mounted below dir.
func unmount(dir string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}
