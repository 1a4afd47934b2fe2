// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// fail makes every further write of the open file fail: its descriptor becomes
// one of /dev/full. Opening the file again heals it.
func fail(t *testing.T, s *bolt) {
	t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return
	}
	if err := syscall.Dup3(int(full.Fd()), int(s.file.Fd()), syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
}

func openTest(t *testing.T, path string) *bolt {
	t.Helper()
	s, err := open(OpenConfig{Path: path, Warn: func(msg string, args ...any) { t.Log(append([]any{msg}, args...)...) }}, steps)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func putKey(s Store, key, val string) error {
	return s.Update(func(tx Tx) error { return tx.Put(Path{"p"}, key, []byte(val)) })
}

func getKey(t *testing.T, s Store, key string) (val string) {
	t.Helper()
	if err := s.View(func(tx Tx) error { val = string(tx.Get(Path{"p"}, key)); return nil }); err != nil {
		t.Error(err)
	}
	return val
}

// A failed commit says so, nothing is lost, and the next try finds a fresh file.
func TestCommitFails(t *testing.T) {
	s := openTest(t, filepath.Join(t.TempDir(), "state.db"))
	if err := putKey(s, "k", "0"); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 10; i++ {
		fail(t, s)
		err := putKey(s, "k", fmt.Sprint(i))
		if !errors.Is(err, ErrCommit) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), s.cfg.Path) {
			t.Fatalf("got %v", err)
		}
		if got := getKey(t, s, "k"); got != fmt.Sprint(i-1) {
			t.Errorf("%d: found %q", i, got)
		}
		if err := putKey(s, "k", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Commits(); n != 10 {
		t.Errorf("%d commits", n)
	}
	// A disk that fails does not matter to what writes nothing.
	fail(t, s)
	no := errors.New("no")
	if err := s.Update(func(tx Tx) error { return no }); !errors.Is(err, no) || errors.Is(err, ErrCommit) {
		t.Error(err)
	}
	if err := putKey(s, "k", "9"); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Many callers, a disk that fails again and again: each call is written or says
// it is not, and with retries all get through.
func TestCommitFailsForMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, path)
	const callers, each = 16, 20
	var wg sync.WaitGroup
	stop := make(chan struct{})
	breaker := make(chan struct{})
	go func() {
		defer close(breaker)
		for {
			select {
			case <-stop:
				return
			case <-breakNow:
				fail(t, s)
			}
		}
	}()
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprint(c, "-", i)
				if i%5 == 0 {
					breakNow <- struct{}{}
				}
				for {
					err := s.Update(func(tx Tx) error {
						if c == 3 && tx.Get(Path{"p"}, key) == nil {
							return errors.Join(tx.Put(Path{"p"}, key, nil), errFirst)
						}
						return tx.Put(Path{"p"}, key, []byte("v"))
					})
					if err == nil || c == 3 && errors.Is(err, errFirst) {
						break
					}
					if !errors.Is(err, ErrCommit) {
						t.Errorf("got %v", err)
						return
					}
				}
				if got := getKey(t, s, key); got != "v" && c != 3 {
					t.Errorf("%s: %q", key, got)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-breaker
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = openTest(t, path)
	if err := s.View(func(tx Tx) error {
		if n := len(tx.Keys(Path{"p"})); n != (callers-1)*each {
			t.Errorf("%d keys", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

var (
	breakNow = make(chan struct{})
	errFirst = errors.New("first")
)

// As long as the file cannot be opened again every call says so; then all goes on.
func TestFileGoesAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, path)
	if err := putKey(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	fail(t, s)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := putKey(s, "k", "w"); !errors.Is(err, ErrCommit) {
			t.Error(err)
		}
		if err := s.View(func(Tx) error { return nil }); !errors.Is(err, ErrCommit) || !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty file was made in its place")
	}
	// Nobody else gets in meanwhile.
	if _, err := Open(OpenConfig{Path: path, Timeout: 1}); !errors.Is(err, ErrLocked) {
		t.Error(err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if got := getKey(t, s, "k"); got != "v" {
		t.Errorf("found %q", got)
	}
	if err := errors.Join(putKey(s, "k", "w"), s.Close()); err != nil {
		t.Error(err)
	}
}

// A file that is damaged while it is open must not end the agent.
func TestDamagedWhileOpen(t *testing.T) {
	garbage := bytes.Repeat([]byte{0xaa}, 4096)
	for name, harm := range map[string]func(f *os.File, size int64) error{
		"cut":   func(f *os.File, _ int64) error { return f.Truncate(2 * 4096) },
		"empty": func(f *os.File, _ int64) error { return f.Truncate(0) },
		"pages": func(f *os.File, size int64) (err error) {
			for at := int64(2 * 4096); at < size && err == nil; at += 4096 {
				_, err = f.WriteAt(garbage, at)
			}
			return err
		},
		"heads": func(f *os.File, _ int64) error {
			_, err := f.WriteAt(append(garbage, garbage...), 0)
			return err
		},
	} {
		for _, first := range []string{"view", "update"} {
			t.Run(name+" "+first, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "state.db")
				if err := os.WriteFile(path, sample(t), 0o600); err != nil {
					t.Fatal(err)
				}
				s := openTest(t, path)
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				fi, err := f.Stat()
				if err := errors.Join(err, harm(f, fi.Size()), f.Close()); err != nil {
					t.Fatal(err)
				}
				view := func() error { return s.View(func(tx Tx) error { walk(tx, nil); return nil }) }
				update := func() error {
					return s.Update(func(tx Tx) error { return tx.DeleteTree(Path{"v1"}) })
				}
				if first == "update" {
					view, update = update, view
				}
				for range 2 {
					if err := view(); !errors.Is(err, ErrCorruptStore) || !strings.Contains(err.Error(), path) {
						t.Errorf("got %v", err)
					}
					if err := update(); !errors.Is(err, ErrCorruptStore) {
						t.Errorf("got %v", err)
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if _, err := Open(OpenConfig{Path: path}); !errors.Is(err, ErrCorruptStore) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

// A function that hides the fault does not make it a success.
func TestFaultHidden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openTest(t, path)
	if err := putKey(s, "k", strings.Repeat("v", 10_000)); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*4096); err != nil {
		t.Fatal(err)
	}
	hide := func(tx Tx) error {
		defer func() { _ = recover() }()
		tx.Get(Path{"p"}, "k")
		return nil
	}
	if err := s.View(hide); !errors.Is(err, ErrCorruptStore) {
		t.Error(err)
	}
	if err := s.Update(hide); !errors.Is(err, ErrCorruptStore) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// D18 by hand: a file system that is full, then is not.
func TestDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	path, ballast := filepath.Join(dir, "state.db"), filepath.Join(dir, "ballast")
	s := openTest(t, path)
	if err := putKey(s, "k", "0"); err != nil {
		t.Fatal(err)
	}
	// From no free page on, so that each write of a commit is the one that fails.
	for free := range 12 {
		fillUp(t, ballast)
		if err := shrink(ballast, int64(free)*4096); err != nil {
			t.Fatal(err)
		}
		big := strings.Repeat(fmt.Sprint(free%10), 40_000+4096*free)
		for range 3 {
			err := s.Update(func(tx Tx) error {
				return errors.Join(tx.Put(Path{"p"}, "big", []byte(big)), tx.Put(Path{"p"}, "k", []byte(fmt.Sprint(free))))
			})
			if err != nil && (!errors.Is(err, ErrCommit) || !errors.Is(err, syscall.ENOSPC)) {
				t.Fatalf("%d: %v", free, err)
			}
			if err == nil && free == 0 {
				t.Error("written on a full disk")
			}
			want := fmt.Sprint(free)
			if err != nil {
				want = fmt.Sprint(max(free-1, 0))
			}
			if got := getKey(t, s, "k"); got != want {
				t.Errorf("%d: found %q", free, got)
			}
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := s.Update(func(tx Tx) error {
			return errors.Join(tx.Put(Path{"p"}, "big", []byte(big)), tx.Put(Path{"p"}, "k", []byte(fmt.Sprint(free))))
		}); err != nil {
			t.Fatalf("after there was room again: %v", err)
		}
	}
	// Full at the start: an existing store opens; a new one says why not.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fillUp(t, ballast)
	s = openTest(t, path)
	if got := getKey(t, s, "k"); got != "11" {
		t.Errorf("found %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(OpenConfig{Path: filepath.Join(dir, "other.db")}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other.db")); err == nil {
		t.Error("left a file half made")
	}
}

// fillUp writes to path until there is no room.
func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) || f.Close() != nil {
		t.Fatal(err)
	}
}

func shrink(path string, by int64) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, max(fi.Size()-by, 0))
}
