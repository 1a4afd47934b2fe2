// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// pace gathers what a busy task writes: fewer and larger pieces cost both sides
// less. A task that writes now and then never meets it.
type pace struct {
	asked bool // for a larger FIFO
	small int  // pieces below this are worth waiting for more
}

const (
	busyPiece = 4096        // from here on a larger FIFO pays
	halfFIFO  = bufSize / 2 // what is gathered in a larger one
	largeFIFO = 256 << 10   // room to write on while the pump waits
	moment    = 50 * time.Microsecond
)

// wait is called between pieces that follow each other at once; n is the last.
func (p *pace) wait(fd, n int) {
	if n >= busyPiece && !p.asked {
		p.asked = true
		if enlarge(fd, largeFIFO) {
			p.small = halfFIFO
		}
	}
	if n < max(p.small, busyPiece) {
		// In the kernel: the runtime's timers may take a millisecond.
		ts := syscall.NsecToTimespec(int64(moment))
		_ = syscall.Nanosleep(&ts, nil)
	}
}

func (p *Pump) runFile(f *os.File) {
	var pc pace
	rc, err := f.SyscallConn()
	for done := false; err == nil && !done; {
		err = rc.Read(func(fd uintptr) bool {
			done = p.copy(int(fd), &pc)
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
// has ended (true).
func (p *Pump) copy(fd int, pc *pace) (done bool) {
	for busy := false; ; busy = true {
		if p.asked.Load() {
			p.take(pending(fd))
		}
		n, err := p.move(fd)
		switch {
		case n > 0:
			p.read += int64(n)
			p.reached(p.read)
			if p.last && len(p.marks) == 0 {
				return true
			}
			if busy && len(p.marks) == 0 {
				pc.wait(fd, n)
			}
		case err == syscall.EINTR:
		case err != nil && err != syscall.EAGAIN:
			p.fail = err
			return true
		default:
			p.reached(1<<63 - 1) // they were set before this look, which found nothing
			return p.last
		}
	}
}

// readWrite moves one piece through memory.
func (p *Pump) readWrite(fd int) (int, error) {
	buf := buffers.Get().(*[bufSize]byte)
	defer buffers.Put(buf)
	n, err := syscall.Read(fd, buf[:])
	if n > 0 {
		p.write(buf[:n])
	}
	return n, err
}
