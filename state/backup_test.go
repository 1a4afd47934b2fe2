// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/state"
)

// Each of many copies that are made while pairs of values are written holds whole
// pairs only, all that was written before it, and can be opened.
func TestBackupWhileWriting(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "a", "state.db"))
	stop, stopped := make(chan struct{}), make(chan error, 1)
	wrote := make(chan int, 1)
	go func() {
		for i := 1; ; i++ {
			err := s.Update(func(tx state.Tx) error {
				val := append([]byte(fmt.Sprintf("%8d", i)), make([]byte, i%3000)...)
				return errors.Join(tx.Put(root, fmt.Sprint("x", i%50), val), tx.Put(root.Join("below"), fmt.Sprint("x", i%50), val))
			})
			select {
			case <-wrote:
			default:
			}
			wrote <- i
			select {
			case <-stop:
				stopped <- err
				return
			default:
			}
			if err != nil {
				stopped <- err
				return
			}
		}
	}()
	for range 10 {
		atLeast := <-wrote
		path := filepath.Join(dir, "copy.db")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := s.(state.Backuper).Backup(f)
		if err := errors.Join(err, f.Close()); err != nil || n < 8<<10 {
			t.Fatal(n, err)
		}
		c := openAt(t, path)
		newest := 0
		err = c.View(func(tx state.Tx) error {
			for _, k := range tx.Keys(root) {
				a, b := tx.Get(root, k), tx.Get(root.Join("below"), k)
				if !bytes.Equal(a, b) {
					t.Errorf("half a transaction: %s", k)
				}
				var i int
				if _, err := fmt.Sscanf(string(a[:8]), "%d", &i); err != nil {
					return err
				}
				newest = max(newest, i)
			}
			return nil
		})
		if err != nil || newest < atLeast {
			t.Errorf("%d of %d: %v", newest, atLeast, err)
		}
		if err := errors.Join(put(c, "k", "goes on"), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := errors.Join(<-stopped, s.Close()); err != nil {
		t.Fatal(err)
	}
	if names := files(t, filepath.Join(dir, "a")); len(names) != 2 { // the store and its lock
		t.Errorf("left behind: %v", names)
	}
}

// stalling is a writer that takes its time.
type stalling struct{ begun, goOn chan struct{} }

func (s stalling) Write(p []byte) (int, error) {
	select {
	case <-s.begun:
	default:
		close(s.begun)
	}
	<-s.goOn
	return len(p), nil
}

// A writer that stalls holds up nobody: writes go on, the file is not pinned, and
// the store can be closed.
func TestBackupToSomebodySlow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openAt(t, path)
	if err := put(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	w := stalling{make(chan struct{}), make(chan struct{})}
	done := make(chan error, 1)
	go func() { _, err := s.(state.Backuper).Backup(w); done <- err }()
	<-w.begun
	for i := range 100 {
		if err := s.Update(func(tx state.Tx) error {
			return tx.Put(root, "big", bytes.Repeat([]byte{byte(i)}, 100<<10))
		}); err != nil {
			t.Fatal(err)
		}
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Size() > 4<<20 {
		t.Errorf("pages stay in use: %d, %v", fi.Size(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	close(w.goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := s.(state.Backuper).Backup(io.Discard); !errors.Is(err, state.ErrClosed) {
		t.Error(err)
	}
	if names := files(t, filepath.Dir(path)); len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestBackupThatFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openAt(t, path)
	if _, err := s.(state.Backuper).Backup(refusing{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	began := time.Now()
	if err := errors.Join(put(s, "k", "v"), s.Close()); err != nil || time.Since(began) > time.Minute {
		t.Error(err)
	}
}

// A process that is killed while it makes a copy leaves a file: the next one takes
// it away, and nothing else.
func TestBackupLeftBehind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"state.db.copy-123456", "state.db.copy-mine", "other.db.copy-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "state.db.copy-7"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, filepath.Join(dir, "state.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"other.db.copy-1", "state.db", "state.db.copy-7", "state.db.copy-mine", "state.db.lock"}
	if names := files(t, dir); !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
}
