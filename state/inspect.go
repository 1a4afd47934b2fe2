// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts its pages: on a damaged file it panics, reads beyond the mapping
// or walks in circles. So every file is read through once, page by page, before
// bbolt sees it. This is bbolt's form, in the byte order of the machine:
//
//	page     id u64, flags u16, count u16, overflow u32; then elements
//	meta     (pages 0 and 1, the higher txid counts) magic, version, page size,
//	         flags u32; root, sequence, freelist, end, txid, FNV-64a u64
//	branch   elements {pos, ksize u32, page u64}, keys
//	leaf     elements {flags, pos, ksize, vsize u32}, keys and values; flag 1 is
//	         a bucket: value = root page, sequence u64; root 0: a page follows
//	freelist count ids u64; count 0xffff: the first u64 is the count
const (
	pageHeader = 16
	pageElem   = 16
	metaSize   = 64

	flagBranch   = 1
	flagLeaf     = 2
	flagFreelist = 16
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
)

var order = binary.NativeEndian

// damage is what is wrong with a file.
type damage string

func (d damage) Error() string { return string(d) }

func damaged(format string, args ...any) error { return damage(fmt.Sprintf(format, args...)) }

// fileInfo is what inspect found.
type fileInfo struct {
	layout   int    // 0: not a state file
	sealed   []byte // the mark of a sealed one
	pageSize int64
	pages    uint64 // in use or free
	free     uint64
}

// inspect reads a file through. An error is a damage or one of reading.
func inspect(r io.ReaderAt, size int64) (fileInfo, error) {
	c := &checker{r: r}
	m, err := readMeta(r, size)
	if err != nil {
		return c.info, err
	}
	c.info.pageSize, c.info.pages = m.pageSize, m.end
	if m.end < 4 || m.end > uint64(size/m.pageSize) {
		return c.info, damaged("cut off: %d pages are used, %d are there", m.end, size/m.pageSize)
	}
	c.seen = make([]bool, m.end)
	c.seen[0], c.seen[1] = true, true
	if err := c.tree(m.root, nil, nil, rootBucket, 0); err != nil {
		return c.info, err
	}
	return c.info, c.freelist(m.freelist)
}

type metaPage struct {
	pageSize                  int64
	root, freelist, end, txid uint64
}

// readMeta returns the meta page that counts.
func readMeta(r io.ReaderAt, size int64) (m metaPage, err error) {
	found := false
	read := func(off int64) error {
		var buf [pageHeader + metaSize]byte
		if off > size-int64(len(buf)) {
			return nil
		}
		if _, err := r.ReadAt(buf[:], off); err != nil {
			return err
		}
		if got, ok := parseMeta(buf[pageHeader:]); ok && (off == 0 || off == got.pageSize) && (!found || got.txid > m.txid) {
			m, found = got, true
		}
		return nil
	}
	if err := read(0); err != nil {
		return m, err
	}
	// If the first is torn the page size is not known: try all.
	first, last := int64(1<<10), int64(16<<20)
	if found {
		first, last = m.pageSize, m.pageSize
	}
	for off := first; off <= last; off *= 2 {
		if err := read(off); err != nil {
			return m, err
		}
	}
	if !found {
		return m, damaged("no valid head")
	}
	return m, nil
}

func parseMeta(b []byte) (m metaPage, ok bool) {
	h := fnv.New64a()
	_, _ = h.Write(b[:metaSize-8])
	m.pageSize = int64(order.Uint32(b[8:]))
	m.root, m.freelist = order.Uint64(b[16:]), order.Uint64(b[32:])
	m.end, m.txid = order.Uint64(b[40:]), order.Uint64(b[48:])
	return m, order.Uint32(b) == boltMagic && order.Uint32(b[4:]) == boltVersion &&
		m.pageSize >= 1<<10 && m.pageSize <= 16<<20 && m.pageSize&(m.pageSize-1) == 0 &&
		order.Uint64(b[metaSize-8:]) == h.Sum64()
}

// Which bucket a page belongs to, as far as it matters here.
type bucketKind int

const (
	rootBucket bucketKind = iota
	metaBucket
	anyBucket
)

type checker struct {
	r    io.ReaderAt
	info fileInfo
	seen []bool
	bufs [][]byte // of pages that are done with
}

