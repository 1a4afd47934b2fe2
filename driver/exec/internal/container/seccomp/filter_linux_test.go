// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

package seccomp

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// answer runs a filter as the kernel does.
func answer(t *testing.T, prog []byte, arch, call uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data, call)
	binary.NativeEndian.PutUint32(data[4:], arch)
	for i, a := range args {
		binary.NativeEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for pc, steps := 0, 0; ; pc++ {
		steps++
		require.Less(t, pc*8, len(prog), "it ends")
		require.Less(t, steps, 64, "few steps for one call")
		i := prog[pc*8:]
		op, jt, jf, k := binary.NativeEndian.Uint16(i), int(i[2]), int(i[3]), binary.NativeEndian.Uint32(i[4:])
		jump := func(ok bool) {
			if ok {
				pc += jt
			} else {
				pc += jf
			}
		}
		switch op {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.NativeEndian.Uint32(data[k:])
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == k)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= k)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(acc&k != 0)
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(k)
		case unix.BPF_RET | unix.BPF_K:
			return k
		default:
			t.Fatalf("instruction %x", op)
		}
	}
}

func TestAnswers(t *testing.T) {
	eperm, enosys := errno(unix.EPERM), errno(unix.ENOSYS)
	f, admin := Filter(nil), Filter([]string{"CAP_SYS_ADMIN"})
	require.Less(t, len(f)/8, 400)
	for _, c := range []struct {
		name       string
		call       uint32
		args       []uint64
		want, with uint32 // without and with CAP_SYS_ADMIN
	}{
		{"read", unix.SYS_READ, nil, allow, allow},
		{"write", unix.SYS_WRITE, nil, allow, allow},
		{"mount", unix.SYS_MOUNT, nil, eperm, allow},
		{"setns", unix.SYS_SETNS, nil, eperm, allow},
		{"keyctl", unix.SYS_KEYCTL, nil, eperm, eperm},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, nil, eperm, eperm},
		{"reboot", unix.SYS_REBOOT, nil, eperm, eperm},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, nil, eperm, eperm},
		{"clone3", unix.SYS_CLONE3, nil, enosys, allow},
		{"fork", unix.SYS_CLONE, []uint64{17}, allow, allow},
		{"thread", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND | unix.CLONE_FS | unix.CLONE_FILES}, allow, allow},
		{"clone newuser", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER | 17}, eperm, allow},
		{"clone newnet", unix.SYS_CLONE, []uint64{unix.CLONE_NEWNET}, eperm, allow},
		{"unshare files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES}, allow, allow},
		{"unshare user", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, eperm, allow},
		{"unshare time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, eperm, allow},
		{"personality linux", unix.SYS_PERSONALITY, []uint64{0}, allow, allow},
		{"personality asked", unix.SYS_PERSONALITY, []uint64{0xffffffff}, allow, allow},
		{"personality other", unix.SYS_PERSONALITY, []uint64{0x40000}, eperm, eperm},
		{"socket inet", unix.SYS_SOCKET, []uint64{unix.AF_INET}, allow, allow},
		{"socket vsock", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, eperm, eperm},
		{"socket vsock, high bits", unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_VSOCK}, eperm, eperm},
		{"ioctl", unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, allow, allow},
		{"ioctl tiocsti", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm, eperm},
		{"ioctl tiocsti, high bits", unix.SYS_IOCTL, []uint64{0, 1<<40 | unix.TIOCSTI}, eperm, eperm},
		{"last", last, nil, allow, allow},
		{"beyond", last + 1, nil, enosys, enosys},
		{"x32", 0x40000000, nil, enosys, enosys},
		{"highest", 0xffffffff, nil, enosys, enosys},
	} {
		require.Equal(t, c.want, answer(t, f, arch, c.call, c.args...), c.name)
		require.Equal(t, c.with, answer(t, admin, arch, c.call, c.args...), c.name+" with CAP_SYS_ADMIN")
	}
	for _, foreign := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_X86_64, 0} {
		if foreign != arch {
			require.EqualValues(t, uint32(unix.SECCOMP_RET_KILL_PROCESS), answer(t, f, foreign, unix.SYS_READ))
		}
	}
}

// TestEveryCall holds the program against the lists it was made of.
func TestEveryCall(t *testing.T) {
	f := Filter(nil)
	refused := map[uint32]bool{}
	for _, list := range append([][]uint32{never, native}, values(gated)...) {
		for _, n := range list {
			require.False(t, refused[n], "call %d is on two lists", n)
			refused[n] = true
		}
	}
	for n := uint32(0); n <= last; n++ {
		want := uint32(allow)
		if refused[n] {
			want = errno(unix.EPERM)
		}
		if _, ok := hidden[n]; ok {
			want = errno(unix.ENOSYS)
		}
		require.Equal(t, want, answer(t, f, arch, n), "call %d", n)
	}
	for gate, calls := range gated {
		with := Filter([]string{gate})
		for _, n := range calls {
			require.EqualValues(t, allow, answer(t, with, arch, n), "call %d with %s", n, gate)
		}
	}
}

func values(m map[string][]uint32) (out [][]uint32) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func BenchmarkFilter(b *testing.B) {
	for b.Loop() {
		Filter(nil)
	}
}
