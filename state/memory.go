// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
)

// Memory returns an empty store that forgets all with the process. It starts no
// goroutine and never waits for anything but another Update, so it serves
// virtual time too.
func Memory() Store {
	m := &memory{}
	m.root.Store(&memNode{})
	return m
}

// memory publishes an immutable tree. A View takes the current one; an Update
// makes a new one and swaps it in.
type memory struct {
	root    atomic.Pointer[memNode]
	commits atomic.Int64
	closed  atomic.Bool
	write   sync.Mutex
	life    sync.RWMutex // read-locked by transactions, locked by Close
}

type memNode struct {
	vals *treap[[]byte]
	kids *treap[*memNode]
}

func (m *memory) View(fn func(Tx) error) error {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed.Load() {
		return ErrClosed
	}
	tx := &memTx{root: m.root.Load()}
	defer func() { tx.root = nil }()
	return fn(tx)
}

func (m *memory) Update(fn func(Tx) error) error {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed.Load() {
		return ErrClosed
	}
	m.write.Lock()
	defer m.write.Unlock()
	old := m.root.Load()
	tx := &memTx{root: old, writable: true}
	defer func() { tx.root = nil }()
	if err := fn(tx); err != nil {
		return err
	}
	if tx.root != old {
		m.root.Store(tx.root)
		m.commits.Add(1)
	}
	return nil
}

func (m *memory) Close() error {
	m.life.Lock()
	defer m.life.Unlock()
	if m.closed.Swap(true) {
		return ErrClosed
	}
	m.root.Store(&memNode{})
	return nil
}

func (m *memory) Commits() int64 { return m.commits.Load() }

// memTx holds the tree as this transaction sees it; nil once it has ended.
type memTx struct {
	root     *memNode
	writable bool
}

// node returns the node p, an empty one if there is none.
func (t *memTx) node(p Path) *memNode {
	if t.root == nil {
		panic(txEnded)
	}
	n := t.root
	for _, e := range p {
		kid, ok := n.kids.get(e)
		if !ok {
			return &memNode{}
		}
		n = kid
	}
	return n
}

func (t *memTx) Get(p Path, key string) []byte {
	if v, ok := t.node(p).vals.get(key); ok {
		return append([]byte{}, v...)
	}
	return nil
}

func (t *memTx) Keys(p Path) []string  { return slices.Collect(t.node(p).vals.keys()) }
func (t *memTx) Nodes(p Path) []string { return slices.Collect(t.node(p).kids.keys()) }

func (t *memTx) Put(p Path, key string, val []byte) error {
	if err := t.check(p, key); err != nil {
		return err
	}
	n := t.node(p)
	if _, isNode := n.kids.get(key); isNode {
		return errKind(p, key)
	}
	if old, ok := n.vals.get(key); ok && bytes.Equal(old, val) {
		return nil
	}
	root, err := t.root.change(p, p, func(n *memNode) { n.vals = n.vals.put(key, append([]byte{}, val...)) })
	if err == nil {
		t.root = root
	}
	return err
}

func (t *memTx) Delete(p Path, key string) error {
	if err := t.check(p, key); err != nil {
		return err
	}
	n := t.node(p)
	if _, isNode := n.kids.get(key); isNode {
		return errKind(p, key)
	}
	if _, ok := n.vals.get(key); !ok {
		return nil
	}
	root, err := t.root.change(p, p, func(n *memNode) { n.vals = n.vals.del(key) })
	if err == nil {
		t.root = root
	}
	return err
}

func (t *memTx) DeleteTree(p Path) error {
	if err := checkPath(p); err != nil {
		return err
	}
	if !t.writable {
		return ErrReadOnly
	}
	up, name := p[:len(p)-1], p[len(p)-1]
	n := t.node(up)
	if _, isVal := n.vals.get(name); isVal {
		return errKind(up, name)
	}
	if _, ok := n.kids.get(name); !ok {
		return nil
	}
	root, err := t.root.change(up, up, func(n *memNode) { n.kids = n.kids.del(name) })
	if err == nil {
		t.root = root
	}
	return err
}

func (t *memTx) check(p Path, key string) error {
	if err := checkName(p, key); err != nil {
		return err
	}
	if !t.writable {
		return ErrReadOnly
	}
	return nil
}

// change returns a copy of n in which f was applied to the node rest, which is
// made where it is missing. full is for the message.
func (n *memNode) change(full, rest Path, f func(*memNode)) (*memNode, error) {
	c := *n
	if len(rest) == 0 {
		f(&c)
		return &c, nil
	}
	if _, isVal := n.vals.get(rest[0]); isVal {
		return nil, errKind(full[:len(full)-len(rest)], rest[0])
	}
	kid, ok := n.kids.get(rest[0])
	if !ok {
		kid = &memNode{}
	}
	kid, err := kid.change(full, rest[1:], f)
	if err != nil {
		return nil, err
	}
	c.kids = c.kids.put(rest[0], kid)
	return &c, nil
}
