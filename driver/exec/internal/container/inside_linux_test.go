// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What this test's own program does in a container: it looks, tries, and answers in
// lines of name=value.

func answer(name string, v any) { fmt.Printf("%s=%v\n", name, v) }

// answerErr answers ok, the name of an errno, or a text.
func answerErr(name string, err error) {
	var errno syscall.Errno
	switch {
	case err == nil:
		answer(name, "ok")
	case errors.As(err, &errno) && errno == 0:
		answer(name, "ok")
	case errors.As(err, &errno):
		answer(name, unix.ErrnoName(errno))
	default:
		answer(name, strconv.Quote(err.Error()))
	}
}

func inside(args []string) {
	switch args[0] {
	case "look":
		look()
		tryCalls()
		tryFiles()
		for _, pid := range args[1:] {
			n, _ := strconv.Atoi(pid)
			answerErr("kill "+pid, unix.Kill(n, 0))
			answerErr("ptrace "+pid, unix.PtraceAttach(n))
		}
		answer("int80", foreignCall())
	case "root":
		look()
		tryCalls()
		tryFiles()
		tryAsRoot()
	case "int80":
		int80()
	case "net":
		network(args[1])
	case "eat": // memory, in MiB, touched
		n, _ := strconv.Atoi(args[1])
		b, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			os.Exit(92)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		answer("ate", n)
	case "open":
		for _, p := range args[1:] {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			answerErr("open "+p, err)
			_ = f.Close()
		}
	case "status":
		status()
		links("ns", "/proc/self/ns")
	}
}

// status answers users, capabilities and the like.
func status() {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters":
			answer(name, strings.Join(strings.Fields(v), " "))
		}
	}
}

func links(name, dir string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		to, _ := os.Readlink(filepath.Join(dir, e.Name()))
		answer(name+" "+e.Name(), to)
	}
}

func look() {
	status()
	links("ns", "/proc/self/ns")
	links("fd", "/proc/self/fd")
	answer("pid", os.Getpid())
	answer("env", strings.Join(os.Environ(), " "))
	host, _ := os.Hostname()
	answer("hostname", host)
	wd, _ := os.Getwd()
	answer("dir", wd)
	answer("umask", fmt.Sprintf("%03o", unix.Umask(0o22)))
	sid, _ := unix.Getsid(0)
	answer("sid", sid)
	for _, f := range []string{"oom_score_adj", "cgroup"} {
		b, _ := os.ReadFile("/proc/self/" + f)
		answer(f, strings.Join(strings.Fields(string(b)), " "))
	}
	var procs []string
	list, _ := os.ReadDir("/proc")
	for _, e := range list {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			procs = append(procs, e.Name())
		}
	}
	answer("processes", strings.Join(procs, " "))
	for _, dir := range []string{"/", "/dev", "/local", "/sys/fs/cgroup"} {
		list, _ := os.ReadDir(dir)
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		answer("list "+dir, strings.Join(names, " "))
	}
	b, _ := os.ReadFile("/proc/self/mountinfo")
	top := map[string]bool{} // what was mounted last at each place
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		_, sb, _ := strings.Cut(line, " - ")
		top[f[4]] = strings.HasPrefix(f[5], "rw") && !strings.HasPrefix(strings.Fields(sb)[2], "ro")
	}
	var writable []string
	for place, ok := range top {
		if ok {
			writable = append(writable, place)
		}
	}
	slices.Sort(writable)
	answer("writable mounts", strings.Join(writable, " "))
	for _, f := range []string{
		"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu/cpu.shares", "/sys/fs/cgroup/cpu.weight",
		"/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/memory.swap.max", "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes",
		"/etc/hostname",
	} {
		if b, err := os.ReadFile(f); err == nil {
			answer(f, strings.TrimSpace(string(b)))
		}
	}
}

// call makes a system call that must not do anything.
func call(name string, nr uintptr, args ...uintptr) {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	answerErr("call "+name, errno)
}

