// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

const (
	maxStacked = 64 // mounts on one directory that are taken off one by one
	maxPasses  = 8  // over a directory that somebody keeps filling
	maxErrors  = 16 // of one directory that are told
	maxDepth   = 64 // directories open at once; deeper ones are moved up first
)

func (d *Dir) remove(ctx context.Context, parent string) error {
	return removeTree(ctx, d.log, parent, d.cfg.AllocID)
}

func (d *Dir) dropSecrets(tasks []string) error {
	alloc, err := unix.Open(d.path, openFlags, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocdir: open %s: %w", d.path, err)
	}
	defer unix.Close(alloc)
	r := remover{log: d.log, root: os.Geteuid() == 0}
	var errs []error
	for _, name := range tasks {
		errs = append(errs, r.dropSecrets(alloc, name, filepath.Join(d.path, name)))
	}
	return errors.Join(errs...)
}

// dropSecrets takes off what is mounted on a task's secrets directory.
func (r *remover) dropSecrets(alloc int, task, path string) error {
	dir, err := openHere(alloc, task)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV: // never made, or no longer ours
		return nil
	default:
		return fmt.Errorf("allocdir: open %s: %w", path, err)
	}
	defer unix.Close(dir)
	secrets, err := r.enter(dir, secretsName, filepath.Join(path, secretsName))
	if secrets >= 0 {
		unix.Close(secrets)
	}
	return err
}

func removeTree(ctx context.Context, log hclog.Logger, parent, name string) error {
	fd, err := unix.Open(parent, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocdir: open %s: %w", parent, err)
	}
	defer unix.Close(fd)
	r := remover{log: log, root: os.Geteuid() == 0}
	return r.tree(ctx, fd, name, filepath.Join(parent, name), 0)
}

// remover deletes directories without ever entering a mount: a mount is taken off
// when it is met, and what cannot be taken off stays.
type remover struct {
	log   hclog.Logger // nil is silent
	root  bool         // modes do not stop us
	top   int          // the directory that too deep ones are moved to
	moved int
}

