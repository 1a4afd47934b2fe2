// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver"
)

// input reads a file, and stops when it is closed, also in the middle of a Read
// that nothing comes for.
type input struct {
	f    *os.File
	stop *os.File // read end of a pipe; readable once closed
	end  *os.File
	once sync.Once
}

func openInput(f *os.File) (io.ReadCloser, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	return &input{f: f, stop: r, end: w}, nil
}

func (i *input) Read(p []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(i.f.Fd()), Events: unix.POLLIN}, {Fd: int32(i.stop.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("stdin: %w", err)
		case fds[1].Revents != 0:
			return 0, io.ErrClosedPipe
		case fds[0].Revents != 0:
			return i.f.Read(p)
		}
	}
}

// Close ends Reads. The read end stays open until the process ends: one may be
// looking at it.
func (i *input) Close() error {
	i.once.Do(func() { _ = i.end.Close() })
	return nil
}

// makeRaw has a terminal pass on each key as it is; what is none is left alone.
func makeRaw(f *os.File) (restore func(), err error) {
	fd := int(f.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}, nil // no terminal
	}
	raw := *was
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, nil
}

// followSize returns the size of a terminal and its later sizes, until end is
// called. What is no terminal has no size.
func followSize(ctx context.Context, f *os.File) (size driver.TerminalSize, later <-chan driver.TerminalSize, end func(), err error) {
	size, ok := sizeOf(f)
	if !ok {
		return size, nil, func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	changed, sizes, ended := make(chan os.Signal, 1), make(chan driver.TerminalSize), make(chan struct{})
	signal.Notify(changed, unix.SIGWINCH)
	go func() {
		defer close(ended)
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			now, ok := sizeOf(f)
			if !ok {
				continue
			}
			select {
			case sizes <- now:
			case <-ctx.Done():
				return
			}
		}
	}()
	return size, sizes, func() {
		signal.Stop(changed)
		cancel()
		<-ended
	}, nil
}

func sizeOf(f *os.File) (driver.TerminalSize, bool) {
	w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return driver.TerminalSize{}, false
	}
	return driver.TerminalSize{Rows: w.Row, Cols: w.Col}, true
}
