// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// maxCopy is the size up to which a file of the host is copied, not mounted.
const maxCopy = 1 << 20

// layout is a root that is being made.
//
//	Dir            tmpfs, of the creator's mount namespace (rootless: a plain directory)
//	Dir            the root itself, without an image; else
//	Dir/upper,work what lies above the image: places to mount on, generated files
//	Dir/root       the overlay: the root
type layout struct {
	rootfs string   // what becomes /
	top    *os.Root // where places and files are made: nobody else's hand was in it
	binds  []Mount  // read-only, of the entries
}

// layOut makes the root of a container but for its mounts.
func layOut(s Spec) (layout, error) {
	r := s.Root
	l := layout{rootfs: r.Dir}
	if err := l.ground(s); err != nil {
		return l, err
	}
	top := r.Dir
	if r.Image != "" {
		top = r.Dir + "/upper"
		for _, d := range []string{top, r.Dir + "/work", r.Dir + "/root"} {
			if err := os.Mkdir(d, 0o755); err != nil {
				return l, err
			}
		}
	}
	var err error
	if l.top, err = os.OpenRoot(top); err != nil {
		return l, err
	}
	err = l.fill(s)
	if err == nil && r.Image != "" {
		l.rootfs = r.Dir + "/root"
		err = overlay(s)
	}
	return l, err
}

// ground makes the empty directory that all is built on.
func (l *layout) ground(s Spec) error {
	if s.Rootless {
		if err := os.RemoveAll(s.Root.Dir); err != nil {
			return err
		}
		return os.MkdirAll(s.Root.Dir, 0o755)
	}
	if err := os.MkdirAll(s.Root.Dir, 0o700); err != nil {
		return err
	}
	size := int64(64) // copies of files, and places to mount on
	if s.Root.Writable && s.Root.SizeMB > 0 {
		size = s.Root.SizeMB
	}
	data := fmt.Sprintf("mode=0755,size=%dm", size)
	if err := unix.Mount("tmpfs", s.Root.Dir, "tmpfs", unix.MS_NODEV|suid(s), data); err != nil {
		return &fs.PathError{Op: "mount a tmpfs on", Path: s.Root.Dir, Err: err}
	}
	return nil
}

// suid is MS_NOSUID, unless the task may run setuid programs.
func suid(s Spec) uintptr {
	if s.Process.NoNewPrivs {
		return unix.MS_NOSUID
	}
	return 0
}

// overlay lays what was made over the image, of which nothing is changed.
func overlay(s Spec) error {
	base, err := unix.Open(s.Root.Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: s.Root.Base, Err: err}
	}
	defer func() { _ = unix.Close(base) }()
	// The task can write there: no link leads out, and what was opened is what is
	// mounted.
	fd, err := unix.Openat2(base, s.Root.Image, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return &fs.PathError{Op: "image", Path: s.Root.Image, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	data := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=%s/upper,workdir=%[2]s/work", fd, s.Root.Dir)
	if err := unix.Mount("overlay", s.Root.Dir+"/root", "overlay", unix.MS_NODEV|suid(s), data); err != nil {
		return &fs.PathError{Op: "overlay over image", Path: s.Root.Image, Err: err}
	}
	return nil
}

// fill makes places, links and files.
func (l *layout) fill(s Spec) error {
	for _, d := range s.Root.Dirs {
		if err := l.dir(d); err != nil {
			return err
		}
	}
	for _, e := range s.Root.Entries {
		if err := l.entry(e); err != nil {
			return fmt.Errorf("%s of the host: %w", e.Source, err)
		}
	}
	for _, f := range s.Root.Files {
		_ = l.top.Remove(f.Path[1:])
		if err := l.file(f.Path, strings.NewReader(f.Text), 0o644); err != nil {
			return err
		}
	}
	if s.Root.Image == "" {
		for link, to := range map[string]string{"var/tmp": "../tmp", "var/run": "../run"} {
			if err := l.top.Symlink(to, link); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	for _, m := range s.Mounts {
		if err := l.place(m); err != nil {
			return fmt.Errorf("place for the mount at %s: %w", m.Target, err)
		}
	}
	return nil
}

func (l *layout) dir(p string) error {
	if p == "/" {
		return nil
	}
	return l.top.MkdirAll(p[1:], 0o755)
}

// place makes what a mount is put on, where it is not there. A place behind a link
// is the library's to find.
func (l *layout) place(m Mount) error {
	if m.Source != "" {
		st, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			if _, err := l.top.Stat(m.Target[1:]); err == nil {
				return nil
			}
			return l.file(m.Target, strings.NewReader(""), 0o644)
		}
	}
	if _, err := l.top.Lstat(m.Target[1:]); err == nil {
		return nil
	}
	return l.dir(m.Target)
}

// entry brings a path of the host in: see Entry.
func (l *layout) entry(e Entry) error {
	st, err := os.Lstat(e.Source)
	if err == nil && st.Mode()&fs.ModeSymlink != 0 && e.Source == e.Target {
		to, err := os.Readlink(e.Source)
		if err != nil {
			return err
		}
		if err := l.dir(path.Dir(e.Target)); err != nil {
			return err
		}
		return l.top.Symlink(to, e.Target[1:])
	}
	if err == nil && st.Mode()&fs.ModeSymlink != 0 {
		st, err = os.Stat(e.Source)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir():
		l.binds = append(l.binds, Mount{Source: e.Source, Target: e.Target, ReadOnly: true})
		return l.dir(e.Target)
	case !st.Mode().IsRegular() || st.Mode()&0o004 == 0:
		return nil
	case st.Size() > maxCopy:
		l.binds = append(l.binds, Mount{Source: e.Source, Target: e.Target, ReadOnly: true})
		return l.file(e.Target, strings.NewReader(""), 0o644)
	}
	f, err := os.Open(e.Source)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return l.file(e.Target, io.LimitReader(f, maxCopy), st.Mode().Perm()&0o755)
}

func (l *layout) file(target string, text io.Reader, mode fs.FileMode) error {
	if err := l.dir(path.Dir(target)); err != nil {
		return err
	}
	f, err := l.top.OpenFile(target[1:], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, text)
	return errors.Join(err, f.Close())
}

// mountFlags are those a source has, so that a bind does not lift them.
func mountFlags(source string) (flags int) {
	var st unix.Statfs_t
	if unix.Statfs(source, &st) != nil {
		return 0
	}
	for bit, ms := range map[int64]int{unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV} {
		if int64(st.Flags)&bit != 0 {
			flags |= ms
		}
	}
	return flags
}
