// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownSession keeps a terminal's signals away from plugins.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// identify tells what makes a process one and no other.
func identify(pid int) (start uint64, boot string, err error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0, "", fmt.Errorf("pluginproc: boot id: %w", err)
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, "", fmt.Errorf("pluginproc: process %d: %w", pid, err)
	}
	// The name may hold anything; what follows its last parenthesis is regular:
	// the state is the third field of all, the start the 22nd.
	_, rest, _ := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
	fields := strings.Fields(string(rest))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("pluginproc: process %d: cannot read its start in %q", pid, stat)
	}
	if start, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return 0, "", fmt.Errorf("pluginproc: process %d: %w", pid, err)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, "", fmt.Errorf("%w: pid %d has ended", ErrStale, pid)
	}
	return start, strings.TrimSpace(string(b)), nil
}

// stranger is a process that we did not start.
type stranger struct {
	rec  Record
	fd   *os.File
	let  <-chan struct{}
	end  chan struct{}
	work sync.WaitGroup
	once sync.Once
}

// find returns the process of a record if it is still there and the same.
func find(rec Record, let <-chan struct{}) (*stranger, error) {
	if rec.Pid <= 0 {
		return nil, fmt.Errorf("%w: the record has no process", ErrStale)
	}
	fd, err := unix.PidfdOpen(rec.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w: pid %d: %w", ErrStale, rec.Pid, err)
	}
	// Whatever has the number now is what the descriptor is of.
	start, boot, err := identify(rec.Pid)
	if err == nil && (start != rec.Start || boot != rec.BootID) {
		err = fmt.Errorf("%w: pid %d is another process", ErrStale, rec.Pid)
	}
	if err != nil {
		_ = unix.Close(fd)
		if !errors.Is(err, ErrStale) {
			err = fmt.Errorf("%w: %w", ErrStale, err)
		}
		return nil, err
	}
	s := &stranger{rec: rec, fd: os.NewFile(uintptr(fd), "pidfd"), let: let, end: make(chan struct{})}
	s.work.Go(s.watch)
	return s, nil
}

// watch parks until the process has ended: a pidfd is readable then.
func (s *stranger) watch() {
	raw, err := s.fd.SyscallConn()
	if err != nil {
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0 && p[0].Revents != 0
	})
	if err == nil {
		close(s.end)
	}
}

func (s *stranger) Wait(ctx context.Context) error {
	select {
	case <-s.end:
	case <-s.let:
	case <-ctx.Done():
	}
	return nil
}

func (s *stranger) Kill(context.Context) error { return s.kill() }

func (s *stranger) kill() error {
	raw, err := s.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if errors.Is(err, os.ErrClosed) || errors.Is(sent, unix.ESRCH) {
		return nil
	}
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("pluginproc: kill pid %d: %w", s.rec.Pid, err)
	}
	return nil
}

func (s *stranger) ID() string            { return strconv.Itoa(s.rec.Pid) }
func (s *stranger) done() <-chan struct{} { return s.end }
func (s *stranger) how() string           { return "unknown: an earlier agent started it" }

func (s *stranger) release() {
	s.once.Do(func() {
		_ = s.fd.Close()
		s.work.Wait()
	})
}

func (s *stranger) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}

func (s *stranger) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// free gives back the space of what was read. The file keeps its length, so a
// plugin that appends meanwhile loses nothing.
func free(f *os.File, upTo int64) {
	// Where the file system cannot, the file grows.
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, upTo)
}
