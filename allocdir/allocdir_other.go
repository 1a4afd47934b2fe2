// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package allocdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

func (d *Dir) build() error {
	if err := os.MkdirAll(d.cfg.Root, 0o711); err != nil {
		return fmt.Errorf("allocdir: make root: %w", err)
	}
	root, err := os.OpenRoot(d.cfg.Root)
	if err != nil {
		return fmt.Errorf("allocdir: open root: %w", err)
	}
	defer root.Close()
	id := d.cfg.AllocID
	shared := filepath.Join(id, sharedName)
	return errors.Join(
		ensure(root, id, 0o755), ensure(root, shared, 0o755),
		ensure(root, filepath.Join(shared, dataName), 0o777),
		ensure(root, filepath.Join(shared, logsName), 0o777),
		ensure(root, filepath.Join(shared, tmpName), 0o777|fs.ModeSticky))
}

func (d *Dir) buildTask(_ context.Context, name string, opts TaskOptions) (rep Report, err error) {
	if err := d.build(); err != nil {
		return rep, err
	}
	alloc, err := os.OpenRoot(d.path)
	if err != nil {
		return rep, fmt.Errorf("allocdir: open %s: %w", d.path, err)
	}
	defer alloc.Close()
	if _, err := alloc.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		rep.Created = true
	}
	secrets := fs.FileMode(0o700)
	if opts.UID < 0 {
		secrets = 0o777
	}
	err = errors.Join(
		ensure(alloc, name, 0o777),
		ensure(alloc, filepath.Join(name, localName), 0o777),
		ensure(alloc, filepath.Join(name, secretsName), secrets),
		ensure(alloc, filepath.Join(name, tmpName), 0o777|fs.ModeSticky))
	if err == nil {
		err = d.buildPrivate(alloc, name)
	}
	rep.weaker("secrets and private are on disk: there is no tmpfs on %s", runtime.GOOS)
	if opts.UID >= 0 && runtime.GOOS != "windows" && opts.UID != os.Geteuid() {
		rep.weaker("directories belong to uid %d instead of %d", os.Geteuid(), opts.UID)
	}
	return rep, err
}

func (d *Dir) buildPrivate(alloc *os.Root, name string) error {
	if d.cfg.Private == "" {
		return ensure(alloc, filepath.Join(name, privateName), 0o700)
	}
	if err := os.MkdirAll(filepath.Join(d.cfg.Private, d.cfg.AllocID, name), 0o700); err != nil {
		return fmt.Errorf("allocdir: make private: %w", err)
	}
	return nil
}

// ensure makes a directory or sets its mode right.
func ensure(root *os.Root, name string, mode fs.FileMode) error {
	if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("allocdir: make %s: %w", name, err)
	}
	fi, err := root.Lstat(name)
	switch {
	case err != nil:
		return fmt.Errorf("allocdir: make %s: %w", name, err)
	case !fi.IsDir():
		return fmt.Errorf("%w: %s is in the way: move it away", ErrNotDir, filepath.Join(root.Name(), name))
	case runtime.GOOS != "windows" && fi.Mode()&(fs.ModePerm|fs.ModeSticky) != mode:
		if err := root.Chmod(name, mode); err != nil {
			return fmt.Errorf("allocdir: mode of %s: %w", name, err)
		}
	}
	return nil
}

// dropSecrets: nothing is mounted here.
func (d *Dir) dropSecrets([]string) error { return nil }

func (d *Dir) remove(ctx context.Context, parent string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	root, err := os.OpenRoot(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocdir: open %s: %w", parent, err)
	}
	defer root.Close()
	if err := root.RemoveAll(d.cfg.AllocID); err != nil {
		return fmt.Errorf("allocdir: remove: %w", err)
	}
	return nil
}

// MountPrivate makes dir, 0700. There is no tmpfs on this system, which ErrOnDisk says.
func MountPrivate(_ context.Context, dir string, _ int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("allocdir: make private: %w", err)
	}
	return fmt.Errorf("%w: %s: no tmpfs on %s", ErrOnDisk, dir, runtime.GOOS)
}

// UnmountPrivate removes what MountPrivate made, with all that is in it.
func UnmountPrivate(_ context.Context, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("allocdir: remove private: %w", err)
	}
	return nil
}
