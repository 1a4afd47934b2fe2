// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/nodekeep/nodekeep/spec"
)

// PutFile writes a file below a task's local directory, whole or not at all. The
// name is a slash-separated path in it; directories on the way are made. Neither
// the name nor a link that the task made leads out: that is an error. The file and
// the directories made belong to opts.UID and GID, as in BuildTask, which must have
// come before. A file that is there is replaced.
func (d *Dir) PutFile(ctx context.Context, task, name string, data []byte, mode fs.FileMode, opts TaskOptions) error {
	if err := spec.CheckName(task); err != nil {
		return fmt.Errorf("allocdir: task name: %w", err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !fs.ValidPath(name) || name == "." || !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("allocdir: %q is no file below %s: name a path without dots for directories", name, localName)
	}
	w, err := d.local(task)
	if err != nil {
		return fmt.Errorf("allocdir: write %s: %w", name, err)
	}
	defer w.close()
	root := w.dir()
	if opts.UID == 0 {
		opts.UID, opts.GID = os.Geteuid(), cmp.Or(opts.GID, os.Getegid())
	}
	if err := put(root, name, data, mode.Perm(), &tar.Header{Uid: opts.UID, Gid: opts.GID}); err != nil {
		return fmt.Errorf("allocdir: write %s: %w", name, err)
	}
	return nil
}

// local opens a task's local directory, on the way to which nothing is a link: the
// task's user may put one there.
func (d *Dir) local(task string) (*walker, error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return nil, err
	}
	w := &walker{dirs: []*os.Root{root}}
	for _, part := range []string{task, localName} {
		fi, err := w.dir().Lstat(part)
		if err == nil && !fi.IsDir() {
			err = fmt.Errorf("%w: %s is in the way: move it away", ErrNotDir, filepath.Join(d.path, task, localName))
		}
		if err == nil {
			err = w.down(part, fi)
		}
		if err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func put(root *os.Root, name string, data []byte, mode fs.FileMode, owner *tar.Header) error {
	if err := parents(root, path.Dir(name), owner); err != nil {
		return err
	}
	tmp := path.Join(path.Dir(name), ".nodekeep-new-"+path.Base(name))
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a crash
		return err
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	// On the open file: the task may put another one in the place of its name.
	if _, err = f.Write(data); err == nil {
		err = fchown(f, owner)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(tmp))
	}
	return nil
}

// parents makes a directory and those above it where they are missing.
func parents(root *os.Root, dir string, owner *tar.Header) error {
	if dir == "." {
		return nil
	}
	if err := parents(root, path.Dir(dir), owner); err != nil {
		return err
	}
	switch err := root.Mkdir(dir, 0o755); {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return lchown(root, dir, owner)
}
