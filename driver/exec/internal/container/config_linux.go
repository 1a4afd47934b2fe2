// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // sets the rules for devices
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// config is the container as libcontainer wants it told.
func config(s Spec, l layout) (*configs.Config, error) {
	c := &configs.Config{
		Rootfs: l.rootfs, Readonlyfs: !s.Root.Writable, Hostname: s.Hostname,
		Namespaces:      namespaces(s),
		Mounts:          append(system(s), binds(s, l)...),
		MaskPaths:       masked,
		ReadonlyPaths:   readOnly,
		NoNewPrivileges: s.Process.NoNewPrivs,
		OomScoreAdj:     &s.Process.OOMScoreAdj,
		RootlessEUID:    s.Rootless, RootlessCgroups: s.Rootless,
		Cgroups: &cgroups.Cgroup{Path: s.Cgroup, Rootless: s.Rootless, Resources: resources(s.Limits)},
	}
	if s.Cgroup == "" { // below this process's own, if it may make one there
		c.Cgroups.Name = s.ID
	}
	if !cgroups.IsCgroup2UnifiedMode() { // a tmpfs with the hierarchies in it
		c.ReadonlyPaths = append(slices.Clone(readOnly), "/sys/fs/cgroup")
	}
	p := s.Process
	c.Capabilities = &configs.Capabilities{Bounding: p.Bounding, Effective: p.Effective, Permitted: p.Effective, Inheritable: p.Ambient, Ambient: p.Ambient}
	for name, v := range p.Rlimits {
		c.Rlimits = append(c.Rlimits, configs.Rlimit{Type: rlimits[name], Soft: v[0], Hard: v[1]})
	}
	if s.Net == "new" {
		c.Networks = []*configs.Network{{Type: "loopback", Address: "127.0.0.1/0", Gateway: "localhost"}}
	}
	if s.Rootless {
		c.UIDMappings = []configs.IDMap{{ContainerID: int64(p.UID), HostID: int64(os.Geteuid()), Size: 1}}
		c.GIDMappings = []configs.IDMap{{ContainerID: int64(p.GID), HostID: int64(os.Getegid()), Size: 1}}
	} else if len(s.IDs) > 0 {
		c.UIDMappings = idMap(s)
		c.GIDMappings = idMap(s)
	}
	c.Cgroups.Devices = []*devices.Rule{{Type: 'a', Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "rwm"}} // nothing, but for:
	allow := func(r devices.Rule) { c.Cgroups.Devices = append(c.Cgroups.Devices, &r) }
	allow(devices.Rule{Type: 'c', Major: 5, Minor: 2, Permissions: "rwm", Allow: true})                  // ptmx
	allow(devices.Rule{Type: 'c', Major: 136, Minor: devices.Wildcard, Permissions: "rwm", Allow: true}) // pts
	for _, d := range s.Devices {
		dev, err := device(d)
		if err != nil {
			return nil, err
		}
		c.Devices = append(c.Devices, dev)
		allow(dev.Rule)
	}
	return c, nil
}

func namespaces(s Spec) configs.Namespaces {
	ns := configs.Namespaces{{Type: configs.NEWNS}, {Type: configs.NEWUTS}, {Type: configs.NEWCGROUP}}
	if !s.HostPID {
		ns = append(ns, configs.Namespace{Type: configs.NEWPID})
	}
	if !s.HostIPC {
		ns = append(ns, configs.Namespace{Type: configs.NEWIPC})
	}
	switch s.Net {
	case "":
	case "new":
		ns = append(ns, configs.Namespace{Type: configs.NEWNET})
	default:
		ns = append(ns, configs.Namespace{Type: configs.NEWNET, Path: s.Net})
	}
	if len(s.IDs) > 0 || s.Rootless {
		ns = append(ns, configs.Namespace{Type: configs.NEWUSER})
	}
	return ns
}

func idMap(s Spec) (out []configs.IDMap) {
	for _, m := range s.IDs {
		out = append(out, configs.IDMap{ContainerID: m.Inside, HostID: m.Host, Size: m.Size})
	}
	return out
}

// resources are the limits; both versions' values are told, the library takes its
// own.
func resources(l Limits) *cgroups.Resources {
	r := &cgroups.Resources{
		CpuShares: l.CPUShares, CpuWeight: l.CPUWeight, CpuQuota: l.CPUQuota, CpuPeriod: l.CPUPeriod, CpusetCpus: l.Cpus,
		Memory: l.Memory, MemoryReservation: l.MemoryReserve,
	}
	if l.Memory > 0 && l.Swap >= 0 {
		r.MemorySwap = l.Memory + l.Swap
	}
	if l.Pids > 0 {
		r.PidsLimit = &l.Pids
	}
	return r
}

