// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// sample makes a file with branches, overflow pages, inline and nested buckets
// and free pages, and returns its bytes up to the last page in use.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(quickDir(t), "sample.db")
	s, err := open(OpenConfig{Path: path}, steps)
	if err != nil {
		t.Fatal(err)
	}
	l := Log{Path: Path{"v1", "events"}, MaxRecords: 20}
	for round := range 3 {
		if err := s.Update(func(tx Tx) error {
			for i := range 30 {
				p := Path{"v1", "alloc", fmt.Sprint("alloc-", (i+round*10)%40)}
				if err := errors.Join(
					tx.Put(p, "alloc", bytes.Repeat([]byte("a"), 100+i*30)),
					tx.Put(p.Join("task-web"), "task", []byte("small")),
				); err != nil {
					return err
				}
				if _, err := l.Append(tx, []byte("event")); err != nil {
					return err
				}
			}
			for i := range 200 {
				if err := tx.Put(Path{"v1", "many"}, fmt.Sprint("key ", i), bytes.Repeat([]byte{byte(round)}, 50)); err != nil {
					return err
				}
			}
			return errors.Join(tx.Put(Path{"v1", "big"}, "k", make([]byte, 20_000)),
				tx.DeleteTree(Path{"v1", "alloc", "alloc-7"}))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := inspect(bytes.NewReader(b), int64(len(b)))
	if err != nil || info.free == 0 || info.layout != 1 {
		t.Fatal(info, err)
	}
	return b[:int64(info.pages)*info.pageSize]
}

// use opens b as a store and does all that can be done with it. It must not
// panic or hang; what it may return is ErrCorruptStore, and then Open has left
// the file alone.
func use(t testing.TB, dir string, b []byte) error {
	t.Helper()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(OpenConfig{Path: path})
	if err != nil {
		if now, rerr := os.ReadFile(path); rerr != nil || !bytes.Equal(now, b) {
			t.Errorf("a refused file was changed: %v", rerr)
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not name the file: %v", err)
		}
		return err
	}
	err = errors.Join(
		s.View(func(tx Tx) error { walk(tx, nil); return nil }),
		s.Update(func(tx Tx) error { return tx.Put(Path{"v1", "new"}, "k", make([]byte, 10_000)) }),
		s.Update(func(tx Tx) error {
			for _, n := range tx.Nodes(nil) {
				if err := tx.DeleteTree(Path{n}); err != nil {
					return err
				}
			}
			return nil
		}))
	return errors.Join(err, s.Close())
}

// quickDir is in memory where it can be: what is tested there is not the disk.
func quickDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "state")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func walk(tx Tx, p Path) {
	for _, k := range tx.Keys(p) {
		tx.Get(p, k)
	}
	for _, n := range tx.Nodes(p) {
		walk(tx, p.Join(n))
	}
}

func TestDamagedFiles(t *testing.T) {
	good, dir := sample(t), quickDir(t)
	const page = 4096
	if err := use(t, dir, good); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bbolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty":       {},
		"one byte":    {0},
		"text":        []byte(strings.Repeat("no state\n", 10_000)),
		"zeros":       make([]byte, 1<<16),
		"no heads":    append(make([]byte, 2*page), good[2*page:]...),
		"half":        good[:len(good)/2/page*page],
		"cut":         good[:len(good)-1],
		"last page":   good[:len(good)-page],
		"only heads":  good[:2*page],
		"not ours":    other,
		"data zeroed": append(bytes.Clone(good[:2*page]), make([]byte, len(good)-2*page)...),
	} {
		if err := use(t, dir, b); !errors.Is(err, ErrCorruptStore) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Either head may be torn by a crash: the other one counts.
	for i := range 2 {
		b := bytes.Clone(good)
		copy(b[i*page+100:], make([]byte, 8))
		copy(b[i*page+16:], "torn")
		if err := use(t, dir, b); err != nil {
			t.Errorf("head %d torn: %v", i, err)
		}
	}
}

// Every page in every way: zeroed, filled, shuffled, swapped, with single bits
// turned. Files that pass the check must be usable to the end.
func TestDamagedPages(t *testing.T) {
	good, dir := sample(t), quickDir(t)
	const page = 4096
	rnd := rand.New(rand.NewPCG(1, 2))
	seen, accepted := map[string]int{}, 0
	try := func(name string, at int, change func(p []byte)) {
		t.Helper()
		b := bytes.Clone(good)
		change(b[at : at+page])
		_, err := inspect(bytes.NewReader(b), int64(len(b)))
		if d := damage(""); errors.As(err, &d) {
			seen[name]++
			return
		}
		if accepted++; accepted%5 > 0 {
			return
		}
		if err = errors.Join(err, use(t, dir, b)); err != nil && !errors.Is(err, ErrCorruptStore) && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s at page %d: %v", name, at/page, err)
		}
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 0; at < len(good); at += page * step {
		try("zeroed", at, func(p []byte) { clear(p) })
		try("filled", at, func(p []byte) { copy(p, bytes.Repeat([]byte{0xff}, page)) })
		try("random", at, func(p []byte) {
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
		})
		try("swapped", at, func(p []byte) { copy(p, good[len(good)-page:]) })
		for range 6 {
			try("header bit", at, func(p []byte) { p[rnd.IntN(64)] ^= 1 << rnd.IntN(8) })
		}
		for range 2 {
			try("bit", at, func(p []byte) { p[rnd.IntN(page)] ^= 1 << rnd.IntN(8) })
		}
	}
	t.Logf("refused of %d pages: %v", len(good)/page, seen)
}

// The check finds what would make bbolt walk in circles or out of the file.
func TestInspectStructure(t *testing.T) {
	good := sample(t)
	const page = 4096
	found := map[string]int{}
	for at := 2 * page; at < len(good); at += page {
		if order.Uint16(good[at+8:]) != flagBranch {
			continue // or a free one
		}
		for name, id := range map[string]uint64{"itself": uint64(at / page), "a head": 1, "nowhere": 1 << 40} {
			b := bytes.Clone(good)
			order.PutUint64(b[at+pageHeader+8:], id)
			_, err := inspect(bytes.NewReader(b), int64(len(b)))
			if d := damage(""); errors.As(err, &d) {
				found[name]++
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("found only %v", found)
	}
}

func TestRestoreHint(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("state.db")
	_, err := Open(OpenConfig{Path: path})
	if !errors.Is(err, ErrCorruptStore) || strings.Contains(err.Error(), "cp ") || !strings.Contains(err.Error(), "mv ") {
		t.Errorf("got %v", err)
	}
	write("state.db.v3.bak")
	write("state.db.v3.bak.new") // unfinished
	_, err = Open(OpenConfig{Path: path})
	if want := fmt.Sprintf("cp %q %q", path+".v3.bak", path); !errors.Is(err, ErrCorruptStore) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}
