// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
)

// gcm is a sealer as a host would write it.
type gcm struct{ cipher.AEAD }

func newGCM(t *testing.T, key string) gcm {
	t.Helper()
	block, err := aes.NewCipher([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		t.Fatal(err)
	}
	return gcm{aead}
}

func (g gcm) Seal(plain []byte) ([]byte, error)    { return g.AEAD.Seal(nil, nil, plain, nil), nil }
func (g gcm) Unseal(sealed []byte) ([]byte, error) { return g.AEAD.Open(nil, nil, sealed, nil) }

type noSeal struct{ gcm }

func (noSeal) Seal([]byte) ([]byte, error) { return nil, errors.New("no key today") }

func TestSuiteSealed(t *testing.T) {
	key := newGCM(t, "0123456789abcdef")
	statetest.Suite(t, func(t *testing.T) state.Store {
		s, err := state.Open(state.OpenConfig{Path: filepath.Join(t.TempDir(), "state.db"), Sealer: key})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// D24: a host seals; nothing is in clear, and no other key opens the file.
func TestSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	key, other := newGCM(t, "0123456789abcdef"), newGCM(t, "fedcba9876543210")
	open := func(sealer state.Sealer) (state.Store, error) {
		return state.Open(state.OpenConfig{Path: path, Sealer: sealer})
	}
	mustOpen := func(sealer state.Sealer) state.Store {
		t.Helper()
		s, err := open(sealer)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// What was written in clear stays readable, and is sealed when written again.
	s := openAt(t, path)
	if err := errors.Join(put(s, "old", "in clear"), put(s, "kept", "in clear"), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(key)
	before := s.(state.Stats).Commits()
	if err := errors.Join(put(s, "old", "in clear"), put(s, "new", "secret"), put(s, "new", "secret")); err != nil {
		t.Fatal(err)
	}
	if n := s.(state.Stats).Commits() - before; n != 2 {
		t.Errorf("%d commits", n)
	}
	if get(t, s, "old") != "in clear" || get(t, s, "kept") != "in clear" || get(t, s, "new") != "secret" {
		t.Error("not what was written")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || bytes.Contains(raw, []byte("secret")) {
		t.Errorf("in clear on the disk: %v", err)
	}
	for _, wrong := range []state.Sealer{nil, other} {
		if _, err := open(wrong); !errors.Is(err, state.ErrSealed) {
			t.Errorf("got %v", err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, raw) {
		t.Error("a refused file was changed", err)
	}
	s = mustOpen(noSeal{key})
	if err := put(s, "new", "x"); err == nil || errors.Is(err, state.ErrCommit) || get(t, s, "new") != "secret" {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "new.db") // no mark, no store
	if _, err := open(noSeal{key}); err == nil {
		t.Error("opened without a key")
	}
	if err := mustOpen(nil).Close(); err != nil { // and no lock is left
		t.Error(err)
	}
}

// badSealer panics when it is told to, as bbolt does when a read of the disk
// fails under it.
type badSealer struct{ bad *atomic.Bool }

func (b badSealer) Seal(plain []byte) ([]byte, error) { return plain, nil }
func (b badSealer) Unseal(sealed []byte) ([]byte, error) {
	if b.bad.Load() {
		panic("cannot read")
	}
	return sealed, nil
}

// A fault while the file is whole is no damage: the next call finds all well.
func TestFaultPasses(t *testing.T) {
	bad := &atomic.Bool{}
	s, err := state.Open(state.OpenConfig{Path: filepath.Join(t.TempDir(), "state.db"), Sealer: badSealer{bad}})
	if err != nil {
		t.Fatal(err)
	}
	if err := put(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		bad.Store(true)
		for _, err := range []error{put(s, "k", "w"), s.View(func(tx state.Tx) error { tx.Get(root, "k"); return nil })} {
			if !errors.Is(err, state.ErrCommit) || errors.Is(err, state.ErrCorruptStore) {
				t.Errorf("got %v", err)
			}
		}
		bad.Store(false)
		if got := get(t, s, "k"); got != "v" {
			t.Errorf("found %q", got)
		}
	}
	if err := errors.Join(put(s, "k", "w"), s.Close()); err != nil {
		t.Error(err)
	}
}
