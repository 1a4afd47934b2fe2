// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

package shim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported says whether this architecture has a shim.
const Supported = true

const (
	base     = 0x400000 // where the file is mapped
	codeAt   = 0x100
	dataAt   = 0x800
	filterAt = 0x840
	mark     = "nodekeep.mark.01"

	maxFilter = 4096 * 8 // what the kernel takes
)

// address is that of the code, which is not a function of Go's: see doc.go.
func address() unsafe.Pointer

// code returns the bytes of program. They are a part of this program's text.
func code() ([]byte, error) {
	b := unsafe.Slice((*byte)(address()), dataAt-codeAt)
	if i := bytes.Index(b, []byte(mark)); i > 0 {
		return b[:i], nil
	}
	return nil, errors.New("shim: the end of the code is not found: this program was built in a way that is not foreseen")
}

// Open makes the program and returns it open, sealed, and with a mode that lets
// everybody run and nobody read it. To run it, hand the file to a process and
// execute /proc/self/fd/<number>.
func (p Program) Open() (*os.File, error) {
	img, err := p.image()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("nodekeep-shim", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 all can be run
		fd, err = unix.MemfdCreate("nodekeep-shim", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("shim: a program in memory: %w (sysctl vm.memfd_noexec must be below 2)", err)
	}
	f := os.NewFile(uintptr(fd), "nodekeep-shim")
	_, err = f.Write(img)
	if err == nil {
		err = unix.Fchmod(fd, 0o111)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("shim: a program in memory: %w", err)
	}
	return f, nil
}

func (p Program) image() ([]byte, error) {
	text, err := code()
	if err != nil {
		return nil, err
	}
	if len(p.Filter)%8 != 0 || len(p.Filter) > maxFilter {
		return nil, fmt.Errorf("shim: a filter of %d bytes", len(p.Filter))
	}
	img := make([]byte, filterAt, filterAt+len(p.Filter))
	header(img, filterAt+len(p.Filter))
	copy(img[codeAt:], text)
	var flags uint64
	if len(p.Filter) > 0 {
		flags |= 1
	}
	if p.Init {
		flags |= 2
	}
	le := binary.LittleEndian
	for i, v := range []uint64{uint64(len(p.Filter) / 8), base + filterAt, flags, uint64(p.ErrorsTo), uint64(p.Paths), uint64(p.Self)} {
		le.PutUint64(img[dataAt+8*i:], v)
	}
	return append(img, p.Filter...), nil
}

// header writes the ELF header, one segment of the whole file, to read and run,
// and one that says that the stack holds no code.
func header(img []byte, size int) {
	le := binary.LittleEndian
	copy(img, "\x7fELF\x02\x01\x01")
	le.PutUint16(img[16:], 2) // ET_EXEC
	le.PutUint16(img[18:], machine)
	le.PutUint32(img[20:], 1)
	le.PutUint64(img[24:], base+codeAt)
	le.PutUint64(img[32:], 64) // program headers
	le.PutUint16(img[52:], 64) // size of this header
	le.PutUint16(img[54:], 56) // and of each of those
	le.PutUint16(img[56:], 2)
	load, stack := img[64:], img[120:]
	le.PutUint32(load, 1)     // PT_LOAD
	le.PutUint32(load[4:], 5) // R X
	le.PutUint64(load[16:], base)
	le.PutUint64(load[24:], base)
	le.PutUint64(load[32:], uint64(size))
	le.PutUint64(load[40:], uint64(size))
	le.PutUint64(load[48:], 0x1000)
	le.PutUint32(stack, 0x6474e551) // PT_GNU_STACK
	le.PutUint32(stack[4:], 6)      // R W
}