// tree removes the directory or file name in parent.
func (r *remover) tree(ctx context.Context, parent int, name, path string, depth int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	fd, err := r.enter(parent, name, path)
	if err != nil {
		return err
	}
	if fd < 0 { // no directory, or nothing at all
		return r.unlink(ctx, parent, name, path)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if depth == 0 {
		r.top = fd
	}
	for range maxPasses {
		for moved := -1; moved != r.moved; { // the top again while there is more below
			moved = r.moved
			if _, err := r.pass(ctx, f, fd, depth); err != nil {
				return err
			}
		}
		switch err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err {
		case nil, unix.ENOENT:
			return nil
		case unix.ENOTEMPTY, unix.EEXIST: // somebody made something meanwhile
		case unix.EBUSY:
			return busy(path)
		default:
			return fmt.Errorf("allocdir: remove %s: %w", path, err)
		}
	}
	return fmt.Errorf("%w: %s is being written to: end the process that does it", ErrBusy, path)
}

// contents removes all that is in the open directory fd, but not the directory.
func (r *remover) contents(ctx context.Context, fd int, path string) error {
	fd, err := unix.Openat(fd, ".", openFlags, 0)
	if err != nil {
		return fmt.Errorf("allocdir: open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	r.top = fd
	for range maxPasses {
		if n, err := r.pass(ctx, f, fd, 0); n == 0 || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s is being written to: end the process that does it", ErrBusy, path)
}

// pass removes what one reading of a directory shows, as much as it can, and
// says how many entries that were.
func (r *remover) pass(ctx context.Context, f *os.File, fd, depth int) (n int, err error) {
	if !r.root {
		_ = unix.Fchmod(fd, 0o700) // a task of our own user may have closed it
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("allocdir: list %s: %w", f.Name(), err)
	}
	var errs []error
	for {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			if err := r.entry(ctx, fd, e, f.Name(), depth); err != nil {
				errs = append(errs, err)
			}
		}
		n += len(entries)
		if err != nil && err != io.EOF {
			errs = append(errs, fmt.Errorf("allocdir: list: %w", err))
		}
		if err != nil || len(errs) > maxErrors {
			return n, errors.Join(errs...)
		}
	}
}

func (r *remover) entry(ctx context.Context, fd int, e os.DirEntry, dir string, depth int) error {
	path := filepath.Join(dir, e.Name())
	if !e.IsDir() {
		return r.unlink(ctx, fd, e.Name(), path)
	}
	if depth < maxDepth {
		return r.tree(ctx, fd, e.Name(), path, depth+1)
	}
	for {
		r.moved++
		err := unix.Renameat2(fd, e.Name(), r.top, ".nodekeep-removing-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		switch err {
		case nil, unix.ENOENT:
			return nil
		case unix.EEXIST: // of an interrupted removal
			continue
		case unix.EBUSY, unix.EXDEV: // a mount: it is taken off where it is
			return r.tree(ctx, fd, e.Name(), path, depth+1)
		default:
			return fmt.Errorf("allocdir: move %s up: %w", path, err)
		}
	}
}

// enter opens the directory name after taking off what is mounted on it. It
// returns -1 for anything that is no directory.
func (r *remover) enter(parent int, name, path string) (int, error) {
	for range maxStacked {
		fd, err := openHere(parent, name)
		if err == unix.EACCES {
			// A task of our own user may have closed it.
			if err = chmodHere(parent, name); err == nil {
				fd, err = openHere(parent, name)
			}
		}
		switch err {
		case nil:
			return fd, nil
		case unix.ENOTDIR, unix.ELOOP, unix.ENOENT:
			return -1, nil
		case unix.EXDEV:
			if err := r.unmount(parent, name, path); err != nil {
				return -1, err
			}
		default:
			return -1, fmt.Errorf("allocdir: open %s: %w", path, err)
		}
	}
	return -1, fmt.Errorf("%w: %s: more than %d mounts on one directory", ErrBusy, path, maxStacked)
}

// unlink removes a file, link, FIFO or the like; one that is mounted on is freed first.
func (r *remover) unlink(ctx context.Context, parent int, name, path string) error {
	for range maxStacked {
		switch err := unix.Unlinkat(parent, name, 0); err {
		case nil, unix.ENOENT:
			return nil
		case unix.EBUSY:
			if err := r.unmount(parent, name, path); err != nil {
				return err
			}
		case unix.EISDIR: // it became one, or the file system does not tell types
			return r.tree(ctx, parent, name, path, maxDepth)
		default:
			return fmt.Errorf("allocdir: remove %s: %w", path, err)
		}
	}
	return busy(path)
}

// unmount takes the topmost mount off name, those inside it first.
func (r *remover) unmount(parent int, name, path string) error {
	target := procPath(parent) + "/" + name
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err == unix.EBUSY {
		unmountBelow(parent, name)
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	}
	switch err {
	case nil:
		if r.log != nil && filepath.Base(path) != secretsName {
			r.log.Warn("took off a mount that was left in an alloc directory", "path", path)
		}
		return nil
	case unix.EINVAL, unix.ENOENT: // somebody else was faster
		return nil
	case unix.EBUSY:
		return busy(path)
	default:
		return fmt.Errorf("allocdir: unmount %s: %w", path, err)
	}
}

// unmountBelow takes off the mounts inside the mount on name, the deepest first.
// What cannot be taken off shows when the outer one stays busy.
func unmountBelow(parent int, name string) {
	path, err := os.Readlink(procPath(parent))
	if err != nil {
		return
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for _, rel := range mountsBelow(info, filepath.Join(path, name)) {
		dir, last := filepath.Split(filepath.Join(name, rel))
		fd, err := unix.Openat2(parent, filepath.Clean(dir), &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err != nil {
			continue
		}
		_ = unix.Unmount(procPath(fd)+"/"+last, unix.UMOUNT_NOFOLLOW)
		unix.Close(fd)
	}
}

// mountsBelow returns the mount points strictly below dir, relative to it, in the
// order in which they can be taken off: the reverse of the order of mounting.
func mountsBelow(mountinfo []byte, dir string) []string {
	var rel []string
	for line := range bytes.Lines(mountinfo) {
		f := strings.Fields(string(line))
		if len(f) < 5 {
			continue
		}
		if r, ok := strings.CutPrefix(unescape(f[4]), dir+"/"); ok {
			rel = append(rel, r)
		}
	}
	slices.Reverse(rel)
	return rel
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// openHere opens the directory name in parent, or fails with EXDEV if something
// is mounted on it.
func openHere(parent int, name string) (int, error) {
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   openFlags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != unix.ENOSYS && err != unix.EPERM {
		return fd, err
	}
	return openCompared(parent, name)
}

// openCompared does the same before Linux 5.6, or where a sandbox refuses openat2.
func openCompared(parent int, name string) (int, error) {
	fd, err := unix.Openat(parent, name, openFlags, 0)
	if err != nil {
		return -1, err
	}
	outer, inner := node{fd: parent}, node{fd: fd}
	if err = errors.Join(outer.stat(), inner.stat()); err == nil && inner.on(&outer) {
		err = unix.EXDEV
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// chmodHere makes a directory of our own accessible to us, following no link.
func chmodHere(parent int, name string) error {
	fd, err := unix.Openat(parent, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(procPath(fd), 0o700)
}

func busy(path string) error {
	return fmt.Errorf("%w: %s is mounted and in use: end the process that uses it (see `fuser -m`) and destroy again", ErrBusy, path)
}
