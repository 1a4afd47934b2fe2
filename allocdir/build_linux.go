// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openFlags open a directory of the tree: never a link, never a file.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// want is how one directory should be. uid and gid below 0 leave the owner.
type want struct {
	name     string
	mode     uint32
	uid, gid int
}

// node is an open directory of the tree with what was seen when it was opened.
type node struct {
	fd      int
	path    string // for messages
	st      unix.Statx_t
	created bool
	foreign bool // the owner could not be set
}

func (n *node) close() { unix.Close(n.fd) }

func (d *Dir) build() error {
	alloc, err := d.openAlloc()
	if err != nil {
		return err
	}
	defer alloc.close()
	return d.buildShared(alloc)
}

// openAlloc makes the root and the alloc's directory where they are missing.
func (d *Dir) openAlloc() (*node, error) {
	root, err := openRoot(d.cfg.Root, 0o711)
	if err != nil {
		return nil, err
	}
	defer root.close()
	return root.ensure(want{d.cfg.AllocID, 0o755, -1, -1})
}

func (d *Dir) buildShared(alloc *node) error {
	shared, err := alloc.ensure(want{sharedName, 0o755, -1, -1})
	if err != nil {
		return err
	}
	defer shared.close()
	for _, w := range [...]want{
		{dataName, 0o777, -1, -1},
		{logsName, 0o1777, -1, -1}, // no task removes another's
		{tmpName, 0o1777, -1, -1},
	} {
		n, err := shared.ensure(w)
		if err != nil {
			return err
		}
		n.close()
	}
	return nil
}

func (d *Dir) buildTask(ctx context.Context, name string, opts TaskOptions) (rep Report, err error) {
	alloc, err := d.openAlloc()
	if err != nil {
		return rep, err
	}
	defer alloc.close()
	if alloc.created {
		if err := d.buildShared(alloc); err != nil {
			return rep, err
		}
	}
	// Commands are looked up in local and in the task's directory, so that nobody
	// but the task may write there.
	top, local := uint32(0o755), uint32(0o700)
	if opts.UID < 0 {
		top, local = 0o777, 0o777
	}
	task, err := alloc.ensure(want{name, top, opts.UID, opts.GID})
	if err != nil {
		return rep, err
	}
	defer task.close()
	rep.Created = task.created
	for _, w := range [...]want{
		{localName, local, opts.UID, opts.GID},
		{tmpName, 0o1777, opts.UID, opts.GID},
	} {
		n, err := task.ensure(w)
		if err != nil {
			return rep, err
		}
		n.close()
	}
	if task.foreign {
		rep.weaker("directories belong to uid %d instead of %d: changing owners needs CAP_CHOWN", os.Geteuid(), opts.UID)
	}
	if err := d.buildPrivate(task, name, &rep); err != nil {
		return rep, err
	}
	return rep, d.buildSecrets(ctx, task, opts, &rep)
}

// buildPrivate makes the agent's own directory of a task.
func (d *Dir) buildPrivate(task *node, name string, rep *Report) error {
	parent := task
	if d.cfg.Private != "" {
		private, err := openRoot(d.cfg.Private, 0o700)
		if err != nil {
			return err
		}
		defer private.close()
		if rep.PrivateTmpfs, err = private.isTmpfs(); err != nil {
			return err
		}
		if !rep.PrivateTmpfs {
			rep.weaker("private is on disk: no tmpfs is mounted on %s", d.cfg.Private)
		}
		alloc, err := private.ensure(want{d.cfg.AllocID, 0o700, -1, -1})
		if err != nil {
			return err
		}
		defer alloc.close()
		parent = alloc
	} else {
		name = privateName
		rep.weaker("private is on disk: no private tmpfs was given")
	}
	n, err := parent.ensure(want{name, 0o700, -1, -1})
	if err != nil {
		return err
	}
	n.close()
	return nil
}

// ensure makes the directory w in n, or sets right the one that is there, and
// opens it. All of it happens on descriptors: whatever a task puts in the place
// of a name meanwhile is refused or is the task's own directory.
func (n *node) ensure(w want) (*node, error) {
	c, err := n.open(w.name)
	if err != nil {
		return nil, err
	}
	if err := c.set(w); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// on says whether something is mounted on n, a directory in parent.
func (n *node) on(parent *node) bool { return n.st.Mnt_id != parent.st.Mnt_id }

// open makes the directory name where it is missing and opens it.
func (n *node) open(name string) (*node, error) {
	c := &node{path: filepath.Join(n.path, name)}
	err := unix.Mkdirat(n.fd, name, 0o700)
	if err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("allocdir: make %s: %w", c.path, err)
	}
	c.created = err == nil
	c.fd, err = unix.Openat(n.fd, name, openFlags, 0)
	if err == unix.ENOTDIR || err == unix.ELOOP {
		return nil, fmt.Errorf("%w: %s is in the way: move it away", ErrNotDir, c.path)
	}
	if err != nil {
		return nil, fmt.Errorf("allocdir: open %s: %w", c.path, err)
	}
	return c.seen()
}

// seen ends the opening of a node.
func (n *node) seen() (*node, error) {
	if err := n.stat(); err != nil {
		n.close()
		return nil, fmt.Errorf("allocdir: stat %s: %w", n.path, err)
	}
	return n, nil
}

// stat asks for what set and on need, in one call.
func (n *node) stat() error {
	err := unix.Statx(n.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC,
		unix.STATX_MODE|unix.STATX_UID|unix.STATX_GID|unix.STATX_MNT_ID, &n.st)
	if err == nil && n.st.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		n.st.Mnt_id, err = fdinfoMount(n.fd)
	}
	return err
}

// set gives the directory its owner and mode.
func (n *node) set(w want) error {
	if w.uid >= 0 && (int(n.st.Uid) != w.uid || int(n.st.Gid) != w.gid) {
		switch err := unix.Fchown(n.fd, w.uid, w.gid); err {
		case nil:
		case unix.EPERM:
			n.foreign = true
		default:
			return fmt.Errorf("allocdir: owner of %s: %w", n.path, err)
		}
	}
	if uint32(n.st.Mode)&0o7777 != w.mode {
		if err := unix.Fchmod(n.fd, w.mode); err != nil {
			return fmt.Errorf("allocdir: mode of %s: %w", n.path, err)
		}
	}
	return nil
}

// openRoot opens a directory that the agent names, making it and its parents. A
// directory that is there keeps its mode.
func openRoot(path string, mode uint32) (*node, error) {
	n := &node{path: path}
	var err error
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	n.fd, err = unix.Open(path, flags, 0)
	if err == unix.ENOENT {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("allocdir: make parents: %w", err)
		}
		if err := unix.Mkdir(path, 0o700); err != nil && err != unix.EEXIST {
			return nil, fmt.Errorf("allocdir: make %s: %w", path, err)
		}
		n.created = true
		n.fd, err = unix.Open(path, flags, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("allocdir: open %s: %w", path, err)
	}
	if n.created {
		if err := unix.Fchmod(n.fd, mode); err != nil {
			n.close()
			return nil, fmt.Errorf("allocdir: mode of %s: %w", path, err)
		}
	}
	return n.seen()
}

// fdinfoMount reads the id of the mount a descriptor lies on.
func fdinfoMount(fd int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	return parseMountID(data)
}

var errNoMountID = errors.New("allocdir: the kernel does not tell mount ids")
