// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import "iter"

// treap is an immutable sorted map: a change returns a new one that shares all
// but O(log n) nodes with the old. The nil treap is empty. A node's priority is
// a hash of its key, so equal contents have equal shapes.
type treap[V any] struct {
	key         string
	val         V
	rank        uint32
	left, right *treap[V]
}

func rank(key string) uint32 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	// The last bytes of a key, often the only ones that differ, must reach the
	// high bits.
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

func (t *treap[V]) get(key string) (v V, ok bool) {
	for t != nil {
		switch {
		case key < t.key:
			t = t.left
		case key > t.key:
			t = t.right
		default:
			return t.val, true
		}
	}
	return v, false
}

func (t *treap[V]) put(key string, val V) *treap[V] {
	if t == nil {
		return &treap[V]{key: key, val: val, rank: rank(key)}
	}
	c := *t
	switch {
	case key < t.key:
		c.left = t.left.put(key, val)
		if l := c.left; l.rank > c.rank {
			c.left, l.right = l.right, &c
			return l
		}
	case key > t.key:
		c.right = t.right.put(key, val)
		if r := c.right; r.rank > c.rank {
			c.right, r.left = r.left, &c
			return r
		}
	default:
		c.val = val
	}
	return &c
}

func (t *treap[V]) del(key string) *treap[V] {
	if t == nil {
		return nil
	}
	c := *t
	switch {
	case key < t.key:
		c.left = t.left.del(key)
	case key > t.key:
		c.right = t.right.del(key)
	default:
		return merge(t.left, t.right)
	}
	return &c
}

// merge joins two treaps, all keys of a being below those of b.
func merge[V any](a, b *treap[V]) *treap[V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.rank > b.rank:
		c := *a
		c.right = merge(a.right, b)
		return &c
	default:
		c := *b
		c.left = merge(a, b.left)
		return &c
	}
}

// keys yields the keys in order.
func (t *treap[V]) keys() iter.Seq[string] {
	return func(yield func(string) bool) { t.walk(yield) }
}

func (t *treap[V]) walk(yield func(string) bool) bool {
	return t == nil || t.left.walk(yield) && yield(t.key) && t.right.walk(yield)
}
