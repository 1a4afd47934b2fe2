// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package logdir opens the files of a log directory for those who write and
// read them. A task may be able to write to the directory, so nothing in it is
// trusted: a log file is a regular file with one name, in a directory that is
// no link. Everything else under such a name is passed over.
package logdir

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
)

// Open opens a directory that is no link: a task that may write to its parent
// could put one in its place.
func Open(dir string) (*os.Root, error) {
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

// Limit is above every index: at a file each millisecond it takes 34 years. A
// task may plant a file of any number and the highest counts, so what no log
// reaches by itself is not one of its files: nothing could come after it.
const Limit = 1 << 40

// Indices returns those of base's files, ascending.
func Indices(root *os.Root, base string) ([]int64, error) {
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

// Name returns the name of base's file n.
func Name(base string, n int64) string { return base + "." + strconv.FormatInt(n, 10) }

// Index returns n of "<base>.<n>". Anything else, also "+1" or "007" or a number
// from Limit on, is none.
func Index(name, base string) (n int64, ok bool) {
	if len(name) <= len(base)+1 || name[:len(base)] != base || name[len(base)] != '.' {
		return 0, false
	}
	digits := name[len(base)+1:]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n >= Limit || strconv.FormatInt(n, 10) != digits {
		return 0, false
	}
	return n, true
}

// OpenFile opens file n, which exists, never blocks and returns it with what
// it is. What is not a log file is fs.ErrNotExist.
func OpenFile(root *os.Root, base string, n int64, flag int) (*os.File, fs.FileInfo, error) {
	name := Name(base, n)
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	f, err := root.OpenFile(name, flag|openFlags, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && (!os.SameFile(before, st) || Links(st) > 1) {
		err = &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, st, nil
}
