// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
)

func openAt(t *testing.T, path string) state.Store {
	t.Helper()
	s, err := state.Open(state.OpenConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		statetest.Suite(t, func(t *testing.T) state.Store { return openAt(t, filepath.Join(t.TempDir(), "state.db")) })
	})
	t.Run("memory", func(t *testing.T) {
		statetest.Suite(t, func(*testing.T) state.Store { return state.Memory() })
	})
	t.Run("twice", func(t *testing.T) { // the suite's own functions are repeatable
		statetest.Suite(t, func(*testing.T) state.Store { return statetest.Twice(state.Memory()) })
	})
}

// Runners are tested in virtual time with either store.
func TestVirtualTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	synctest.Test(t, func(t *testing.T) {
		for _, s := range []state.Store{state.Memory(), openAt(t, path)} {
			for range 3 {
				if err := s.Update(func(tx state.Tx) error { return tx.Put(state.Path{"p"}, "k", nil) }); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
