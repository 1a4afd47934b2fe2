// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// tmpfsFlags are those of every tmpfs made here; tmpfsSeen are the same as
// statfs tells them.
const (
	tmpfsFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	tmpfsSeen  = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	// inodesPerMB keeps empty files from eating the memory that size cannot bound.
	inodesPerMB = 1024
)

// tmpfs is how a tmpfs should be.
type tmpfs struct {
	sizeMB int
	mode   uint32
	uid    int // below 0: root
	gid    int
}

func (t tmpfs) options() string {
	o := fmt.Sprintf("size=%dm,nr_inodes=%d,mode=%04o", t.sizeMB, t.sizeMB*inodesPerMB, t.mode)
	if t.uid >= 0 {
		o += fmt.Sprintf(",uid=%d,gid=%d", t.uid, t.gid)
	}
	return o
}

// buildSecrets makes the task's secrets directory and mounts its tmpfs.
func (d *Dir) buildSecrets(ctx context.Context, task *node, opts TaskOptions, rep *Report) error {
	t := tmpfs{sizeMB: opts.SecretsMB, mode: 0o700, uid: opts.UID, gid: opts.GID}
	if opts.UID < 0 {
		t.mode = 0o777
	}
	secrets, mounted, why, err := task.mountTmpfs(ctx, secretsName, t)
	if err != nil {
		return err
	}
	defer secrets.close()
	rep.Mounted = mounted
	rep.SecretsTmpfs = why == nil
	if why != nil {
		rep.weaker("secrets are on disk: mounting a tmpfs needs CAP_SYS_ADMIN: %v", why)
	}
	if mounted && !task.created {
		d.log.Info("secrets tmpfs was missing: mounted again", "alloc_id", d.cfg.AllocID, "path", secrets.path)
	}
	return nil
}

// mountTmpfs makes the directory name in n, mounts a tmpfs on it unless one is
// there, and returns it open, on the tmpfs. why tells what kept a mount from being
// made where this process is not allowed to or the kernel cannot; the directory is
// then an ordinary one of the same owner and mode.
func (n *node) mountTmpfs(ctx context.Context, name string, t tmpfs) (c *node, mounted bool, why, err error) {
	if c, err = n.open(name); err != nil {
		return nil, false, nil, err
	}
	there := c.on(n)
	if !there {
		why, err = c.mount(ctx, t)
		if err != nil || why == nil {
			c.close() // it lies below the mount now
		}
		if err != nil {
			return nil, false, nil, err
		}
		if mounted = why == nil; mounted {
			if c, err = n.open(name); err != nil {
				return nil, false, nil, err
			}
		}
	}
	if err = c.set(want{name, t.mode, t.uid, t.gid}); err == nil && there {
		err = c.adjust(t)
	}
	if err != nil {
		c.close()
		return nil, false, nil, err
	}
	return c, mounted, why, nil
}

// mount mounts a tmpfs on n, which must not be a mount. What lies below it then is
// removed: a secret that was written while the tmpfs was away must not stay on disk.
func (n *node) mount(ctx context.Context, t tmpfs) (why, err error) {
	target := procPath(n.fd)
	// Without swap first: Linux 6.4, and not in a user namespace.
	err = unix.Mount("tmpfs", target, "tmpfs", tmpfsFlags, t.options()+",noswap")
	if err != nil {
		err = unix.Mount("tmpfs", target, "tmpfs", tmpfsFlags, t.options())
	}
	switch {
	case err == nil:
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOSYS):
		return err, nil
	default:
		return nil, fmt.Errorf("allocdir: mount tmpfs on %s: %w", n.path, err)
	}
	if n.created {
		return nil, nil
	}
	r := remover{root: os.Geteuid() == 0}
	if err := r.contents(ctx, n.fd, n.path); err != nil {
		// The next try must meet it again.
		return nil, errors.Join(err, unix.Unmount(n.path, unix.UMOUNT_NOFOLLOW))
	}
	return nil, nil
}

// adjust gives a tmpfs that is there its size and flags. Something else that is
// mounted in its place is an error: it may be a disk.
func (n *node) adjust(t tmpfs) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(n.fd, &st); err != nil {
		return fmt.Errorf("allocdir: statfs %s: %w", n.path, err)
	}
	if st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("allocdir: %s is mounted, but is no tmpfs: unmount it", n.path)
	}
	size := st.Blocks * uint64(st.Bsize)
	if st.Type == unix.RAMFS_MAGIC || size == uint64(t.sizeMB)<<20 && st.Flags&tmpfsSeen == tmpfsSeen {
		return nil
	}
	opts := fmt.Sprintf("size=%dm,nr_inodes=%d", t.sizeMB, t.sizeMB*inodesPerMB)
	if err := unix.Mount("", procPath(n.fd), "", unix.MS_REMOUNT|tmpfsFlags, opts); err != nil {
		return fmt.Errorf("allocdir: resize the tmpfs %s to %d MiB: %w", n.path, t.sizeMB, err)
	}
	return nil
}

func (n *node) isTmpfs() (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(n.fd, &st); err != nil {
		return false, fmt.Errorf("allocdir: statfs %s: %w", n.path, err)
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC, nil
}

// procPath names an open directory so that no link can be put in its way.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func parseMountID(fdinfo []byte) (uint64, error) {
	for line := range bytes.Lines(fdinfo) {
		if v, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return strconv.ParseUint(string(bytes.TrimSpace(v)), 10, 64)
		}
	}
	return 0, errNoMountID
}

// MountPrivate makes dir and mounts the agent-wide private tmpfs on it, 0700. Size 0
// is DefaultPrivateMB. It may be repeated, but not at the same time, and never
// stacks; what an earlier agent left on the tmpfs stays. ErrOnDisk says why there is
// no tmpfs; the directory is usable all the same.
func MountPrivate(ctx context.Context, dir string, sizeMB int) error {
	if sizeMB <= 0 {
		sizeMB = DefaultPrivateMB
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("allocdir: path of the private directory: %w", err)
	}
	parent, err := openRoot(filepath.Dir(dir), 0o700)
	if err != nil {
		return err
	}
	defer parent.close()
	n, _, why, err := parent.mountTmpfs(ctx, filepath.Base(dir), tmpfs{sizeMB: sizeMB, mode: 0o700, uid: -1, gid: -1})
	if err != nil {
		return err
	}
	n.close()
	if why != nil {
		return fmt.Errorf("%w: mount on %s: %w", ErrOnDisk, dir, why)
	}
	return nil
}

// UnmountPrivate unmounts and removes what MountPrivate made, with all that is in
// it. ErrBusy while a process uses it; not mounted, or not there, is no error.
func UnmountPrivate(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("allocdir: path of the private directory: %w", err)
	}
	return removeTree(ctx, nil, filepath.Dir(dir), filepath.Base(dir))
}
