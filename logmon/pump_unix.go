// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux || darwin

package logmon

import (
	"errors"
	"os"
	"syscall"
	"time"
)

func (p *Pump) runFile(f *os.File) {
	rc, err := f.SyscallConn()
	for done := false; err == nil && !done; {
		err = rc.Read(func(fd uintptr) bool {
			done = p.copy(int(fd))
			return done
		})
		if errors.Is(err, os.ErrDeadlineExceeded) { // woken: set back first, then look
			err = f.SetReadDeadline(time.Time{})
		}
	}
	if p.fail == nil {
		p.fail = err
	}
}

// copy moves bytes until the FIFO is empty (false: wait for more) or the pump
// has ended (true). What was read is gathered until the buffer is well filled
// or the FIFO empty, so a task of many small writes costs few large ones; after
// each write the FIFO is looked at once more before the pump waits.
func (p *Pump) copy(fd int) (done bool) {
	buf := buffers.Get().(*[bufSize]byte)
	defer buffers.Put(buf)
	for n := 0; ; {
		if p.asked.Load() {
			p.take(pending(fd))
		}
		m, err := syscall.Read(fd, buf[n:])
		if err == syscall.EINTR {
			continue
		}
		if m > 0 {
			n += m
			p.read += int64(m)
			if len(p.marks) == 0 && bufSize-n >= minRoom {
				continue
			}
		}
		if n > 0 {
			p.write(buf[:n])
			n = 0
			p.reached(p.read)
			if p.last && len(p.marks) == 0 {
				return true
			}
			continue
		}
		if err != nil && err != syscall.EAGAIN {
			p.fail = err
			return true
		}
		p.reached(1<<63 - 1) // they were set before this read, which found nothing
		return p.last
	}
}
