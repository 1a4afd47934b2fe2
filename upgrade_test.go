// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
)

// D21: the state of a newer version is refused before any write, and the tasks are
// not touched; with the newer version they are found again.
func TestNewerState(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	n.apply(1, alloc("a", 1, spec.JobService))
	was := n.status("a", allocrunner.Running)
	_, pending := n.Upgrade()
	require.False(t, pending)
	require.NoError(t, n.CommitUpgrade())
	n.stop()
	path := filepath.Join(n.cfg.DataDir, "state.db")
	layout := func(version byte) {
		t.Helper()
		val := binary.LittleEndian.AppendUint32([]byte{version}, crc32.Checksum([]byte{version}, crc32.MakeTable(crc32.Castagnoli)))
		db, err := bbolt.Open(path, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("_store")).Put([]byte("layout"), val) }))
		require.NoError(t, db.Close())
	}
	layout(2)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = New(n.cfg)
	require.ErrorIs(t, err, state.ErrTooNew)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	require.Len(t, f.Alive(), 1)
	layout(1)
	n = start(t, n.cfg)
	is, _ := n.Alloc("a")
	require.Equal(t, was.Tasks["t"].Handle.TaskID, is.Tasks["t"].Handle.TaskID)
	require.Equal(t, 1, f.Lives())
}

// A node goes back to a copy of its state: what it knew then it finds again, what
// came later it ends, and it is the same node.
func TestBackup(t *testing.T) {
	f := fake()
	n := start(t, config(t, f))
	al := alloc("a", 1, spec.JobService)
	n.apply(1, al)
	was := n.status("a", allocrunner.Running)
	var copied bytes.Buffer
	size, err := n.Backup(&copied)
	require.NoError(t, err)
	require.EqualValues(t, copied.Len(), size)
	n.apply(2, al, alloc("b", 2, spec.JobService))
	n.status("b", allocrunner.Running)
	events, err := n.EventsSince(0, 0)
	require.NoError(t, err)
	id := n.id
	n.stop()
	_, err = n.Backup(io.Discard)
	require.ErrorIs(t, err, state.ErrClosed)

	require.NoError(t, os.WriteFile(filepath.Join(n.cfg.DataDir, "state.db"), copied.Bytes(), 0o600))
	n = start(t, n.cfg)
	require.Equal(t, id, n.id)
	is, _ := n.Alloc("a")
	require.Equal(t, was.Tasks["t"].Handle.TaskID, is.Tasks["t"].Handle.TaskID)
	_, found := n.Alloc("b")
	require.False(t, found)
	n.apply(2, al, alloc("b", 2, spec.JobService))
	n.status("b", allocrunner.Running)
	require.Len(t, f.Alive(), 2)
	// A reader that has seen events of b is told, whatever has come since.
	last := events[len(events)-1]
	require.Equal(t, "b", last.AllocID)
	_, err = n.ResolveEvent(last.Cursor)
	require.ErrorIs(t, err, outbox.ErrPutBack)
	token, err := n.ResolveEvent(events[0].Cursor)
	require.NoError(t, err)
	_, err = n.EventsSince(token, 0)
	require.NoError(t, err)
	_, token, err = n.Statuses()
	require.NoError(t, err)
	cursor, err := n.EventCursor(token)
	require.NoError(t, err)
	resolved, err := n.ResolveEvent(cursor)
	require.NoError(t, err)
	require.Equal(t, token, resolved)

	// In another data directory it is the same node: its runtime directory is taken.
	other := n.cfg
	other.DataDir = filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.MkdirAll(other.DataDir, 0o711))
	require.NoError(t, os.WriteFile(filepath.Join(other.DataDir, "state.db"), copied.Bytes(), 0o600))
	_, err = New(other)
	var taken *RuntimeDirError
	require.ErrorAs(t, err, &taken)
	require.Len(t, f.Alive(), 2)
}
