// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

package seccomp

import "golang.org/x/sys/unix"

// last is the highest number that was looked at.
const last = unix.SYS_FILE_SETATTR

// never are the calls that no capability brings back.
var never = []uint32{
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, // keyrings know no namespaces
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, // goes past this very filter
	unix.SYS_USERFAULTFD, // holds the kernel up where it must not wait
	unix.SYS_NFSSERVCTL,
}

// gated are the calls that come with a capability.
var gated = map[string][]uint32{
	"CAP_SYS_ADMIN": {
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR,
		unix.SYS_SETNS, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK, unix.SYS_LOOKUP_DCOOKIE,
		unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	},
	"CAP_DAC_READ_SEARCH": {unix.SYS_OPEN_BY_HANDLE_AT},
	"CAP_SYS_MODULE":      {unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE},
	"CAP_SYS_BOOT":        {unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD},
	"CAP_SYS_TIME":        {unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME},
	"CAP_SYS_PTRACE":      {unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_MADVISE},
	"CAP_SYS_NICE":        {unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES},
	"CAP_SYS_PACCT":       {unix.SYS_ACCT},
	"CAP_SYS_CHROOT":      {unix.SYS_CHROOT},
	"CAP_SYS_TTY_CONFIG":  {unix.SYS_VHANGUP},
	"CAP_SYSLOG":          {unix.SYS_SYSLOG},
	"CAP_SYS_RAWIO":       rawIO,
}

// newNamespaces are the flags of clone and unshare that make one.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// argument looks at the lower half of one argument, which is all that the kernel
// looks at in these calls.
type argument struct {
	call   uint32
	index  uint32
	mask   uint32   // refused if any of these bits is set
	equals []uint32 // refused if it is one of these
	only   []uint32 // refused if it is none of these
	gate   string   // not looked at with this capability
}

var arguments = []argument{
	{call: unix.SYS_CLONE, mask: newNamespaces, gate: "CAP_SYS_ADMIN"},
	{call: unix.SYS_UNSHARE, mask: newNamespaces | unix.CLONE_NEWTIME, gate: "CAP_SYS_ADMIN"},
	// The usual one, that of 32-bit programs, an old version's, and asking.
	{call: unix.SYS_PERSONALITY, only: []uint32{0, 8, 0x20000, 0x20008, 0xffffffff}},
	{call: unix.SYS_SOCKET, equals: []uint32{unix.AF_VSOCK, unix.AF_ALG}},
	// What types on behalf of whoever reads the terminal.
	{call: unix.SYS_IOCTL, index: 1, equals: []uint32{unix.TIOCSTI, unix.TIOCLINUX}},
}

// hidden are calls whose argument is in memory, where a filter cannot look. Programs
// use the older call when told that there is none.
var hidden = map[uint32]string{unix.SYS_CLONE3: "CAP_SYS_ADMIN"}
