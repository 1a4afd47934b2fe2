// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver/exec/internal/container/seccomp"
	"github.com/nodekeep/nodekeep/driver/exec/internal/container/shim"
)

const withoutCgo = "this program was built without cgo, which entering namespaces needs: build it with CGO_ENABLED=1 and a C compiler"

// Probe finds out what this machine and this program can isolate with. It tries
// what can be tried without leaving anything, and takes some milliseconds.
func Probe(ctx context.Context) Features {
	f := Features{Root: os.Geteuid() == 0 && tryMount() == nil}
	f.cgroups()
	f.Seccomp = probeSeccomp()
	f.UserNS = probeUserNS(ctx)
	f.IDMap = probeIDMap(f.Root)
	f.Overlay = probeOverlay(f.Root)
	f.Swap = f.probeSwap()
	if _, err := os.Stat("/proc/pressure/memory"); err != nil {
		f.PSI = "the kernel keeps none (CONFIG_PSI, or psi=1 on its command line)"
	}
	f.Unusable = f.unusable()
	return f
}

func (f Features) unusable() string {
	switch {
	case !hasNsenter:
		return withoutCgo
	case !shim.Supported:
		return "only amd64 and arm64 have containers"
	case f.Root && f.Cgroup == "none":
		return "no cgroup hierarchy is mounted"
	case f.Root && !f.has("devices"):
		return "there is no devices controller, so devices of the host could be opened"
	case !f.Root && f.UserNS != "":
		return "this process is not root, and user namespaces are not to be had: " + f.UserNS
	}
	file, err := shim.Program{}.Open()
	if err != nil {
		return err.Error()
	}
	_ = file.Close()
	return ""
}

// tryMount asks for the right to mount.
func tryMount() error {
	fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
	}
	if errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// cgroups finds the hierarchies. A v2 tree without controllers beside those of v1
// makes a hybrid.
func (f *Features) cgroups() {
	f.Cgroup = "none"
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var v1, v2 bool
	for line := range strings.Lines(string(text)) {
		_, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(after)
		if len(fields) < 3 {
			continue
		}
		switch fields[0] {
		case "cgroup2":
			v2 = true
			if place := strings.Fields(line)[4]; place == "/sys/fs/cgroup" {
				b, _ := os.ReadFile(place + "/cgroup.controllers")
				f.Controllers = append(f.Controllers, strings.Fields(string(b))...)
				f.Controllers = append(f.Controllers, "devices") // rules are a program of the kernel's
			}
		case "cgroup":
			v1 = true
			for _, o := range strings.Split(fields[2], ",") {
				if slices.Contains([]string{"cpu", "cpuset", "memory", "pids", "devices", "blkio", "freezer", "hugetlb"}, o) {
					f.Controllers = append(f.Controllers, o)
				}
			}
		}
	}
	f.Controllers = sorted(f.Controllers)
	switch {
	case v1 && v2:
		f.Cgroup = "hybrid"
	case v1:
		f.Cgroup = "v1"
	case v2:
		f.Cgroup = "v2"
	}
}

func probeSeccomp() string {
	if !seccomp.Supported {
		return "there is no list of calls for this architecture"
	}
	b, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return "the kernel has none (CONFIG_SECCOMP_FILTER)"
	}
	if !strings.Contains(string(b), "kill_process") {
		return "the kernel cannot kill a process by it (Linux 4.14)"
	}
	return ""
}

// probeUserNS makes one for a program that does not exist: what fails tells.
func probeUserNS(ctx context.Context) string {
	cmd := exec.CommandContext(ctx, "/proc/self/nothing")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}}
	err := cmd.Run()
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	return fmt.Sprintf("the kernel refuses: %v (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)", err)
}

func probeIDMap(root bool) string {
	var u unix.Utsname
	_ = unix.Uname(&u)
	var major, minor int
	_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	switch {
	case !root:
		return "needs root"
	case major < 6 || major == 6 && minor < 3:
		return "needs Linux 6.3, for a tmpfs cannot be mapped before"
	}
	return ""
}

func probeOverlay(root bool) string {
	if !root {
		return "needs root"
	}
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	switch {
	case err == nil:
		_ = unix.Close(fd)
	case errors.Is(err, unix.ENOSYS):
		if b, _ := os.ReadFile("/proc/filesystems"); !strings.Contains(string(b), "\toverlay\n") {
			return "the kernel has none (modprobe overlay)"
		}
	default:
		return "the kernel has none (modprobe overlay): " + err.Error()
	}
	return ""
}

// probeSwap looks for the file that limits swap, in v2 in any group but the top.
func (f Features) probeSwap() string {
	const none = "the kernel does not limit it (swapaccount=1 on its command line)"
	if !f.has("memory") {
		return "no memory controller"
	}
	if f.Cgroup != "v2" {
		if _, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"); err != nil {
			return none
		}
		return ""
	}
	dirs, _ := os.ReadDir("/sys/fs/cgroup")
	for _, d := range dirs {
		if _, err := os.Stat("/sys/fs/cgroup/" + d.Name() + "/memory.current"); err == nil {
			if _, err := os.Stat("/sys/fs/cgroup/" + d.Name() + "/memory.swap.max"); err != nil {
				return none
			}
		}
	}
	return ""
}