const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// system are the file systems of the kernel.
func system(s Spec) []*configs.Mount {
	m := []*configs.Mount{
		{Source: "proc", Destination: "/proc", Device: "proc", Flags: safe},
		{Source: "tmpfs", Destination: "/dev", Device: "tmpfs", Flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_STRICTATIME, Data: "mode=755,size=64k"},
		{Source: "devpts", Destination: "/dev/pts", Device: "devpts", Flags: unix.MS_NOSUID | unix.MS_NOEXEC, Data: "newinstance,ptmxmode=0666,mode=0620" + ttyGroup(s)},
		{Source: "shm", Destination: "/dev/shm", Device: "tmpfs", Flags: safe, Data: fmt.Sprintf("mode=1777,size=%dm", max(s.ShmMB, 1))},
	}
	if !s.HostIPC {
		m = append(m, &configs.Mount{Source: "mqueue", Destination: "/dev/mqueue", Device: "mqueue", Flags: safe})
	}
	switch {
	case s.Rootless && s.Net == "":
		// A fresh one needs a network namespace of one's own.
		m = append(m, &configs.Mount{Source: "/sys", Destination: "/sys", Device: "bind", Flags: unix.MS_BIND | unix.MS_REC | unix.MS_RDONLY | safe, RecAttr: everywhere(unix.MOUNT_ATTR_RDONLY)},
			&configs.Mount{Source: "tmpfs", Destination: "/sys/fs/cgroup", Device: "tmpfs", Flags: safe | unix.MS_RDONLY, Data: "mode=755,size=4k"})
		return m
	case len(s.IDs) > 0 && s.Net == "": // the creator has mounted it, for the same reason
	default:
		m = append(m, &configs.Mount{Source: "sysfs", Destination: "/sys", Device: "sysfs", Flags: safe | unix.MS_RDONLY})
	}
	return append(m, &configs.Mount{Source: "cgroup", Destination: "/sys/fs/cgroup", Device: "cgroup", Flags: safe | unix.MS_RDONLY})
}

// ttyGroup is the option for the group of terminals, where the namespace has it.
func ttyGroup(s Spec) string {
	const tty = 5
	if s.Rootless {
		return ""
	}
	for _, m := range s.IDs {
		if tty < m.Inside || tty >= m.Inside+m.Size {
			return ""
		}
	}
	return ",gid=5"
}

// everywhere sets attributes on a mount and all below it.
func everywhere(attr uint64) *unix.MountAttr { return &unix.MountAttr{Attr_set: attr} }

// hasMountSetattr says whether the kernel can do that (Linux 5.12).
func hasMountSetattr() bool {
	return unix.MountSetattr(-1, "", 0, &unix.MountAttr{}) != unix.ENOSYS
}

// binds are the entries of the host and the task's mounts.
func binds(s Spec, l layout) (out []*configs.Mount) {
	deep := hasMountSetattr()
	for _, b := range append(l.binds, s.Mounts...) {
		m := &configs.Mount{Source: b.Source, Destination: b.Target, Device: "bind", Flags: unix.MS_BIND | unix.MS_NODEV | int(suid(s))}
		attr := uint64(unix.MOUNT_ATTR_NODEV)
		if suid(s) != 0 {
			attr |= unix.MOUNT_ATTR_NOSUID
		}
		if b.ReadOnly {
			m.Flags |= unix.MS_RDONLY
			attr |= unix.MOUNT_ATTR_RDONLY
		}
		if b.NoExec {
			m.Flags |= unix.MS_NOEXEC
			attr |= unix.MOUNT_ATTR_NOEXEC
		}
		if b.Source == "" {
			m.Source, m.Device, m.Flags = "tmpfs", "tmpfs", m.Flags&^unix.MS_BIND
			m.Data = fmt.Sprintf("mode=%04o,size=%dm", b.Mode, b.SizeMB)
			out = append(out, m)
			continue
		}
		m.Flags |= mountFlags(b.Source)
		if deep { // what is mounted below is held to the same; without the call it stays out
			m.Flags |= unix.MS_REC
			m.RecAttr = everywhere(attr)
		}
		m.PropagationFlags = []int{unix.MS_PRIVATE | unix.MS_REC}
		if b.Propagation == "host-to-task" {
			m.PropagationFlags = []int{unix.MS_SLAVE | unix.MS_REC}
		}
		if len(s.IDs) > 0 && inDirs(l, b) {
			m.IDMapping = &configs.MountIDMapping{UIDMappings: idMap(s), GIDMappings: idMap(s)}
		}
		out = append(out, m)
	}
	return out
}

// inDirs says whether a mount is to be seen with the owners it has on disk: all but
// the host's programs, which are root's, that is nobody's.
func inDirs(l layout, m Mount) bool {
	for _, b := range l.binds {
		if b == m {
			return false
		}
	}
	return true
}

// device is a node like the host's.
func device(d Device) (*devices.Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(d.Source, &st); err != nil {
		return nil, &os.PathError{Op: "device", Path: d.Source, Err: err}
	}
	dev := &devices.Device{Path: d.Target, FileMode: os.FileMode(st.Mode & 0o777), Uid: st.Uid, Gid: st.Gid}
	dev.Rule = devices.Rule{Type: devices.CharDevice, Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
		Permissions: devices.Permissions(d.Permissions), Allow: true}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
	case unix.S_IFBLK:
		dev.Type = devices.BlockDevice
	default:
		return nil, &os.PathError{Op: "device", Path: d.Source, Err: unix.ENODEV}
	}
	return dev, nil
}
