// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
)

// collisions is how many names that are taken by something else are skipped.
const collisions = 16

// open makes r.out the file to write to: the newest there is while it has room,
// else a new one. The directory may be writable by the task, so nothing in it
// is trusted: only regular files with one name are continued, new ones are made
// exclusively.
//
// The order is safe at every point of a crash: old files go first, then the new
// one is made empty; a file that holds bytes is only ever appended to.
func (r *Rotator) open() error {
	root, err := openDir(r.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	have, err := indices(root, r.cfg.Base)
	if err != nil {
		return err
	}
	newest := r.n
	if len(have) > 0 {
		newest = max(newest, have[len(have)-1])
	}
	if newest >= 0 && !(r.next && newest == r.n) && r.resume(root, newest) {
		r.prune(root, have)
		return nil
	}
	r.n = newest + 1
	r.prune(root, have)
	for range collisions {
		r.step("create")
		f, err := root.OpenFile(r.name(r.n), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, r.cfg.Mode.Perm())
		if errors.Is(err, fs.ErrExist) {
			r.n++
			continue
		}
		if err != nil {
			r.n-- // not made: the next try takes the same name
			return err
		}
		r.step("own")
		r.own(f)
		r.out, r.size, r.next = f, 0, false
		r.step("made")
		return nil
	}
	return &fs.PathError{Op: "create", Path: r.cfg.Dir + "/" + r.name(r.n), Err: fs.ErrExist}
}

func (r *Rotator) name(n int64) string { return r.cfg.Base + "." + strconv.FormatInt(n, 10) }

// resume continues file n if it is one of ours and has room.
func (r *Rotator) resume(root *os.Root, n int64) bool {
	before, err := root.Lstat(r.name(n))
	if err != nil || !before.Mode().IsRegular() || links(before) > 1 {
		return false
	}
	f, err := root.OpenFile(r.name(n), os.O_RDWR|os.O_APPEND|openFlags, 0)
	if err != nil {
		return false
	}
	st, err := f.Stat()
	if err != nil || !os.SameFile(before, st) || st.Size() >= r.cfg.MaxSize {
		_ = f.Close()
		return false
	}
	r.own(f)
	r.out, r.n, r.size, r.next = f, n, st.Size(), false
	last := []byte{'\n'}
	if r.size > 0 {
		_, _ = f.ReadAt(last, r.size-1)
	}
	r.bol = last[0] == '\n'
	return true
}

// own gives the file its owner and mode. A failure is reported and costs no
// output.
func (r *Rotator) own(f *os.File) {
	st, err := f.Stat()
	if err == nil && st.Mode().Perm() != r.cfg.Mode.Perm() {
		err = f.Chmod(r.cfg.Mode.Perm())
	}
	if err == nil {
		err = chown(f, st, r.cfg.UID, r.cfg.GID)
	}
	if err != nil {
		r.soft = err
	}
}

// prune removes what is older than MaxFiles back from r.n.
func (r *Rotator) prune(root *os.Root, have []int64) {
	for _, i := range have {
		if i <= r.n-int64(r.cfg.MaxFiles) {
			r.step("remove")
			_ = root.Remove(r.name(i)) // looked for again at the next rotation
		}
	}
}

// openDir opens a directory that is no link: a task that may write to its
// parent could put one in its place.
func openDir(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	is, err := root.Stat(".")
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Lstat(dir); err == nil && !os.SameFile(is, named) {
			err = &fs.PathError{Op: "open", Path: dir, Err: errors.New("is a link, not a directory")}
		}
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

// indices returns those of base's regular files, ascending.
func indices(root *os.Root, base string) ([]int64, error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var have []int64
	for _, e := range entries {
		if n, ok := Index(e.Name(), base); ok && e.Type().IsRegular() {
			have = append(have, n)
		}
	}
	slices.Sort(have)
	return have, nil
}

// Index returns n of a file name "<base>.<n>" as a Rotator writes it. Anything
// else, also "+1" or "007", is none of its files.
func Index(name, base string) (n int64, ok bool) {
	if len(name) <= len(base)+1 || name[:len(base)] != base || name[len(base)] != '.' {
		return 0, false
	}
	digits := name[len(base)+1:]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n >= 1<<62 || strconv.FormatInt(n, 10) != digits {
		return 0, false
	}
	return n, true
}
