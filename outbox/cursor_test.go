// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/state"
)

// cursors are those of all events that are kept, by token.
func (d *desk) cursors() map[uint64]string {
	d.t.Helper()
	oldest, _, err := d.box.Bounds()
	require.NoError(d.t, err)
	events, err := d.box.Read(oldest-1, 0)
	require.NoError(d.t, err)
	out := map[uint64]string{}
	for _, e := range events {
		require.Contains(d.t, e.Cursor, fmt.Sprintf("%d@", e.Token))
		out[e.Token] = e.Cursor
		token, err := d.box.Resolve(e.Cursor)
		require.NoError(d.t, err)
		require.Equal(d.t, e.Token, token)
		made, err := d.box.Cursor(e.Token)
		require.NoError(d.t, err)
		require.Equal(d.t, e.Cursor, made)
	}
	return out
}

// A cursor is good in every run of one history, and told apart in another: whatever
// was written, and by how many runs, before and after the copy that is put back.
func TestCursorsOfAStateThatWasPutBack(t *testing.T) {
	for _, kept := range []int{0, 2} { // runs of an event each before the copy
		for lost := range 4 { // and after it
			for _, next := range []int{0, 1, 3} { // and after it was put back
				t.Run(fmt.Sprintf("%d runs, %d lost, %d more", kept, lost, next), func(t *testing.T) {
					d := newDesk(t)
					dir := t.TempDir()
					d.open(filepath.Join(dir, "a"))
					d.receive("x")
					for range kept {
						d.restart("x")
						d.again()
					}
					d.restart("x") // the run in which the copy is made
					var copied bytes.Buffer
					_, err := d.store.(state.Backuper).Backup(&copied)
					require.NoError(t, err)
					good := d.cursors()
					tasks := d.tasks["x"]
					for i := range lost {
						d.restart("x")
						if i%2 == 1 {
							d.again()
						}
					}
					all := d.cursors()

					require.NoError(t, d.store.Close())
					require.NoError(t, os.WriteFile(filepath.Join(dir, "b"), copied.Bytes(), 0o600))
					d.open(filepath.Join(dir, "b"))
					d.tasks["x"] = tasks
					for range next {
						d.restart("x")
					}
					for token, cursor := range all {
						got, err := d.box.Resolve(cursor)
						if good[token] == cursor {
							require.NoError(t, err)
							require.Equal(t, token, got)
							continue
						}
						require.ErrorIs(t, err, ErrPutBack, "%s", cursor)
						require.ErrorIs(t, err, state.ErrCompacted)
					}
					require.NoError(t, d.store.Close())
				})
			}
		}
	}
}

// open is a restart of the agent on another file.
func (d *desk) open(path string) {
	store, err := state.Open(state.OpenConfig{Path: path})
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = store.Close() })
	d.store = store
	d.again()
}

func TestResolve(t *testing.T) {
	d := newDesk(t)
	d.limit = 5
	d.again()
	c, err := d.box.Cursor(0)
	require.NoError(t, err)
	require.Equal(t, "0", c)
	d.receive("x")
	for range 3 {
		d.restart("x")
	}
	early := d.cursors()
	for cursor, want := range map[string]error{
		"": ErrCursor, "x": ErrCursor, "1@": ErrCursor, "@": ErrCursor, "-1": ErrCursor, "1@x@y": ErrPutBack, "0@none": ErrPutBack,
		"3": nil, "99": nil, // bare: as it is
		"4@" + d.box.epoch: ErrPutBack, "3@" + strings.Repeat("0", 16): ErrPutBack,
	} {
		_, err := d.box.Resolve(cursor)
		require.ErrorIs(t, err, want, cursor)
	}
	for range 4 {
		d.restart("x")
	}
	_, err = d.box.Resolve(early[1])
	require.ErrorIs(t, err, state.ErrCompacted)
	require.False(t, errors.Is(err, ErrPutBack), "it is of this history")
	token, err := d.box.Resolve(early[2]) // the last that is dropped: all that is kept comes after it
	require.NoError(t, err)
	require.Equal(t, uint64(2), token)

	// What a version before this one wrote, and what is damaged, has bare tokens.
	for _, raw := range [][]byte{nil, []byte("damaged")} {
		require.NoError(t, d.store.Update(func(tx state.Tx) error {
			if raw == nil {
				return errors.Join(tx.Delete(d.box.cfg.Path, "runs"), tx.Delete(d.box.cfg.Path, runKey))
			}
			return tx.Put(d.box.cfg.Path, "runs", raw)
		}))
		events, err := d.box.Read(6, 0)
		require.NoError(t, err)
		require.Equal(t, "7", events[0].Cursor)
	}
	d.again()
	d.restart("x")
	events, err := d.box.Read(6, 0)
	require.NoError(t, err)
	require.Equal(t, "7", events[0].Cursor)
	require.Equal(t, "8@"+d.box.epoch, events[1].Cursor)
}

// The list of runs stays short, whatever an agent does that dies all the time.
func TestRunsAreBounded(t *testing.T) {
	d := newDesk(t)
	d.receive("x")
	for range 3 * maxRuns {
		d.restart("x")
		d.again()
	}
	var all []run
	require.NoError(t, d.store.View(func(tx state.Tx) (err error) { all, err = d.box.runs(tx); return err }))
	require.Len(t, all, maxRuns)
	d.limit = 10
	d.again()
	d.restart("x")
	d.again()
	d.restart("x")
	require.NoError(t, d.store.View(func(tx state.Tx) (err error) { all, err = d.box.runs(tx); return err }))
	require.LessOrEqual(t, len(all), 12, "of runs of which nothing is kept nothing is known")
	d.cursors()
}

func FuzzResolve(f *testing.F) {
	for _, s := range []string{"0", "17", "17@5f3a9c01d2e4b687", "@", "1@@", "18446744073709551616"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := newDesk(t)
		d.receive("x")
		d.restart("x")
		if token, err := d.box.Resolve(s); err == nil && strings.Contains(s, "@") && token > 1 {
			t.Fatalf("%q is %d", s, token)
		}
	})
}
