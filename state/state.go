// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package state is a typed, versioned, transactional tree of small values: what
// an agent must know again after a crash. It does not know what it stores.
package state

// Path names a node of the tree, such as {"v1", "alloc", id, "task-web"}. Its
// elements are opaque: any bytes but the empty string.
type Path []string

// Tx is a transaction. It is valid only inside the function it was passed to
// and only on that goroutine. What Get returns is a copy; what Put is given is
// copied.
type Tx interface {
	// Get returns the value of key in the node p, nil if there is none.
	Get(p Path, key string) []byte
	// Put sets a value and makes missing nodes. A value that is already there,
	// byte for byte, is not written again.
	Put(p Path, key string, val []byte) error
	// Delete removes a value; one that is not there is no error.
	Delete(p Path, key string) error
	// DeleteTree removes the node p and all below; one that is not there is no error.
	DeleteTree(p Path) error
	// Keys returns the names of the values in p, sorted.
	Keys(p Path) []string
	// Nodes returns the names of the nodes directly below p, sorted.
	Nodes(p Path) []string
}

// Store runs transactions. Its methods are safe for concurrent use.
type Store interface {
	// View runs fn on a consistent snapshot. It neither blocks nor is blocked by Update.
	View(fn func(Tx) error) error
	// Update runs fn and returns once its writes are on disk. Concurrent calls
	// share one transaction and one fsync, so fn may run more than once and must
	// be repeatable. If fn returns an error nothing of it is written.
	Update(fn func(Tx) error) error
	// Close waits for running transactions. Later calls return ErrClosed.
	Close() error
}
