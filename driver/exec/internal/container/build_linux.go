// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// builder works out one Spec and gathers all that is wrong.
type builder struct {
	t       driver.TaskConfig
	c       TaskOptions
	n       NodeOptions
	spec    Spec
	applied Applied
	errs    []error
}

// Build works out the container of a task. It touches nothing but the mode of a
// program in the task's own directory, and blocks for as long as looking up a user
// does. The error joins a FieldError for each value that cannot be taken, or is of
// Lookup, or is ErrLess; some may pass by themselves (driver.IsRecoverable).
func Build(t driver.TaskConfig, c TaskOptions, n NodeOptions) (Spec, Applied, error) {
	b := &builder{t: t, c: c, n: n}
	if n.Features.Unusable != "" {
		return Spec{}, Applied{}, fmt.Errorf("%w: %s", ErrUnsupported, n.Features.Unusable)
	}
	b.spec = Spec{Version: SpecVersion, ID: creator.Name(t.ID), StateRoot: n.StateRoot, Cgroup: n.Cgroup, Rootless: !n.Features.Root}
	b.absolute("NodeOptions.StateRoot", n.StateRoot)
	if n.Cgroup != "" || n.Features.Root {
		b.absolute("NodeOptions.Cgroup", n.Cgroup)
	}
	b.root()
	b.mounts()
	b.devices()
	b.etc()
	b.namespaces()
	b.user()
	b.privileges()
	b.limits()
	b.process()
	if err := errors.Join(b.errs...); err != nil {
		return Spec{}, Applied{}, err
	}
	if c.Strict && len(b.applied.Missing) > 0 {
		return Spec{}, b.applied, fmt.Errorf("%w: %s", ErrLess, strings.Join(b.applied.Missing, "; "))
	}
	return b.spec, b.applied, nil
}

// bad notes a value that cannot be taken.
func (b *builder) bad(field, value, allowed string, cause ...error) {
	b.errs = append(b.errs, &FieldError{Field: field, Value: shorten(value), Allowed: allowed, Err: errors.Join(cause...)})
}

// misses notes what will not be in force.
func (b *builder) misses(what, why string) {
	b.applied.Missing = append(b.applied.Missing, what+": "+why)
}

// absolute checks a path of the host.
func (b *builder) absolute(field, path string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		b.bad(field, path, "must be an absolute path without . and ..")
	}
}

func (b *builder) root() {
	r := Root{Dir: filepath.Join(b.n.StateRoot, ".root"), Base: b.t.Dirs.Task,
		Dirs: []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/var", "/etc", "/root", "/home"}}
	if b.spec.Rootless {
		r.Dir = filepath.Join(b.t.Dirs.Task, ".root")
	}
	b.applied.Root = "host"
	if r.Entries = b.n.Entries; len(r.Entries) == 0 {
		r.Entries = defaultEntries()
	}
	for i, e := range r.Entries {
		b.absolute(fmt.Sprintf("NodeOptions.Entries[%d].Source", i), e.Source)
		b.target(fmt.Sprintf("NodeOptions.Entries[%d].Target", i), e.Target)
	}
	if b.c.Image != "" {
		r.Image, r.Entries, b.applied.Root = filepath.Clean(b.c.Image), nil, "image"
		switch {
		case !filepath.IsLocal(b.c.Image) || r.Image == "." || strings.ContainsRune(b.c.Image, 0):
			b.bad("config.image", b.c.Image, "must be a directory below the task's own, such as local/rootfs")
		case b.t.Dirs.Task == "":
			b.bad("config.image", b.c.Image, "the task has no directory")
		case b.n.Features.Overlay != "":
			b.bad("config.image", b.c.Image, "images need an overlay: "+b.n.Features.Overlay)
		}
	}
	if b.c.WritableRoot {
		r.Writable, r.SizeMB = true, b.memoryMB()
	}
	b.spec.Root = r
}

// reserved are places that are ours to fill.
var reserved = []string{"/proc", "/sys", "/dev"}

// target checks a path in the container.
func (b *builder) target(field, path string) {
	switch {
	case !strings.HasPrefix(path, "/") || filepath.Clean(path) != path || path == "/" || strings.ContainsRune(path, 0):
		b.bad(field, path, "must be an absolute path in the container, without . and .., and not /")
	case slices.ContainsFunc(reserved, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") }):
		b.bad(field, path, "nothing can be put into "+strings.Join(reserved, ", "))
	}
}

// mounts are the task's directories, what was asked for, and memory.
func (b *builder) mounts() {
	add := func(m Mount) { b.spec.Mounts = append(b.spec.Mounts, m) }
	d := b.t.Dirs
	for _, m := range []Mount{
		{Source: d.Alloc, Target: "/alloc"}, {Source: d.Local, Target: "/local"}, {Source: d.Secrets, Target: "/secrets", NoExec: true},
	} {
		if m.Source != "" {
			b.absolute("TaskConfig.Dirs", m.Source)
			add(m)
		}
	}
	switch {
	case b.c.TmpMB < 0 || b.c.TmpMB > 1<<20:
		b.bad("config.tmp_mb", fmt.Sprint(b.c.TmpMB), "must be from 0 to 1048576")
	case b.c.TmpMB > 0 || !isDir(filepath.Join(d.Task, "tmp")): // who made the directories has made none for it
		size := b.c.TmpMB
		if size <= 0 {
			size = 16
		}
		add(Mount{Target: "/tmp", SizeMB: size, Mode: 0o1777})
	default:
		add(Mount{Source: filepath.Join(d.Task, "tmp"), Target: "/tmp"})
	}
	if b.c.ShmMB < 0 || b.c.ShmMB > 1<<20 {
		b.bad("config.shm_mb", fmt.Sprint(b.c.ShmMB), "must be from 0 to 1048576")
	}
	b.spec.ShmMB = b.c.ShmMB
	for i, m := range b.t.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		b.absolute(field+".source", m.Source)
		b.target(field+".target", m.Target)
		if !slices.Contains([]string{"", "private", "host-to-task"}, m.Propagation) {
			b.bad(field+".propagation", m.Propagation, "must be private or host-to-task: what a container mounts stays in it")
		}
		if slices.ContainsFunc(b.spec.Mounts, func(o Mount) bool { return o.Target == m.Target }) {
			b.bad(field+".target", m.Target, "something is mounted there already")
		}
		add(Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly, Propagation: m.Propagation})
	}
}

