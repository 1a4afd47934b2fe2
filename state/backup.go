// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Backuper is implemented by the stores of Open.
type Backuper interface {
	// Backup writes a copy of the file to w: a store that Open opens, as it was at
	// one moment between the call and the first byte. Values that are sealed stay
	// so. It may run beside everything else and holds nobody up: it first makes the
	// copy in a file without a name beside the store, which takes as long as the
	// disk does and as much room, and reads it through; how slow w is does not
	// matter. What was written to w before an error is no store.
	Backup(w io.Writer) (n int64, err error)
}

func (s *bolt) Backup(w io.Writer) (n int64, err error) {
	f, err := spool(s.cfg.Path)
	if err != nil {
		return 0, fmt.Errorf("state: backup needs room for a copy: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), f.remove()) }()
	if err := s.copyTo(f); err != nil {
		return 0, fmt.Errorf("state: backup: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("state: backup: %w", err)
	}
	if _, err := inspect(f, st.Size()); err != nil {
		return 0, fmt.Errorf("%w: %s: backup: %w", ErrCorruptStore, s.cfg.Path, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("state: backup: %w", err)
	}
	return io.Copy(w, f)
}

// copyTo copies the file as one transaction sees it. Writers go on meanwhile, but
// the pages it sees are not used again.
func (s *bolt) copyTo(w io.Writer) error {
	if err := s.acquire(); err != nil {
		return err
	}
	err := func() (err error) {
		defer s.mu.RUnlock()
		bt, err := s.begin(false)
		if err != nil {
			return err
		}
		defer func() {
			if f := s.finish(bt); f != nil {
				err = f
			}
		}()
		return contained(func() error { _, err := bt.tx.WriteTo(w); return err })
	}()
	if f := (*fault)(nil); errors.As(err, &f) {
		return s.diagnose(f)
	}
	return err
}

// spooled is a file that goes with its descriptor, where the system can do that.
type spooled struct {
	*os.File
	gone bool
}

const copyMark = ".copy-"

// removeCopies removes what a process that was killed while it made a copy has left
// beside the store. The store's lock is held, so nobody else makes one.
func removeCopies(path string, warn func(string, ...any)) {
	entries, err := os.ReadDir(filepath.Dir(path))
	for _, e := range entries {
		if digits, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+copyMark); ok && e.Type().IsRegular() && strings.Trim(digits, "0123456789") == "" {
			err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(path), e.Name())))
		}
	}
	if err != nil {
		warn("what is left of a backup cannot be removed", "path", path, "error", err)
	}
}

func spool(path string) (spooled, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+copyMark+"*")
	if err != nil {
		return spooled{}, err
	}
	return spooled{f, os.Remove(f.Name()) == nil}, nil
}

func (f spooled) remove() error {
	if f.gone {
		return nil
	}
	return os.Remove(f.Name())
}
