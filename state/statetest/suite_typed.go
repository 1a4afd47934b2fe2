// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package statetest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/nodekeep/nodekeep/state"
)

// What is built on a Tx, on this store.

func slots(t *testing.T, s state.Store) {
	type v1 struct{ A int }
	type v2 struct{ A string }
	old := state.Slot[v1]{Key: "k", Version: 1}
	cur := state.Slot[v2]{Key: "k", Version: 2, Migrate: func(from int, data []byte) (v2, error) {
		var v struct{ A int }
		_, err := fmt.Sscanf(string(data), `{"A":%d}`, &v.A)
		return v2{fmt.Sprintf("v%d %d", from, v.A)}, err
	}}
	load := func(fn func(state.Tx) error) {
		t.Helper()
		if err := s.View(fn); err != nil {
			t.Error(err)
		}
	}
	load(func(tx state.Tx) error {
		v, ok, err := cur.Load(tx, pa)
		equal(t, v, v2{})
		equal(t, ok, false)
		return err
	})
	update(t, s, func(tx state.Tx) error { return old.Save(tx, pa, v1{7}) })
	load(func(tx state.Tx) error {
		v, ok, err := cur.Load(tx, pa)
		equal(t, v, v2{"v1 7"})
		equal(t, ok, true)
		return err
	})
	update(t, s, func(tx state.Tx) error { return cur.Save(tx, pa, v2{"x"}) })
	load(func(tx state.Tx) error {
		_, ok, err := old.Load(tx, pa)
		if ok || !errors.Is(err, state.ErrTooNew) {
			t.Error(ok, err)
		}
		return nil
	})
	update(t, s, put(pa, "k", "garbage"))
	load(func(tx state.Tx) error {
		v, ok, err := cur.Load(tx, pa)
		equal(t, v, v2{})
		if ok || !errors.Is(err, state.ErrCorrupt) {
			t.Error(ok, err)
		}
		return nil
	})
}

func logBounds(t *testing.T, s state.Store) {
	l := state.Log{Path: state.Path{"v1", "events"}, MaxRecords: 5, MaxBytes: 100}
	add := func(payload string) (token uint64, err error) {
		err = s.Update(func(tx state.Tx) (err error) { token, err = l.Append(tx, []byte(payload)); return err })
		return token, err
	}
	read := func(after uint64, max int) (out []string, err error) {
		err = s.View(func(tx state.Tx) error {
			recs, err := l.Read(tx, after, max)
			for i, r := range recs {
				equal(t, r.Token, after+uint64(i)+1)
				out = append(out, string(r.Data))
			}
			return err
		})
		return out, err
	}
	bounds := func(first, last uint64) {
		t.Helper()
		if err := s.View(func(tx state.Tx) error {
			f, l, err := l.Bounds(tx)
			equal(t, []uint64{f, l}, []uint64{first, last})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	bounds(1, 0)
	out, err := read(0, 0)
	equal(t, out, []string(nil))
	equal(t, err, nil)
	for i := range 7 {
		token, err := add(fmt.Sprint("e", i+1))
		equal(t, err, nil)
		equal(t, token, uint64(i+1))
	}
	bounds(3, 7)
	if _, err = read(1, 0); !errors.Is(err, state.ErrCompacted) {
		t.Error(err)
	}
	out, err = read(2, 3)
	equal(t, out, []string{"e3", "e4", "e5"})
	equal(t, err, nil)
	out, _ = read(6, 10)
	equal(t, out, []string{"e7"})
	out, err = read(7, 0)
	equal(t, out, []string(nil))
	equal(t, err, nil)
	if _, err = read(99, 0); !errors.Is(err, state.ErrCompacted) {
		t.Error(err)
	}

	ack := func(token uint64) error { return s.Update(func(tx state.Tx) error { return l.Ack(tx, token) }) }
	equal(t, errors.Join(ack(5), ack(4), ack(5)), nil)
	if ack(8) == nil {
		t.Error("acknowledged the future")
	}
	if err := s.View(func(tx state.Tx) error { n, err := l.Acked(tx); equal(t, n, uint64(5)); return err }); err != nil {
		t.Error(err)
	}
	bounds(3, 7) // acknowledged is not dropped
	if _, err := add(string(make([]byte, 95))); err != nil {
		t.Error(err)
	}
	bounds(6, 8)
	if _, err := add(string(make([]byte, 100))); err != nil {
		t.Error(err)
	}
	bounds(9, 9)
	if _, err := add(string(make([]byte, 101))); err == nil {
		t.Error("a record above the bound")
	}
	equal(t, ack(9), nil)
	// A damaged head is made again from the records.
	update(t, s, put(l.Path, "log", "garbage"))
	bounds(9, 9)
	token, err := add("after")
	equal(t, err, nil)
	equal(t, token, uint64(10))
	// A damaged record is one that was dropped.
	update(t, s, put(l.Path.Join("records"), "\x00\x00\x00\x00\x00\x00\x00\x0a", "garbage"))
	if _, err := read(9, 0); !errors.Is(err, state.ErrCompacted) {
		t.Error(err)
	}
}

// wrappers are tested on the store too: they must keep its semantics.
func wrappers(t *testing.T, open func(*testing.T) state.Store) {
	t.Run("at", func(t *testing.T) { crash(t, open(t), CrashAt, 2) })
	t.Run("after", func(t *testing.T) { crash(t, open(t), CrashAfter, 3) })
	t.Run("faulty", func(t *testing.T) { faulty(t, open(t)) })
	t.Run("twice", func(t *testing.T) {
		s := open(t)
		runs := 0
		update(t, Twice(s), func(tx state.Tx) error {
			runs++
			equal(t, tx.Get(pa, "k"), []byte(nil))
			return tx.Put(pa, "k", nil)
		})
		equal(t, runs > 0 && runs%2 == 0, true)
		equal(t, s.Close(), nil)
	})
}

func crash(t *testing.T, s state.Store, wrap func(state.Store, int) *Crash, keys int) {
	c := wrap(s, 3)
	for i := range 5 {
		select {
		case <-c.Crashed():
			equal(t, i >= 3, true)
		default:
			equal(t, i < 3, true)
		}
		err := c.Update(put(pa, fmt.Sprint(i), ""))
		if crashed := errors.Is(err, ErrCrash); crashed != (i >= 2) || !crashed && err != nil || errors.Is(err, state.ErrCommit) {
			t.Errorf("%d: %v", i, err)
		}
	}
	equal(t, c.Updates(), 5)
	if err := s.View(func(tx state.Tx) error { equal(t, len(tx.Keys(pa)), keys); return nil }); err != nil {
		t.Error(err)
	}
	equal(t, s.Close(), nil)
}

func faulty(t *testing.T, s state.Store) {
	f := Faulty(s, Faults{Err: syscall.ENOSPC, At: 2, For: 2, Written: true})
	for i := range 5 {
		err := f.Update(put(pa, fmt.Sprint(i), ""))
		if bad := i == 1 || i == 2; bad != errors.Is(err, state.ErrCommit) || bad != errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%d: %v", i, err)
		}
	}
	no := errors.New("no")
	g := Faulty(s, Faults{Err: syscall.EIO, At: 1, For: -1})
	if err := g.Update(func(state.Tx) error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
	if err := g.Update(put(pa, "never", "")); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if err := s.View(func(tx state.Tx) error { equal(t, tx.Keys(pa), []string{"0", "1", "3", "4"}); return nil }); err != nil {
		t.Error(err)
	}
	equal(t, s.Close(), nil)
}