func (b *builder) devices() {
	b.spec.Devices = standardDevices()
	for i, d := range b.t.Devices {
		field := fmt.Sprintf("devices[%d]", i)
		if d.TaskPath == "" {
			d.TaskPath = d.HostPath
		}
		if d.Permissions == "" {
			d.Permissions = "rwm"
		}
		b.absolute(field+".host_path", d.HostPath)
		if !strings.HasPrefix(d.TaskPath, "/dev/") || filepath.Clean(d.TaskPath) != d.TaskPath || strings.ContainsRune(d.TaskPath, 0) {
			b.bad(field+".task_path", d.TaskPath, "must be below /dev")
		}
		if strings.Trim(d.Permissions, "rwm") != "" {
			b.bad(field+".permissions", d.Permissions, "must be of r, w and m")
		}
		if err := isDevice(d.HostPath); err != nil {
			b.bad(field+".host_path", d.HostPath, "must be a device", err)
		}
		b.spec.Devices = append(b.spec.Devices, Device{Source: d.HostPath, Target: d.TaskPath, Permissions: d.Permissions})
	}
}

func (b *builder) namespaces() {
	names := []string{"mount", "uts", "cgroup"}
	mode := func(field, value string, allowed bool, host *bool, name string) {
		switch {
		case value == "host" && allowed:
			*host = true
		case value == "host":
			b.bad(field, value, "this node allows private only")
		case value != "private" && value != "":
			b.bad(field, value, "must be private or host")
		default:
			names = append(names, name)
		}
	}
	mode("config.pid_mode", b.c.PIDMode, b.n.AllowHostPID, &b.spec.HostPID, "pid")
	mode("config.ipc_mode", b.c.IPCMode, b.n.AllowHostIPC, &b.spec.HostIPC, "ipc")
	if b.c.Init && b.spec.HostPID {
		b.bad("config.init", "true", "needs pid_mode private: in the host's there is an init")
	}
	if n := b.t.Network; n != nil {
		switch {
		case n.Path != "":
			b.absolute("network.path", n.Path)
			b.spec.Net = n.Path
		case n.Mode == "none":
			b.spec.Net = "new"
		}
	}
	if b.spec.Net != "" {
		names = append(names, "network")
	}
	if b.c.UserNS || b.spec.Rootless {
		names = append(names, "user")
		b.userNamespace()
	}
	slices.Sort(names)
	b.applied.Namespaces = names
}

func (b *builder) userNamespace() {
	f := b.n.Features
	switch {
	case f.UserNS != "":
		b.bad("config.user_namespace", "true", "there are none here: "+f.UserNS)
	case b.spec.Rootless: // the creator maps its own user
	case f.IDMap != "":
		b.bad("config.user_namespace", "true", "the task's directories cannot be mapped: "+f.IDMap)
	case b.n.IDs.Size <= 0 || b.n.IDs.Host <= 0 || b.n.IDs.Inside < 0:
		b.bad("config.user_namespace", "true", "this node has set no users aside for it")
	default:
		b.spec.IDs = []IDs{b.n.IDs}
	}
	if b.spec.HostPID || b.spec.HostIPC {
		b.bad("config.user_namespace", "true", "needs pid_mode and ipc_mode private")
	}
}

