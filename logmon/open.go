// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"io/fs"
	"os"

	"github.com/nodekeep/nodekeep/logmon/internal/logdir"
)

// collisions is how many names that are taken by something else are skipped.
const collisions = 16

// open makes r.out the file to write to: the newest there is while it has room,
// else a new one, made exclusively.
//
// The order is safe at every point of a crash: old files go first, then the new
// one is made empty; a file that holds bytes is only ever appended to.
func (r *Rotator) open() error {
	root, err := logdir.Open(r.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	have, err := logdir.Indices(root, r.cfg.Base)
	if err != nil {
		return err
	}
	newest := r.n
	if len(have) > 0 {
		newest = max(newest, have[len(have)-1])
	}
	finished := r.next && newest == r.n
	if newest >= 0 && !finished && r.resume(root, newest) {
		r.prune(root, have, newest)
		return nil
	}
	if r.n != newest {
		r.n, r.next = newest, true // ours or not, it is passed
	}
	return r.create(root, have)
}

// create makes the file after r.n. On an error r.n stays, for the next try.
// Where the numbers end, which no log reaches but one with a planted file, it
// begins again at 0 and the files there are go.
func (r *Rotator) create(root *os.Root, have []int64) error {
	if r.n+collisions >= logdir.Limit {
		for _, i := range have {
			r.step("remove")
			_ = root.Remove(logdir.Name(r.cfg.Base, i))
		}
		r.n, have = -1, nil
	}
	for n := r.n + 1; n <= r.n+collisions; n++ {
		r.prune(root, have, n)
		name := logdir.Name(r.cfg.Base, n)
		r.step("create")
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, r.cfg.Mode.Perm())
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		r.step("own")
		st, err := f.Stat()
		r.own(f, st, err)
		r.out, r.n, r.next = f, n, false
		r.step("made")
		return nil
	}
	return &fs.PathError{Op: "create", Path: r.cfg.Dir + "/" + logdir.Name(r.cfg.Base, r.n+1), Err: fs.ErrExist}
}

// resume continues file n if it is one of ours and has room.
func (r *Rotator) resume(root *os.Root, n int64) bool {
	f, st, err := logdir.OpenFile(root, r.cfg.Base, n, os.O_RDWR)
	if err != nil {
		return false
	}
	if st.Size() >= r.cfg.MaxSize {
		_ = f.Close()
		return false
	}
	r.own(f, st, nil)
	r.out, r.n, r.next = f, n, false
	return true
}

// own gives the file its owner and mode. A failure is reported and costs no
// output.
func (r *Rotator) own(f *os.File, st fs.FileInfo, err error) {
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

// prune removes what is too old beside newest. What cannot be removed is looked
// for again at the next rotation.
func (r *Rotator) prune(root *os.Root, have []int64, newest int64) {
	for _, i := range have {
		if i <= newest-int64(r.cfg.MaxFiles) {
			r.step("remove")
			_ = root.Remove(logdir.Name(r.cfg.Base, i))
		}
	}
}
