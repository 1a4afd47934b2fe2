// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestSmoke(t *testing.T) {
	f, err := Open(OpenConfig{Path: filepath.Join(t.TempDir(), "d", "s.db")})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Store{f, Memory()} {
		p := Path{"v1", "alloc", "a"}
		slot := Slot[int]{Key: "x", Version: 2}
		if err := s.Update(func(tx Tx) error { return slot.Save(tx, p, 7) }); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(func(tx Tx) error { slot.Save(tx, p, 8); return errors.New("no") }); err == nil {
			t.Fatal(err)
		}
		if err := s.View(func(tx Tx) error {
			v, ok, err := slot.Load(tx, p)
			if v != 7 || !ok {
				t.Error(v, ok)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		l := Log{Path: Path{"v1", "events"}, MaxRecords: 3}
		for range 5 {
			if err := s.Update(func(tx Tx) error { _, err := l.Append(tx, []byte("x")); return err }); err != nil {
				t.Fatal(err)
			}
		}
		s.View(func(tx Tx) error {
			_, err := l.Read(tx, 1, 0)
			r, err2 := l.Read(tx, 2, 0)
			if !errors.Is(err, ErrCompacted) || err2 != nil || len(r) != 3 {
				t.Error(err, err2, r)
			}
			return nil
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