// user resolves the task's user and says whether it may run here.
func (b *builder) user() {
	name := b.t.User
	if name == "" && !b.spec.Rootless {
		if name = b.n.DefaultUser; name == "" {
			name = "nobody"
		}
	}
	a := self()
	if name != "" {
		var err error
		if a, err = b.lookup(name); err != nil {
			b.errs = append(b.errs, fmt.Errorf("exec: user %q: %w", name, err))
			return
		}
	}
	p := &b.spec.Process
	p.UID, p.GID, p.Groups = a.UID, a.GID, slices.Clone(a.Groups)
	b.applied.UID, b.applied.GID = a.UID, a.GID
	switch {
	case b.spec.Rootless:
		if a.UID != self().UID {
			b.bad("user", name, fmt.Sprintf("the agent runs as uid %d and cannot become another", self().UID))
		}
		p.UID, p.GID, p.Groups = 0, 0, nil // the one user that a namespace must have is root, and it is the agent's
		return
	case b.c.UserNS:
		b.mapped("user", int64(a.UID))
		for _, g := range append([]int{a.GID}, a.Groups...) {
			b.mapped("group", int64(g))
		}
	case !b.n.AllowRoot && a.UID == 0:
		b.bad("user", name, "this node runs no tasks as root; one in a user namespace may be")
	case !b.n.AllowRoot && (a.GID == 0 || slices.Contains(a.Groups, 0)):
		b.bad("user", name, "this node runs no tasks in root's group (gid 0)")
	}
	for _, entry := range b.n.DeniedUsers {
		if b.denies(entry, a) {
			b.bad("user", name, fmt.Sprintf("uid %d may not be used on this node (denied: %s)", a.UID, strings.Join(b.n.DeniedUsers, ", ")))
		}
	}
}

func (b *builder) lookup(name string) (account.Account, error) {
	if b.n.Lookup != nil {
		return b.n.Lookup(name)
	}
	return new(account.Book).Lookup(name)
}

// denies says whether an entry of DeniedUsers means the account: a name, a uid or a
// range of uids. One that cannot be read denies all.
func (b *builder) denies(entry string, a account.Account) bool {
	low, high, isRange := strings.Cut(entry, "-")
	from, err := strconv.ParseUint(low, 10, 32)
	if err != nil {
		other, err := b.lookup(entry)
		return entry == a.Name || err == nil && other.UID == a.UID
	}
	to := from
	if isRange {
		if to, err = strconv.ParseUint(high, 10, 32); err != nil {
			return true
		}
	}
	return from <= uint64(a.UID) && uint64(a.UID) <= to
}

// self is the agent's own account.
func self() account.Account { return account.Account{UID: os.Geteuid(), GID: os.Getegid()} }

func isDir(path string) bool {
	st, err := os.Stat(path)
	return filepath.IsAbs(path) && err == nil && st.IsDir()
}

// isDevice says why a path is no device.
func isDevice(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Mode()&os.ModeDevice == 0 {
		return fmt.Errorf("it is a %s", st.Mode().Type())
	}
	return nil
}

func (b *builder) mapped(what string, id int64) {
	if in := b.n.IDs; in.Size > 0 && (id < in.Inside || id >= in.Inside+in.Size) {
		b.bad(what, fmt.Sprint(id), fmt.Sprintf("is not in the user namespace, which has %d to %d", in.Inside, in.Inside+in.Size-1))
	}
}

func (b *builder) privileges() {
	p := &b.spec.Process
	sets, err := capabilities(b.c.privileges, b.n.AllowCaps, p.UID == 0 && !b.spec.Rootless)
	if err != nil {
		b.errs = append(b.errs, err)
	}
	p.Bounding, p.Effective, p.Ambient = sets.bounding, sets.effective, sets.ambient
	p.NoNewPrivs = b.c.NoNewPrivs
	if !p.NoNewPrivs && !b.n.AllowSetuid {
		b.bad("config.no_new_privs", "false", "this node allows true only")
	}
	switch b.c.Seccomp {
	case "default", "":
		p.Seccomp = b.n.Features.Seccomp == ""
		if !p.Seccomp {
			b.misses("seccomp", b.n.Features.Seccomp)
		}
		if !p.NoNewPrivs {
			b.bad("config.seccomp", b.c.Seccomp, `must be "unconfined" with no_new_privs = false: the kernel takes no filter from a user who may become another`)
		}
	case "unconfined":
		if !b.n.AllowUnconfined {
			b.bad("config.seccomp", b.c.Seccomp, "this node allows default only")
		}
	default:
		b.bad("config.seccomp", b.c.Seccomp, "must be default or unconfined")
	}
	b.applied.Caps, b.applied.NoNewPrivs, b.applied.Seccomp = p.Effective, p.NoNewPrivs, p.Seccomp
}
