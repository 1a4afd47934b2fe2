// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
)

const txEnded = "state: transaction used after its function returned"

// fault is a panic of bbolt, which is how it meets a damaged page and how Go
// shows a failed read of the mapped file. It unwinds the caller's function.
type fault struct{ reason any }

func (f *fault) Error() string { return fmt.Sprint(f.reason) }

// boltTx is a Tx on a bbolt transaction. Nodes are buckets.
type boltTx struct {
	tx     *bbolt.Tx // nil once the transaction has ended
	writes int       // changes made
	fault  *fault
	sealer Sealer
	older  func(Path, string, []byte) ([]byte, error) // of a pending upgrade; may be nil

	// The bucket used last: most transactions stay in one node.
	path   Path
	bucket *bbolt.Bucket
}

// contain is deferred by every method around bbolt.
func (t *boltTx) contain() {
	if r := recover(); r != nil {
		if t.tx == nil {
			panic(r)
		}
		t.fault = &fault{reason: r}
		panic(t.fault)
	}
}

func (t *boltTx) root() *bbolt.Tx {
	if t.tx == nil {
		panic(txEnded)
	}
	return t.tx
}

// node returns the bucket p, nil if there is none.
func (t *boltTx) node(p Path) *bbolt.Bucket {
	tx := t.root()
	if len(p) == 0 || p[0] == metaNode {
		return nil
	}
	if t.bucket != nil && slices.Equal(p, t.path) {
		return t.bucket
	}
	b := tx.Bucket([]byte(p[0]))
	for _, e := range p[1:] {
		if b == nil {
			return nil
		}
		b = b.Bucket([]byte(e))
	}
	if b != nil {
		t.path, t.bucket = append(t.path[:0], p...), b
	}
	return b
}

func (t *boltTx) Get(p Path, key string) []byte {
	defer t.contain()
	b := t.node(p)
	if b == nil {
		return nil
	}
	v, _ := t.unseal(b.Get([]byte(key)))
	return v
}

// unseal returns a copy of the value that raw holds; clear if it was not sealed
// though it should be. Such a value is from before there was a sealer, or is
// damaged, which its reader finds out.
func (t *boltTx) unseal(raw []byte) (val []byte, clear bool) {
	if raw == nil {
		return nil, false
	}
	raw = append([]byte{}, raw...)
	if t.sealer == nil {
		return raw, false
	}
	if val, err := t.sealer.Unseal(raw); err == nil {
		return append([]byte{}, val...), false
	}
	return raw, true
}

func (t *boltTx) Keys(p Path) (out []string) {
	defer t.contain()
	b := t.node(p)
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if v != nil {
			out = append(out, string(k))
		}
	}
	return out
}

func (t *boltTx) Nodes(p Path) (out []string) {
	defer t.contain()
	c := t.root().Cursor()
	if len(p) > 0 {
		b := t.node(p)
		if b == nil {
			return nil
		}
		c = b.Cursor()
	}
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if v == nil && (len(p) > 0 || string(k) != metaNode) {
			out = append(out, string(k))
		}
	}
	return out
}

func (t *boltTx) Put(p Path, key string, val []byte) error {
	defer t.contain()
	if err := t.check(p, key); err != nil {
		return err
	}
	if t.older != nil {
		was, err := t.older(p, key, val)
		if err != nil {
			return fmt.Errorf("state: %s as the version before reads it: %w", p.Join(key), err)
		}
		val = was
	}
	b := t.node(p)
	if b != nil {
		old := b.Get([]byte(key))
		if was, clear := t.unseal(old); was != nil && !clear && bytes.Equal(was, val) {
			return nil
		}
		if old == nil && b.Bucket([]byte(key)) != nil {
			return errKind(p, key)
		}
	}
	val, err := sealed(t.sealer, val)
	if err != nil {
		return err
	}
	if b == nil {
		if b, err = t.make(p); err != nil {
			return err
		}
	}
	t.writes++
	return b.Put([]byte(key), val)
}

// sealed returns what is stored for val, a copy in any case.
func sealed(s Sealer, val []byte) ([]byte, error) {
	val = append([]byte{}, val...)
	if s == nil {
		return val, nil
	}
	out, err := s.Seal(val)
	if err != nil {
		return nil, fmt.Errorf("state: seal: %w", err)
	}
	return append([]byte{}, out...), nil
}

// make makes the node p. It fails before it changes anything.
func (t *boltTx) make(p Path) (*bbolt.Bucket, error) {
	tx := t.root()
	b, err := tx.CreateBucketIfNotExists([]byte(p[0]))
	for i, e := range p[1:] {
		if err != nil {
			return nil, err
		}
		if b.Get([]byte(e)) != nil {
			return nil, errKind(p[:i+1], e)
		}
		b, err = b.CreateBucketIfNotExists([]byte(e))
	}
	return b, err
}

func (t *boltTx) Delete(p Path, key string) error {
	defer t.contain()
	if err := t.check(p, key); err != nil {
		return err
	}
	b := t.node(p)
	if b == nil {
		return nil
	}
	if b.Get([]byte(key)) == nil {
		if b.Bucket([]byte(key)) != nil {
			return errKind(p, key)
		}
		return nil
	}
	t.writes++
	return b.Delete([]byte(key))
}

func (t *boltTx) DeleteTree(p Path) error {
	defer t.contain()
	if err := checkPath(p); err != nil {
		return err
	}
	if !t.root().Writable() {
		return ErrReadOnly
	}
	up, name := p[:len(p)-1], []byte(p[len(p)-1])
	if len(up) == 0 {
		if t.tx.Bucket(name) == nil {
			return nil
		}
		t.writes++
		t.bucket = nil
		return t.tx.DeleteBucket(name)
	}
	b := t.node(up)
	if b == nil {
		return nil
	}
	if b.Bucket(name) == nil {
		if b.Get(name) != nil {
			return errKind(up, string(name))
		}
		return nil
	}
	t.writes++
	t.bucket = nil
	return b.DeleteBucket(name)
}

func (t *boltTx) check(p Path, key string) error {
	if err := checkName(p, key); err != nil {
		return err
	}
	if !t.root().Writable() {
		return ErrReadOnly
	}
	return nil
}
