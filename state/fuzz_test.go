// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"reflect"
	"testing"
)

// Any bytes are a value or ErrCorrupt or ErrTooNew, and what is a value has one
// encoding only.
func FuzzDecode(f *testing.F) {
	slot := Slot[map[string]any]{Key: "k", Version: 2, Migrate: func(from int, data []byte) (map[string]any, error) {
		return map[string]any{"from": from, "data": string(data)}, nil
	}}
	raw, err := slot.Encode(map[string]any{"a": 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(seal(1, []byte("old")))
	f.Add(seal(3, []byte("new")))
	f.Add(seal(2, []byte("{")))
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		v, err := slot.Decode(raw)
		if !bytes.Equal(before, raw) {
			t.Error("Decode changed its input")
		}
		switch {
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrTooNew):
			return
		case err != nil:
			t.Fatalf("neither: %v", err)
		}
		version, data, err := unseal(raw)
		if err != nil || version > 2 || !bytes.Equal(seal(version, data), raw) {
			t.Errorf("version %d %q: %v", version, data, err)
		}
		if version == 2 {
			again, err := slot.Encode(v)
			if err != nil {
				t.Fatal(err)
			}
			if w, err := slot.Decode(again); err != nil || !reflect.DeepEqual(v, w) {
				t.Errorf("%v became %v: %v", v, w, err)
			}
		}
	})
}

// A damaged file is refused or usable, and never ends the process: the harm is
// a list of places and bytes to put there.
func FuzzDamagedFile(f *testing.F) {
	good, dir := sample(f), quickDir(f)
	f.Add([]byte{}, uint16(0))
	f.Add(binary.BigEndian.AppendUint32(nil, 2*4096+8), uint16(1))
	f.Add([]byte("\x00\x00\x20\x08\x02\x00\x00\x40\x0a\x11"), uint16(9))
	f.Fuzz(func(t *testing.T, harm []byte, cut uint16) {
		b := bytes.Clone(good)
		for ; len(harm) >= 5; harm = harm[5:] {
			b[int(binary.BigEndian.Uint32(harm))%len(b)] = harm[4]
		}
		if len(harm) > 0 { // sometimes cut off too
			b = b[:len(b)-int(cut)%len(b)]
		}
		// A node may have become a value, and no check can know.
		if err := use(t, dir, b); err != nil && !errors.Is(err, ErrCorruptStore) && !errors.Is(err, ErrCorrupt) {
			t.Error(err)
		}
	})
}

// Heads with a valid checksum that say anything.
func FuzzHead(f *testing.F) {
	good, dir := sample(f), quickDir(f)
	m, err := readMeta(bytes.NewReader(good), int64(len(good)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(4096), m.root, m.freelist, m.end, m.txid)
	f.Add(uint32(4096), m.freelist, m.root, m.end, m.txid)
	f.Add(uint32(4096), m.root, uint64(1<<64-1), m.end, m.txid) // "no free list"
	f.Add(uint32(1024), m.root, m.freelist, m.end*4, m.txid)
	f.Add(uint32(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, pageSize uint32, root, freelist, end, txid uint64) {
		b := bytes.Clone(good)
		for _, at := range []int{0, 4096} {
			h := b[at+pageHeader:][:metaSize]
			order.PutUint32(h[8:], pageSize)
			for i, v := range []uint64{root, 0, freelist, end, txid} {
				order.PutUint64(h[16+8*i:], v)
			}
			sum := fnv.New64a()
			_, _ = sum.Write(h[:metaSize-8])
			order.PutUint64(h[metaSize-8:], sum.Sum64())
		}
		if err := use(t, dir, b); err != nil && !errors.Is(err, ErrCorruptStore) {
			t.Error(err)
		}
	})
}

// Both stores do the same with any sequence of calls, and the file still does
// after it was opened again.
func FuzzStoresAgree(f *testing.F) {
	dir := quickDir(f)
	f.Add([]byte("\x00\x01\x02\x03"))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz0123456789"))
	f.Add(bytes.Repeat([]byte{0, 17, 255, 3, 86}, 20))
	n := 0
	f.Fuzz(func(t *testing.T, ops []byte) {
		n++
		path := filepath.Join(dir, fmt.Sprint(n, ".db"))
		file, err := Open(OpenConfig{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		mem := Memory()
		for len(ops) > 1 {
			size := min(int(ops[0]%16)*2, len(ops)-1)
			part, fail := ops[1:1+size], ops[0]&16 > 0
			ops = ops[1+size:]
			got, want := play(file, part, fail), play(mem, part, fail)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("file %q, memory %q", got, want)
			}
		}
		if got, want := file.(Stats).Commits(), mem.(Stats).Commits(); got != want {
			t.Errorf("commits: file %d, memory %d", got, want)
		}
		if got, want := dumpAll(t, file), dumpAll(t, mem); got != want {
			t.Errorf("file:\n%smemory:\n%s", got, want)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		if file, err = Open(OpenConfig{Path: path}); err != nil {
			t.Fatal(err)
		}
		if got, want := dumpAll(t, file), dumpAll(t, mem); got != want {
			t.Errorf("opened again:\n%smemory:\n%s", got, want)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// play runs one transaction: two bytes are one call. It returns all that the
// calls returned.
func play(s Store, ops []byte, fail bool) (out []string) {
	paths := []Path{nil, {"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "x"}, {"b"}, {"a", "b", "c", "d"}, {"a", ""}}
	names := []string{"b", "c", "x", "y", "", "\x00", "k1", "k2"}
	err := s.Update(func(tx Tx) error {
		out = nil
		say := func(v any) { out = append(out, fmt.Sprintf("%v", v)) }
		for i := 0; i+1 < len(ops); i += 2 {
			p, name, val := paths[ops[i]%8], names[ops[i]>>3%8], ops[i+1]
			switch val % 6 {
			case 0, 1:
				say(tx.Put(p, name, bytes.Repeat([]byte{val}, int(val)*20)))
			case 2:
				say(tx.Delete(p, name))
			case 3:
				say(tx.DeleteTree(p))
			case 4:
				say(len(tx.Get(p, name)))
			default:
				say(tx.Keys(p))
				say(tx.Nodes(p))
			}
		}
		if fail {
			return errors.New("fail")
		}
		return nil
	})
	return append(out, fmt.Sprint(err))
}
