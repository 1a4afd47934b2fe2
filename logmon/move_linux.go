// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"syscall"
	"unsafe"
)

const spliceFlags = 1 | 2 // SPLICE_F_MOVE, SPLICE_F_NONBLOCK

// errPlain says that bytes must go through memory: the disk fails, or the file
// system cannot take them otherwise.
var errPlain = errors.New("logmon: through memory")

// move moves one piece from the FIFO to the file inside the kernel, so that a
// collector that is killed holds no byte: each is in the FIFO or on file.
func (p *Pump) move(fd int) (int, error) {
	n, err := p.w.splice(fd)
	if err == errPlain {
		return p.readWrite(fd)
	}
	return n, err
}

// splice moves what is in the FIFO, but not beyond the file's end. EAGAIN, or 0
// without an error, is an empty FIFO.
func (r *Rotator) splice(fd int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.plain || r.closed || r.lost > 0 {
		return 0, errPlain
	}
	for {
		if r.out == nil {
			if pending(fd) == 0 {
				return 0, nil // a file is made at the first byte
			}
			if r.open() != nil || r.soft != nil {
				return 0, errPlain // Write reports it
			}
		}
		size := r.end()
		var room int
		// As far as it does not matter where lines end …
		if free := r.cfg.MaxSize - size - min(lineWindow, r.cfg.MaxSize/4); free > 0 {
			room = int(free)
		} else { // … and then as far as they allow.
			b := buffers.Get().(*[bufSize]byte)
			n, err := peek(fd, b[:])
			room = split(b[:n], size, r.cfg.MaxSize, r.bol)
			buffers.Put(b)
			if n == 0 {
				return 0, err
			}
		}
		if room == 0 {
			r.shut()
			r.next = true
			continue
		}
		n, err := syscall.Splice(fd, nil, int(r.out.Fd()), nil, room, spliceFlags)
		r.wrote(max(0, int(n)))
		if n > 0 || err == nil || err == syscall.EAGAIN || err == syscall.EINTR {
			return max(0, int(n)), err
		}
		r.plain = err == syscall.EINVAL
		r.shut()
		return 0, errPlain
	}
}

// peek copies the first bytes of a FIFO without taking them; 0 with or without
// EAGAIN is an empty one.
func peek(fd int, b []byte) (int, error) {
	var tmp [2]int
	if syscall.Pipe2(tmp[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK) != nil {
		return 0, errPlain
	}
	defer func() {
		_ = syscall.Close(tmp[0])
		_ = syscall.Close(tmp[1])
	}()
	n, err := syscall.Tee(fd, tmp[1], len(b), spliceFlags)
	switch {
	case n > 0:
		return syscall.Read(tmp[0], b[:n])
	case err == nil || err == syscall.EAGAIN || err == syscall.EINTR:
		return 0, err
	}
	return 0, errPlain
}

// enlarge gives a FIFO more room, as root only: what others have is limited per
// user, and then their next pipes become tiny.
func enlarge(fd, size int) bool {
	const fSetPipeSize = 1031
	if syscall.Geteuid() != 0 {
		return false
	}
	_, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), fSetPipeSize, uintptr(size))
	return e == 0
}

// pending returns how many bytes a FIFO holds. Its capacity would not do: a
// task may change it.
func pending(fd int) int {
	var n int32
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCINQ, uintptr(unsafe.Pointer(&n))); e != 0 {
		return bufSize
	}
	return int(n)
}
