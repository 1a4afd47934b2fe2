// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/bbolt"
)

const (
	metaNode  = "_store" // the store's own node; nobody sees it
	layoutKey = "layout" // in it: the version of the layout, as of a value
	sealedKey = "sealed" // in a sealed store: itself, sealed
)

// create makes an empty store at path, whole or not at all.
func create(path string, layout int) error {
	return replace(path, func(tmp string) error {
		db, err := bbolt.Open(tmp, 0o600, nil)
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bbolt.Tx) error { return putLayout(tx, layout) })
		return errors.Join(err, db.Close())
	})
}

func putLayout(tx *bbolt.Tx, layout int) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaNode))
	if err != nil {
		return err
	}
	return errors.Join(b.Delete([]byte(upgradeKey)), b.Put([]byte(layoutKey), seal(layout, nil)))
}

// markSealed makes db one that opens with this sealer only.
func markSealed(db *bbolt.DB, sealer Sealer) error {
	return db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(metaNode))
		if err != nil || b.Get([]byte(sealedKey)) != nil {
			return err
		}
		mark, err := sealed(sealer, []byte(sealedKey))
		if err != nil {
			return err
		}
		return b.Put([]byte(sealedKey), mark)
	})
}

// opens says whether the sealer is the one that made the mark.
func opens(sealer Sealer, mark []byte) bool {
	if sealer == nil {
		return false
	}
	got, err := sealer.Unseal(mark)
	return err == nil && string(got) == sealedKey
}

// upgrade brings the file from an older layout to another, all of it in one
// transaction, and before that keeps a copy of it as <path>.v<old>.bak.
func (s *bolt) upgrade(from, to int) error {
	path, backup := s.cfg.Path, backupPath(s.cfg.Path, from)
	err := replace(backup, func(tmp string) error { return copyFile(tmp, path) })
	if err != nil {
		return fmt.Errorf("backup before the upgrade from layout %d: %w", from, err)
	}
	s.cfg.Warn("state file is upgraded, a copy is kept", "path", path, "layout", from, "backup", backup)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockPoll})
	if err != nil {
		return err
	}
	err = contained(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			for n, step := range s.steps[from-1 : to-1] {
				if step.migrate == nil {
					continue
				}
				if err := step.migrate(&boltTx{tx: tx, sealer: s.cfg.Sealer}); err != nil {
					return fmt.Errorf("upgrade from layout %d: %w", from+n, err)
				}
			}
			return putLayout(tx, to)
		})
	})
	return errors.Join(err, db.Close())
}

func backupPath(path string, layout int) string {
	return path + ".v" + strconv.Itoa(layout) + ".bak"
}

// howToRestore says how to go back to the newest backup, "" if there is none.
func howToRestore(path string) string {
	entries, _ := os.ReadDir(filepath.Dir(path))
	newest, at := "", time.Time{}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+".v") || filepath.Ext(e.Name()) != ".bak" {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().After(at) {
			newest, at = filepath.Join(filepath.Dir(path), e.Name()), info.ModTime()
		}
	}
	if newest == "" {
		return ""
	}
	return fmt.Sprintf("cp %q %q", newest, path)
}

// compact rewrites the file without its free pages.
func compact(path string) error {
	return replace(path, func(tmp string) error {
		src, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockPoll})
		if err != nil {
			return err
		}
		dst, err := bbolt.Open(tmp, 0o600, &bbolt.Options{NoSync: true})
		if err != nil {
			return errors.Join(err, src.Close())
		}
		err = contained(func() error { return bbolt.Compact(dst, src, 1<<20) })
		return errors.Join(err, dst.Sync(), dst.Close(), src.Close())
	})
}

// replace puts what fill writes to a temporary file in the place of path, so
// that a crash leaves the old or the new.
func replace(path string, fill func(tmp string) error) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	err := fill(tmp)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	return syncDir(filepath.Dir(path))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
