// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Indices into what procStat returns.
const (
	statState   = 0
	statParent  = 1
	statGroup   = 2
	statSession = 3
	statStart   = 19
	statExit    = 49
)

const sysPidfdOpen = 434

// peekChild waits until any child is a zombie and returns its pid without
// reaping it, so that the pid stays taken until the caller holds its lock.
func peekChild() (int, error) {
	const pAll, wNoWait = 0, 0x01000000
	var info [128]byte
	for {
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info)), syscall.WEXITED|wNoWait, 0, 0)
		if e == 0 {
			return int(*(*int32)(unsafe.Pointer(&info[16]))), nil
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

// children returns the pids of all our children, zombies too. The caller sees to
// it that none is forked or reaped meanwhile. false: this kernel does not tell.
func children() (l []int, ok bool) {
	const dir = "/proc/self/task"
	d, err := os.Open(dir)
	if err != nil {
		return nil, false
	}
	threads, err := d.Readdirnames(-1)
	_ = d.Close()
	if err != nil {
		return nil, false
	}
	for _, t := range threads {
		b, err := os.ReadFile(dir + "/" + t + "/children")
		if err != nil { // also of a thread that ended: its children are with another by now
			return nil, false
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				l = append(l, pid)
			}
		}
	}
	return l, true
}

// dropInherited closes every descriptor from lo on that came to us through exec.
// What the runtime has opened since is marked close-on-exec and stays.
func dropInherited(lo int) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, n := range names {
		fd, err := strconv.Atoi(n)
		if err != nil || fd < lo {
			continue
		}
		flags, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if e == 0 && flags&syscall.FD_CLOEXEC == 0 {
			_ = syscall.Close(fd)
		}
	}
}

func becomeSubreaper() {
	const prSetChildSubreaper = 36
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}

// nameProcess sets what ps shows, 15 bytes. Called on the main thread.
func nameProcess(name string) {
	const prSetName = 15
	b := append([]byte(name), 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetName, uintptr(unsafe.Pointer(&b[0])), 0)
}

// procStat returns the fields of /proc/<pid>/stat from the third one on, or nil.
func procStat(pid int) []string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // the name may hold blanks and parentheses
	if len(f) <= statExit {
		return nil
	}
	return f
}

// startOf returns the start time of a process, also of a zombie; 0 if there is
// none of that pid.
func startOf(pid int) uint64 {
	f := procStat(pid)
	if f == nil {
		return 0
	}
	v, _ := strconv.ParseUint(f[statStart], 10, 64)
	return v
}

// startTime is startOf for processes that have not ended.
func startTime(pid int) uint64 {
	f := procStat(pid)
	if f == nil || f[statState] == "Z" || f[statState] == "X" {
		return 0
	}
	v, _ := strconv.ParseUint(f[statStart], 10, 64)
	return v
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// bootTime is CLOCK_BOOTTIME in nanoseconds: it goes on while the machine sleeps
// and means the same to every process until the next boot.
func bootTime() int64 {
	const clockBootTime = 7
	var ts syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func readAdj() int { return adjOf(os.Getpid()) }

func adjOf(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/oom_score_adj")
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

func writeAdj(n int) error {
	fd, err := syscall.Open("/proc/self/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = syscall.Write(fd, []byte(strconv.Itoa(n)))
	_ = syscall.Close(fd)
	return err
}

// openPidfd returns a pidfd in the poller for exactly the process (pid, start),
// which may be a zombie.
func openPidfd(pid int, start uint64) (*os.File, error) {
	fd, _, e := syscall.Syscall(sysPidfdOpen, uintptr(pid), syscall.O_NONBLOCK, 0)
	if e != 0 {
		return nil, e
	}
	if start == 0 || startOf(pid) != start { // checked after the open: the fd cannot change its process
		_ = syscall.Close(int(fd))
		return nil, syscall.ESRCH
	}
	return os.NewFile(fd, "pidfd"), nil
}

// awaitPidfd parks the goroutine until the process has exited and tells how, as
// far as a process that is not its parent can know: a zombie's status stands in
// its stat; from Linux 6.15 on the pidfd tells it once it is reaped.
func awaitPidfd(f *os.File, pid int, start uint64) (ws syscall.WaitStatus, known bool, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	first := true
	err = rc.Read(func(fd uintptr) bool { ready := !first || readable(fd); first = false; return ready })
	if err != nil {
		return 0, false, err
	}
	if st := procStat(pid); st != nil && st[statState] == "Z" && st[statStart] == strconv.FormatUint(start, 10) && mayKnow(pid) {
		n, _ := strconv.Atoi(st[statExit])
		return syscall.WaitStatus(n), true, nil
	}
	const getInfo, infoExit = 0xC0000000 | 64<<16 | 0xFF<<8 | 11, 1 << 3
	var info [64]byte
	*(*uint64)(unsafe.Pointer(&info[0])) = infoExit
	var e syscall.Errno
	err = rc.Control(func(fd uintptr) {
		_, _, e = syscall.Syscall(syscall.SYS_IOCTL, fd, getInfo, uintptr(unsafe.Pointer(&info)))
	})
	known = err == nil && e == 0 && *(*uint64)(unsafe.Pointer(&info[0]))&infoExit != 0
	return syscall.WaitStatus(*(*int32)(unsafe.Pointer(&info[60]))), known, nil
}

// mayKnow says whether the kernel shows us the exit status of that process: to
// anybody else's eyes it is 0.
func mayKnow(pid int) bool {
	var st syscall.Stat_t
	return os.Geteuid() == 0 || syscall.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && int(st.Uid) == os.Geteuid()
}

func readable(fd uintptr) bool {
	p := struct {
		fd              int32
		events, revents int16
	}{fd: int32(fd), events: 1}
	n, _, _ := syscall.Syscall(syscall.SYS_POLL, uintptr(unsafe.Pointer(&p)), 1, 0)
	return n == 1
}
