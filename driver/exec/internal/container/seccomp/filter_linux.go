// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

package seccomp

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Supported says whether there is a list for this architecture.
const Supported = true

// Filter returns the program for a task with these capabilities (CAP_X), as an
// array of struct sock_filter.
func Filter(caps []string) []byte {
	refused := map[uint32]code{}
	refuse := func(calls []uint32, c code) {
		for _, n := range calls {
			refused[n] = c
		}
	}
	refuse(never, ret(errno(unix.EPERM)))
	refuse(native, ret(errno(unix.EPERM)))
	for gate, calls := range gated {
		if !slices.Contains(caps, gate) {
			refuse(calls, ret(errno(unix.EPERM)))
		}
	}
	for call, gate := range hidden {
		if !slices.Contains(caps, gate) {
			refuse([]uint32{call}, ret(errno(unix.ENOSYS)))
		}
	}
	for _, a := range arguments {
		if !slices.Contains(caps, a.gate) {
			refuse([]uint32{a.call}, a.look())
		}
	}
	// What is done is the same from each cut up to the next.
	var cuts []cut
	for n := uint32(0); n <= last; n++ {
		c, ok := refused[n]
		if !ok {
			c = ret(allow)
		}
		if n == 0 || !slices.Equal(c, cuts[len(cuts)-1].then) {
			cuts = append(cuts, cut{n, c})
		}
	}
	cuts = append(cuts, cut{last + 1, ret(errno(unix.ENOSYS))})
	prog := code{
		{unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 0, atArch},
		{unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, 1, 0, arch},
		{unix.BPF_RET | unix.BPF_K, 0, 0, unix.SECCOMP_RET_KILL_PROCESS},
		{unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 0, atCall},
	}
	return append(prog, search(cuts)...).bytes()
}

// Where things are in struct seccomp_data.
const (
	atCall = 0
	atArch = 4
	atArgs = 16
)

const allow = unix.SECCOMP_RET_ALLOW

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// ins is struct sock_filter.
type ins struct {
	op     uint16
	jt, jf uint8
	k      uint32
}

type code []ins

func ret(action uint32) code { return code{{unix.BPF_RET | unix.BPF_K, 0, 0, action}} }

func (c code) bytes() []byte {
	b := make([]byte, 0, 8*len(c))
	for _, i := range c {
		b = binary.NativeEndian.AppendUint16(b, i.op)
		b = append(b, i.jt, i.jf)
		b = binary.NativeEndian.AppendUint32(b, i.k)
	}
	return b
}

// cut is a number from which on something is done.
type cut struct {
	from uint32
	then code
}

// search finds the last cut that is not above the number in the accumulator.
func search(cuts []cut) code {
	if len(cuts) == 1 {
		return cuts[0].then
	}
	half := len(cuts) / 2
	below, above := search(cuts[:half]), search(cuts[half:])
	c := code{
		{unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, 0, 1, cuts[half].from},
		{unix.BPF_JMP | unix.BPF_JA, 0, 0, uint32(len(below))}, // a jump under a condition reaches 255 only
	}
	return append(append(c, below...), above...)
}

// look is the code for a call whose number is known.
func (a argument) look() code {
	low := atArgs + 8*a.index // both architectures are little endian
	c := code{{unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 0, low}}
	if a.mask != 0 {
		c = append(c, ins{unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, 1, 0, a.mask})
		return append(append(c, ret(allow)...), ret(errno(unix.EPERM))...)
	}
	list, otherwise, found := a.equals, uint32(allow), errno(unix.EPERM)
	if len(a.only) > 0 {
		list, otherwise, found = a.only, found, otherwise
	}
	for i, v := range list {
		c = append(c, ins{unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, uint8(len(list) - i), 0, v})
	}
	return append(append(c, ret(otherwise)...), ret(found)...)
}
