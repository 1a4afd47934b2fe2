// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package state is a typed, versioned, transactional tree of small values: what
// an agent must know again after a crash. It does not know what it stores.
//
// A node has values and further nodes. Those who use it agree on this layout:
//
//	v1
//	├── agent                   what the agent itself remembers
//	├── drivermanager, devicemanager
//	├── events                  a Log
//	└── alloc
//	    └── <alloc id>          alloc, status, hook.<name>, …
//	        └── task-<name>     task, hook.<name>, …
//
// A value written through a Slot is
//
//	| version (uvarint) | CRC-32C of version and data (4 bytes) | data (JSON) |
//
// so that its age and its integrity are known without decoding it.
//
// Open keeps the tree in one file, Memory in memory; both behave alike.
//
//	callers      Update   Update   Update        Update
//	                 \       |       /              |
//	writer        [ one transaction ] fsync   [ the next ] fsync
//	                 \       |       /              |
//	answers         nil     nil     err            nil
//
// Beside the file <path> lie <path>.lock, which the agent holds as long as it
// lives, and after an upgrade <path>.v<N>.bak, the file as version N left it. An
// upgrade can be taken back for a day (Upgrader); a copy can be made at any time
// (Backuper).
//
// State is kept in clear, the tasks' environment included: the file is 0600. A
// host that wants more gives a Sealer.
package state

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

var (
	// ErrClosed is returned by every method after Close.
	ErrClosed = errors.New("state: store is closed")
	// ErrReadOnly is returned by a write inside View.
	ErrReadOnly = errors.New("state: write in a read-only transaction")
	// ErrTooNew says that a value, or the whole store, was written by a newer
	// program. It is left untouched; run that program, or restore a backup.
	ErrTooNew = errors.New("state: written by a newer version")
	// ErrCorrupt says that one value cannot be read, or is a node where a value
	// is meant; the others can.
	ErrCorrupt = errors.New("state: corrupt value")
	// ErrCorruptStore says that the file is damaged. The text names the file and
	// what to do.
	ErrCorruptStore = errors.New("state: damaged file")
	// ErrSealed says that the file is sealed and the sealer does not open it, or
	// there is none. The file is untouched.
	ErrSealed = errors.New("state: sealed with another key")
	// ErrLocked says that another agent, of this process or another, has the file open.
	ErrLocked = errors.New("state: in use by another agent")
	// ErrCommit says that the disk failed: the file could not be written, or not
	// be opened again after that. Whether the write is there is not known, so the
	// caller keeps it and calls again with backoff; the store opens the file
	// anew before the next try. errors.Is finds the cause (ENOSPC, EIO) too.
	ErrCommit = errors.New("state: not saved")
	// ErrCompacted says that records after the given token were dropped: take a
	// snapshot and go on from the last token.
	ErrCompacted = errors.New("state: log records were dropped")
)

// Path names a node of the tree, such as {"v1", "alloc", id, "task-web"}. Its
// elements are opaque: any bytes but the empty string, at most 32 KiB.
type Path []string

// Join returns p with elem appended. It never shares memory with p.
func (p Path) Join(elem ...string) Path { return append(slices.Clone(p), elem...) }

// String is for messages: elements joined by slashes, quoted where they hold
// anything unusual.
func (p Path) String() string {
	out := make([]string, len(p))
	for i, e := range p {
		if q := strconv.Quote(e); strings.Contains(e, "/") || len(q) != len(e)+2 {
			e = q
		}
		out[i] = e
	}
	return strings.Join(out, "/")
}

// Tx is a transaction. It is valid only inside the function it was passed to
// and only on that goroutine. What Get returns is a copy; what Put is given is
// copied. Within a node a name is a value or a node, never both.
type Tx interface {
	// Get returns the value of key in the node p, nil if there is none.
	Get(p Path, key string) []byte
	// Put sets a value and makes missing nodes. A value that is already there,
	// byte for byte, is not written again.
	Put(p Path, key string, val []byte) error
	// Delete removes a value; one that is not there is no error. The node stays.
	Delete(p Path, key string) error
	// DeleteTree removes the node p and all below; one that is not there is no error.
	DeleteTree(p Path) error
	// Keys returns the names of the values in p, sorted.
	Keys(p Path) []string
	// Nodes returns the names of the nodes directly below p, sorted; those of
	// the root if p is empty.
	Nodes(p Path) []string
}

// Store runs transactions. Its methods are safe for concurrent use. They do not
// nest: a function must not call its store.
type Store interface {
	// View runs fn on a consistent snapshot. It neither blocks nor is blocked by Update.
	View(fn func(Tx) error) error
	// Update runs fn and returns once its writes are on disk. Concurrent calls
	// share one transaction and one fsync, so fn may run more than once and must
	// be repeatable. If fn returns an error nothing of it is written and Update
	// returns that error; a panic of fn is a panic of Update. An fn that changes
	// nothing costs no write. A failure of the disk is ErrCommit.
	Update(fn func(Tx) error) error
	// Close waits for running transactions. Later calls return ErrClosed.
	Close() error
}

// Stats is implemented by the stores of this package.
type Stats interface {
	// Commits returns how many transactions changed something since the store
	// was opened, each of them one write of the file.
	Commits() int64
}

const maxName = 32 << 10 // what bbolt takes as a key

func checkName(p Path, key string) error {
	if err := checkPath(p); err != nil {
		return err
	}
	if key == "" || len(key) > maxName {
		return errors.New("state: key of " + p.String() + " must have 1 to 32768 bytes")
	}
	return nil
}

func checkPath(p Path) error {
	if len(p) == 0 {
		return errors.New("state: empty path")
	}
	for _, e := range p {
		if e == "" || len(e) > maxName {
			return errors.New("state: each element of a path must have 1 to 32768 bytes")
		}
	}
	if p[0] == metaNode {
		return errors.New("state: " + metaNode + " is the store's own node")
	}
	return nil
}

// errKind is returned where a name would be a value and a node: a mistake of the
// caller, or damage.
func errKind(p Path, name string) error {
	return fmt.Errorf("%w: %s is a node where a value is meant, or a value where a node is meant", ErrCorrupt, p.Join(name))
}

// CopyTree copies the values and nodes below from to the node to, bytes
// unchanged. to must not lie below from.
func CopyTree(tx Tx, from, to Path) error {
	for _, k := range tx.Keys(from) {
		if err := tx.Put(to, k, tx.Get(from, k)); err != nil {
			return err
		}
	}
	for _, n := range tx.Nodes(from) {
		if err := CopyTree(tx, from.Join(n), to.Join(n)); err != nil {
			return err
		}
	}
	return nil
}
