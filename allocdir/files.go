// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// maxLinks is how many links one path may lead over.
const maxLinks = 40

// Open opens a file for reading. The name is a slash-separated path below the
// alloc's directory, such as "alloc/logs/web.stdout.0" or "web/local/conf". It may
// lead over links, but not out of the alloc (an error) nor into a task's secrets
// or private directory (ErrSecret). Only regular files can be opened (ErrNotFile),
// so reading neither blocks nor changes anything.
func (d *Dir) Open(name string) (*os.File, error) {
	w, err := d.walk(name)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if !w.info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s", ErrNotFile, name)
	}
	f, err := w.dir().OpenFile(w.last, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, err
	}
	// A task may have put another file, or a link to one, in its place.
	if fi, err := f.Stat(); err != nil || !os.SameFile(fi, w.info) {
		f.Close()
		return nil, fmt.Errorf("allocdir: %s was replaced while it was opened: %w", name, errors.Join(err, fs.ErrInvalid))
	}
	return f, nil
}

// ReadDir lists a directory, named as in Open, sorted by name. Links are listed,
// not followed.
func (d *Dir) ReadDir(name string) ([]fs.FileInfo, error) {
	w, err := d.walk(name)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if w.last != "" {
		return nil, fmt.Errorf("%w: %s", ErrNotDir, name)
	}
	f, err := w.dir().Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	infos := make([]fs.FileInfo, 0, len(names))
	for _, n := range names {
		if fi, err := w.dir().Lstat(n); err == nil { // else it is gone again
			infos = append(infos, fi)
		}
	}
	return infos, nil
}

// Stat describes what a name, as in Open, leads to.
func (d *Dir) Stat(name string) (fs.FileInfo, error) {
	w, err := d.walk(name)
	if err != nil {
		return nil, err
	}
	defer w.close()
	return w.info, nil
}

// walker is where a walk has come to: open directories from the alloc's down,
// each a real directory below the one before, and what the last step found.
type walker struct {
	dirs  []*os.Root
	names []string    // of dirs[1:]
	last  string      // in the last directory; "" is that directory itself
	info  fs.FileInfo // of what was found
}

func (w *walker) dir() *os.Root { return w.dirs[len(w.dirs)-1] }

func (w *walker) close() {
	for _, r := range w.dirs {
		r.Close()
	}
}

// walk resolves a name step by step. Links are resolved here and not by the
// system, so that every step is known: whether a directory is secret depends on
// where it is, which the end of a path followed by others does not tell.
func (d *Dir) walk(name string) (*walker, error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return nil, err
	}
	w := &walker{dirs: []*os.Root{root}}
	if w.info, err = root.Stat("."); err == nil {
		err = w.follow(name)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *walker) follow(name string) error {
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if part == "" || part == "." {
			continue
		}
		if w.last != "" {
			return fmt.Errorf("%w: %s in %s", ErrNotDir, w.last, name)
		}
		target, err := w.step(part)
		if err != nil {
			return fmt.Errorf("allocdir: %s: %w", name, err)
		}
		if target != "" {
			if links++; links > maxLinks {
				return fmt.Errorf("allocdir: %s leads over more than %d links", name, maxLinks)
			}
			todo = append(strings.Split(target, "/"), todo...)
		}
	}
	return nil
}

// step goes on to part. It returns the target if that is a link.
func (w *walker) step(part string) (link string, err error) {
	if part == ".." {
		return "", w.up()
	}
	if strings.ContainsAny(part, "\\\x00") {
		return "", fmt.Errorf("%q cannot be a file here: %w", part, fs.ErrInvalid)
	}
	if w.secret(part) {
		return "", ErrSecret
	}
	fi, err := w.dir().Lstat(part)
	if err != nil {
		return "", err
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := w.dir().Readlink(part)
		if err == nil && (target == "" || strings.HasPrefix(target, "/") || strings.Contains(target, "\\")) {
			err = fmt.Errorf("link %s leads out of the alloc's directory: %w", part, fs.ErrPermission)
		}
		return target, err
	case !fi.IsDir():
		w.last, w.info = part, fi
		return "", nil
	}
	return "", w.down(part, fi)
}

func (w *walker) down(part string, fi fs.FileInfo) error {
	r, err := openSub(w.dir(), part)
	if err != nil {
		return err
	}
	now, err := r.Stat(".")
	if err == nil && !os.SameFile(now, fi) {
		err = fmt.Errorf("%s was replaced meanwhile: %w", part, fs.ErrInvalid)
	}
	if err != nil {
		r.Close()
		return err
	}
	w.dirs, w.names, w.info = append(w.dirs, r), append(w.names, part), now
	return nil
}

func (w *walker) up() error {
	if len(w.names) == 0 {
		return fmt.Errorf("path leads out of the alloc's directory: %w", fs.ErrPermission)
	}
	w.dir().Close()
	w.dirs, w.names = w.dirs[:len(w.dirs)-1], w.names[:len(w.names)-1]
	var err error
	w.info, err = w.dir().Stat(".")
	return err
}

// secret says whether part, in the directory where the walk is, is closed to
// readers. Case is ignored, as some file systems do.
func (w *walker) secret(part string) bool {
	return len(w.names) == 1 && !strings.EqualFold(w.names[0], sharedName) &&
		(strings.EqualFold(part, secretsName) || strings.EqualFold(part, privateName))
}
