// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("golden", false, "write the golden file of the newest layout anew")

type goldenValue struct {
	Name  string
	N     int
	Since time.Time
	List  []string `json:",omitempty"`
}

var goldenSlot = Slot[goldenValue]{Key: "value", Version: 3}

func writeGolden(tx Tx) error {
	p := Path{"v1", "alloc", "5b1f2e6a-8f6b-4f0e-9a53-0d1f8f3a2b11"}
	v := goldenValue{"web", 42, time.Date(2025, 11, 30, 12, 0, 0, 0, time.UTC), []string{"a", "b"}}
	l := Log{Path: Path{"v1", "events"}, MaxRecords: 3}
	for i := range 5 {
		if _, err := l.Append(tx, fmt.Append(nil, `{"event":`, i, `}`)); err != nil {
			return err
		}
	}
	return errors.Join(
		goldenSlot.Save(tx, p, v),
		tx.Put(p.Join("task-web"), "raw", []byte("\x00\x01")),
		tx.Put(p.Join("task-web"), "empty", nil),
		tx.Put(Path{"v1", "agent"}, "large", bytes.Repeat([]byte("0123456789"), 1000)),
		l.Ack(tx, 4))
}

func dumpAll(t *testing.T, s Store) string {
	t.Helper()
	var b strings.Builder
	var dump func(tx Tx, p Path)
	dump = func(tx Tx, p Path) {
		for _, k := range tx.Keys(p) {
			fmt.Fprintf(&b, "%s = %q\n", p.Join(k), tx.Get(p, k))
		}
		for _, n := range tx.Nodes(p) {
			dump(tx, p.Join(n))
		}
	}
	if err := s.View(func(tx Tx) error { dump(tx, nil); return nil }); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// What each layout version wrote is readable for ever, and after the migrations
// it is what the newest writes.
func TestGolden(t *testing.T) {
	newestName := fmt.Sprintf("testdata/layout%d", newest(steps))
	if *rewrite {
		path := filepath.Join(t.TempDir(), "state.db")
		if err := create(path, newest(steps)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(OpenConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Update(writeGolden); err != nil {
			t.Fatal(err)
		}
		text := dumpAll(t, s)
		raw, err := os.ReadFile(path)
		var z bytes.Buffer
		w, _ := gzip.NewWriterLevel(&z, gzip.BestCompression)
		_, werr := w.Write(raw)
		if err := errors.Join(err, werr, w.Close(), s.Close(), os.MkdirAll("testdata", 0o755),
			os.WriteFile(newestName+".db.gz", z.Bytes(), 0o644), os.WriteFile(newestName+".txt", []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(newestName + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for v := 1; v <= newest(steps); v++ {
		path := filepath.Join(t.TempDir(), "state.db")
		f, err := os.Open(fmt.Sprintf("testdata/layout%d.db.gz", v))
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		if err := errors.Join(err, f.Close(), os.WriteFile(path, raw, 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(OpenConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.(Upgrader).CommitUpgrade(); err != nil {
			t.Fatal(err)
		}
		if got := dumpAll(t, s); got != string(want) {
			t.Errorf("layout %d:\n%s", v, got)
		}
		mem := Memory() // and it is what this program writes
		if err := mem.Update(writeGolden); err != nil {
			t.Fatal(err)
		}
		if got := dumpAll(t, mem); got != string(want) {
			t.Errorf("written now:\n%s", got)
		}
		if err := errors.Join(s.Close(), mem.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUpgrade(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	p := Path{"v1", "agent"}
	migrate := func(err error) []step {
		return []step{
			{migrate: func(tx Tx) error { return tx.Put(p, "trail", append(tx.Get(p, "trail"), "1→2 "...)) }},
			{migrate: func(tx Tx) error {
				return errors.Join(tx.Put(p, "trail", append(tx.Get(p, "trail"), "2→3 "...)), err)
			}},
			{},
		}
	}
	trail := func(steps []step) (got string, err error) {
		s, err := open(OpenConfig{Path: path}, steps)
		if err != nil {
			return "", err
		}
		err = s.View(func(tx Tx) error { got = string(tx.Get(p, "trail")); return nil })
		return got, errors.Join(err, s.Close())
	}
	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	s, err := open(OpenConfig{Path: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Update(func(tx Tx) error { return tx.Put(p, "trail", []byte("1 ")) }), s.Close()); err != nil {
		t.Fatal(err)
	}
	v1 := read(path)

	// One that fails changes nothing.
	no := errors.New("no")
	if _, err := trail(migrate(no)); !errors.Is(err, no) {
		t.Fatal(err)
	}
	if got, err := trail(nil); got != "1 " || err != nil {
		t.Fatal(got, err)
	}
	if got, err := trail(migrate(nil)); got != "1 1→2 2→3 " || err != nil {
		t.Fatal(got, err)
	}
	if got, err := trail(migrate(nil)); got != "1 1→2 2→3 " || err != nil { // once only
		t.Fatal(got, err)
	}

	// The older program refuses it before any write and says how to go back.
	v3 := read(path)
	backup := path + ".v1.bak"
	_, err = trail(nil)
	if !errors.Is(err, ErrTooNew) || !strings.Contains(err.Error(), fmt.Sprintf("cp %q %q", backup, path)) ||
		!strings.Contains(err.Error(), "layout 3") {
		t.Fatal(err)
	}
	if !bytes.Equal(read(path), v3) {
		t.Error("a refused file was changed")
	}
	if fi, err := os.Stat(backup); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi, err)
	}
	if !bytes.Equal(read(backup), v1) {
		t.Error("the backup is not what was there")
	}
	if err := os.WriteFile(path, read(backup), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := trail(nil); got != "1 " || err != nil {
		t.Fatal(got, err)
	}
}

func TestUpgradeWithoutBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := open(OpenConfig{Path: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Something lies where the backup would be made.
	if err := errors.Join(s.Close(), os.MkdirAll(path+".v1.bak.new/x", 0o700)); err != nil {
		t.Fatal(err)
	}
	ran := false
	if _, err := open(OpenConfig{Path: path}, []step{{migrate: func(Tx) error { ran = true; return nil }}, {}}); err == nil || ran {
		t.Error("upgraded without a backup", err)
	}
	if s, err = open(OpenConfig{Path: path}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// D20: the file shrinks at open, if much of it is free.
func TestCompact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	reopen := func() (s Store, size int64, warned []string) {
		t.Helper()
		s, err := Open(OpenConfig{Path: path, Warn: func(msg string, _ ...any) { warned = append(warned, msg) }})
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Fatal(fi, err)
		}
		return s, fi.Size(), warned
	}
	change := func(s Store, fn func(tx Tx, p Path) error) {
		t.Helper()
		for i := range 40 {
			if err := s.Update(func(tx Tx) error { return fn(tx, Path{"v1", "alloc", fmt.Sprint(i)}) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	s, _, _ := reopen()
	change(s, func(tx Tx, p Path) error {
		return errors.Join(tx.Put(p, "big", make([]byte, 1<<20)), tx.Put(p.Join("task"), "small", []byte("v")))
	})
	i := 0
	change(s, func(tx Tx, p Path) error { // 16 of 40 MiB: not yet
		if i++; i > 16 {
			return nil
		}
		return tx.Delete(p, "big")
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, before, _ := reopen()
	if before < 40<<20 {
		t.Errorf("compacted too early: %d", before)
	}
	change(s, func(tx Tx, p Path) error { return tx.Delete(p, "big") })
	want := dumpAll(t, s)
	if err := errors.Join(s.Close(), os.MkdirAll(path+".new/x", 0o700)); err != nil {
		t.Fatal(err)
	}
	s, size, warned := reopen()
	if size < before || len(warned) != 1 || dumpAll(t, s) != want {
		t.Errorf("a compaction that cannot be done: %d %q", size, warned)
	}
	if err := errors.Join(s.Close(), os.RemoveAll(path+".new")); err != nil {
		t.Fatal(err)
	}
	s, size, warned = reopen()
	if size > 1<<20 || len(warned) != 0 || dumpAll(t, s) != want {
		t.Errorf("not compacted: %d %q", size, warned)
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("left a temporary file")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Pages in use return to the baseline when allocs are collected.
func TestPagesReturn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var used []uint64
	for range 4 {
		s, err := Open(OpenConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			p := Path{"v1", "alloc", fmt.Sprint(i)}
			if err := s.Update(func(tx Tx) error { return tx.Put(p.Join("task"), "k", make([]byte, 3000)) }); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100 {
			if err := s.Update(func(tx Tx) error { return tx.DeleteTree(Path{"v1", "alloc", fmt.Sprint(i)}) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		info, err := inspectFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used = append(used, info.pages-info.free)
	}
	if used[3] > used[0]+1 {
		t.Errorf("pages in use: %d", used)
	}
}