func tryCalls() {
	slash, tmpfs := uintptr(unsafe.Pointer(unsafe.StringData("/\x00"))), uintptr(unsafe.Pointer(unsafe.StringData("tmpfs\x00")))
	call("mount", unix.SYS_MOUNT, tmpfs, slash, tmpfs, 0, 0)
	call("remount", unix.SYS_MOUNT, slash, slash, 0, unix.MS_REMOUNT|unix.MS_BIND, 0)
	call("umount2", unix.SYS_UMOUNT2, slash, unix.MNT_DETACH)
	call("pivot_root", unix.SYS_PIVOT_ROOT, slash, slash)
	call("fsopen", unix.SYS_FSOPEN, tmpfs, 0)
	call("open_tree", unix.SYS_OPEN_TREE, 0, slash, 0)
	call("setns", unix.SYS_SETNS, ^uintptr(0), 0)
	call("unshare user", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	call("unshare mount", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	call("clone3", unix.SYS_CLONE3, 0, 0)
	call("bpf", unix.SYS_BPF, 0, 0, 0)
	call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)
	call("keyctl", unix.SYS_KEYCTL, 0, 0)
	call("add_key", unix.SYS_ADD_KEY, 0, 0, 0, 0, 0)
	call("io_uring_setup", unix.SYS_IO_URING_SETUP, 1, 0)
	call("userfaultfd", unix.SYS_USERFAULTFD, 0)
	call("init_module", unix.SYS_INIT_MODULE, 0, 0, 0)
	call("finit_module", unix.SYS_FINIT_MODULE, ^uintptr(0), 0, 0)
	call("reboot", unix.SYS_REBOOT, 0, 0, 0, 0)
	call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0)
	call("swapon", unix.SYS_SWAPON, slash, 0)
	call("sethostname", unix.SYS_SETHOSTNAME, slash, 1)
	call("clock_settime", unix.SYS_CLOCK_SETTIME, 0, 0)
	call("acct", unix.SYS_ACCT, 0)
	call("syslog", unix.SYS_SYSLOG, 10, 0, 0)
	call("quotactl", unix.SYS_QUOTACTL, 0, 0, 0, 0)
	call("personality", unix.SYS_PERSONALITY, 0x40000)
	call("socket vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	call("socket alg", unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)
	call("socket packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	call("ioctl tiocsti", unix.SYS_IOCTL, 0, unix.TIOCSTI, slash)
	call("x32 getpid", 0x40000000|unix.SYS_GETPID)
	call("beyond", 4000)
}

// tryFiles looks for what of the host is to be seen and written.
func tryFiles() {
	for _, p := range []string{
		"/etc/shadow", "/etc/gshadow", "/etc/ssh", "/etc/sudoers", "/etc/ssl/private", "/root/.ssh", "/home/plain", "/var/lib", "/var/log", "/boot", "/mnt", "/srv", "/run/systemd",
		"/sys/fs/cgroup/nodekeep-test.slice", "/sys/fs/cgroup/cpu/nodekeep-test.slice", "/dev/vda", "/dev/sda", "/dev/mem", "/dev/kmsg", "/dev/ttyS0", "/proc/1/root/boot",
	} {
		_, err := os.Stat(p)
		answerErr("see "+p, err)
	}
	for _, p := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kallsyms", "/proc/interrupts"} {
		b, err := os.ReadFile(p)
		answer("read "+p, fmt.Sprint(len(b), err == nil || errors.Is(err, fs.ErrNotExist)))
	}
	for _, p := range []string{
		"/x", "/etc/x", "/usr/x", "/bin/x", "/dev/x", "/sys/x", "/alloc/x", "/local/x", "/secrets/x", "/tmp/x", "/dev/shm/x",
		"/sys/fs/cgroup/x", "/sys/fs/cgroup/memory/x",
	} {
		f, err := os.OpenFile(p, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		answerErr("write "+p, err)
		_ = f.Close()
	}
	for _, p := range []string{
		"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
		"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/memory/release_agent", "/sys/kernel/uevent_helper",
		"/etc/passwd", "/etc/hosts", "/proc/1/oom_score_adj", "/proc/1/exe", "/proc/self/exe", "/usr/bin/env",
	} {
		f, err := os.OpenFile(p, os.O_WRONLY, 0)
		answerErr("open to write "+p, err)
		_ = f.Close()
	}
	answerErr("mknod null", unix.Mknod("/tmp/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	answerErr("mknod mem", unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))))
	answerErr("mknod disk", unix.Mknod("/tmp/disk", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))))
	for _, p := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random", "/dev/ptmx"} {
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		answerErr("open "+p, err)
		_ = f.Close()
	}
}

// tryAsRoot tries what root tries.
func tryAsRoot() {
	for _, p := range []string{"/tmp/mem", "/tmp/disk", "/dev/mem2"} {
		if p == "/dev/mem2" {
			answerErr("mknod "+p, unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))))
		}
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		answerErr("open "+p, err)
		_ = f.Close()
	}
	// Out by the way that chroot leaves open.
	_ = os.Mkdir("/tmp/jail", 0o700)
	d, err := os.Open("/")
	answerErr("open /", err)
	answerErr("chroot", unix.Chroot("/tmp/jail"))
	_ = unix.Fchdir(int(d.Fd()))
	for range 64 {
		_ = unix.Chdir("..")
	}
	_ = unix.Chroot(".")
	_, err = os.Stat("/boot")
	answerErr("see /boot after", err)
	_, err = os.Stat("/alloc")
	answerErr("see /alloc after", err)
	answerErr("setuid 1", unix.Setresuid(1, 1, 1))
}

// foreignCall has another process make a call of another architecture and says how
// that ends.
func foreignCall() string {
	cmd := exec.Command("/proc/self/exe", "probe:inside", "int80")
	cmd.Env = []string{"GOTRACEBACK=none", "GORACE=atexit_sleep_ms=0"}
	_ = cmd.Run()
	if cmd.ProcessState == nil {
		return "not run"
	}
	return cmd.ProcessState.String()
}

const letThrough = "exit status 91"

// int80 makes the 32-bit call getpid of a 64-bit program.
func int80() {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		os.Exit(90)
	}
	copy(page, "\xb8\x14\x00\x00\x00\xcd\x80\xc3") // mov $20, %eax; int $0x80; ret
	code := &page[0]
	entry := &code
	(*(*func())(unsafe.Pointer(&entry)))()
	os.Exit(91) // letThrough
}

// network answers what there is, and whether its own loopback and the host's
// listener are reached.
func network(hostAddr string) {
	list, _ := net.Interfaces()
	var names []string
	for _, i := range list {
		names = append(names, i.Name+":"+strconv.FormatBool(i.Flags&net.FlagUp != 0))
	}
	answer("interfaces", strings.Join(names, " "))
	l, err := net.Listen("tcp", "127.0.0.1:81")
	answerErr("listen on 81", err)
	if err == nil {
		c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second)
		answerErr("own loopback", err)
		if err == nil {
			_ = c.Close()
		}
	}
	c, err := net.DialTimeout("tcp", hostAddr, time.Second)
	answerErr("host's listener", err)
	if err == nil {
		_ = c.Close()
	}
}