// page reads a page that was not met before. The caller gives the buffer back.
func (c *checker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= uint64(len(c.seen)) {
		return nil, damaged("page %d does not exist", id)
	}
	size, n := c.info.pageSize, uint64(1)
	buf := make([]byte, 0)
	if last := len(c.bufs) - 1; last >= 0 {
		buf, c.bufs = c.bufs[last], c.bufs[:last]
	}
	buf = grow(buf, size)
	if err := c.read(buf, id); err != nil {
		return nil, err
	}
	if over := uint64(order.Uint32(buf[12:])); over > 0 {
		if over >= uint64(len(c.seen))-id {
			return nil, damaged("page %d reaches beyond the end", id)
		}
		n += over
		buf = grow(buf, size*int64(n))
		if err := c.read(buf, id); err != nil {
			return nil, err
		}
	}
	if got := order.Uint64(buf); got != id {
		return nil, damaged("page %d says it is %d", id, got)
	}
	for i := id; i < id+n; i++ {
		if c.seen[i] {
			return nil, damaged("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	return buf, nil
}

func grow(buf []byte, n int64) []byte {
	if int64(cap(buf)) < n {
		return make([]byte, n)
	}
	return buf[:n]
}

func (c *checker) read(buf []byte, id uint64) error {
	_, err := c.r.ReadAt(buf, int64(id)*c.info.pageSize)
	if errors.Is(err, io.EOF) {
		return damaged("cut off at page %d", id)
	}
	return err
}

// maxDepth is beyond any real tree: branches halve what is below, buckets nest
// as deep as paths.
const maxDepth = 10_000

// tree checks the page and all below. Keys must be ≥ low, and < high unless it
// is nil.
func (c *checker) tree(id uint64, low, high []byte, kind bucketKind, depth int) error {
	if depth > maxDepth {
		return damaged("nested too deep at page %d", id)
	}
	buf, err := c.page(id)
	if err != nil {
		return err
	}
	defer func() { c.bufs = append(c.bufs, buf) }()
	switch flags := order.Uint16(buf[8:]); flags {
	case flagLeaf:
		err = c.leaf(buf, low, high, kind, depth)
	case flagBranch:
		err = c.branch(buf, low, high, kind, depth)
	default:
		err = damaged("unknown kind %d", flags)
	}
	if d := damage(""); errors.As(err, &d) {
		return damaged("page %d: %s", id, d)
	}
	return err
}

func (c *checker) branch(buf, low, high []byte, kind bucketKind, depth int) error {
	count := int(order.Uint16(buf[10:]))
	if count == 0 || pageHeader+count*pageElem > len(buf) {
		return damaged("a branch of %d", count)
	}
	key := func(i int) ([]byte, error) {
		at := pageHeader + i*pageElem
		return slice(buf, at, order.Uint32(buf[at:]), order.Uint32(buf[at+4:]))
	}
	k, err := key(0)
	for i := range count {
		if err != nil {
			return err
		}
		if !inOrder(low, k, high, i > 0) {
			return damaged("keys out of order")
		}
		next := high
		if i+1 < count {
			if next, err = key(i + 1); err != nil {
				return err
			}
		}
		if err := c.tree(order.Uint64(buf[pageHeader+i*pageElem+8:]), k, next, kind, depth+1); err != nil {
			return err
		}
		low, k = k, next
	}
	return nil
}

// leaf checks a leaf page, also one inside a value.
func (c *checker) leaf(buf, low, high []byte, kind bucketKind, depth int) error {
	count := int(order.Uint16(buf[10:]))
	if pageHeader+count*pageElem > len(buf) {
		return damaged("a leaf of %d", count)
	}
	for i := range count {
		at := pageHeader + i*pageElem
		flags, pos := order.Uint32(buf[at:]), order.Uint32(buf[at+4:])
		ksize, vsize := order.Uint32(buf[at+8:]), order.Uint32(buf[at+12:])
		both, err := slice(buf, at, pos, ksize+vsize)
		if err != nil || uint64(ksize)+uint64(vsize) != uint64(len(both)) {
			return damaged("element %d reaches beyond the page", i)
		}
		key, val := both[:ksize], both[ksize:]
		switch {
		case !inOrder(low, key, high, i > 0):
			return damaged("keys out of order")
		case flags > 1 || flags == 0 && kind == rootBucket:
			return damaged("element %d of unknown kind", i)
		case flags == 1:
			err = c.bucket(val, kind, string(key), depth+1)
		case kind == metaBucket && string(key) == layoutKey:
			if c.info.layout, _, err = unseal(val); err != nil || c.info.layout < 1 {
				return damaged("no layout version")
			}
		case kind == metaBucket && string(key) == sealedKey:
			c.info.sealed = append([]byte{}, val...)
		}
		if err != nil {
			return err
		}
		low = key
	}
	return nil
}

func (c *checker) bucket(val []byte, in bucketKind, name string, depth int) error {
	if len(val) < 16 || depth > maxDepth {
		return damaged("node %q", name)
	}
	kind := anyBucket
	if in == rootBucket && name == metaNode {
		kind = metaBucket
	}
	if root := order.Uint64(val); root != 0 {
		return c.tree(root, nil, nil, kind, depth)
	}
	// A small bucket without further ones lies in the value.
	page := val[16:]
	if len(page) < pageHeader || order.Uint16(page[8:]) != flagLeaf {
		return damaged("node %q", name)
	}
	for i := range int(order.Uint16(page[10:])) {
		if at := pageHeader + i*pageElem; at+pageElem > len(page) || order.Uint32(page[at:]) != 0 {
			return damaged("node %q", name)
		}
	}
	return c.leaf(page, nil, nil, kind, depth)
}

// slice returns n bytes that begin pos after at.
func slice(buf []byte, at int, pos, n uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if pos < pageElem || from+uint64(n) > uint64(len(buf)) {
		return nil, damaged("an element reaches beyond the page")
	}
	return buf[from : from+uint64(n)], nil
}

// inOrder: low ≤ key < high, or low < key; no key is empty.
func inOrder(low, key, high []byte, strictly bool) bool {
	d := bytes.Compare(low, key)
	return len(key) > 0 && (d < 0 || d == 0 && !strictly) && (high == nil || bytes.Compare(key, high) < 0)
}

// freelist comes last: no page of the tree may be free.
func (c *checker) freelist(id uint64) error {
	buf, err := c.page(id)
	if err != nil {
		return fmt.Errorf("free pages: %w", err)
	}
	ids, n := buf[pageHeader:], uint64(order.Uint16(buf[10:]))
	if n == 0xffff {
		n, ids = order.Uint64(ids), ids[8:]
	}
	if order.Uint16(buf[8:]) != flagFreelist || n > uint64(len(ids)/8) {
		return damaged("page %d: no list of free pages", id)
	}
	for i := range n {
		free := order.Uint64(ids[i*8:])
		if free < 2 || free >= uint64(len(c.seen)) || c.seen[free] {
			return damaged("page %d is free and in use", free)
		}
		c.seen[free] = true
	}
	c.info.free = n
	return nil
}
