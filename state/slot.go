// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
)

// Slot names one persisted value of type T and the version of its form. It is
// plain data; copy it, keep it in a package variable or make it anew.
//
// T is stored as JSON. A field that is added, with a zero value that means what
// its absence meant, raises no version. Any other change does, and Migrate then
// reads the older forms.
type Slot[T any] struct {
	// Key is the value's name in its node.
	Key string
	// Version is what Save writes. It starts at 1 and never falls.
	Version int
	// Migrate reads data that an older version wrote. Nil: there is none.
	Migrate func(from int, data []byte) (T, error)
}

// Load reads the slot in the node p; ok is false if there is none. An unreadable
// value is ErrCorrupt, one of a later version ErrTooNew; both name path and key
// and concern this value only.
func (s Slot[T]) Load(tx Tx, p Path) (v T, ok bool, err error) {
	raw := tx.Get(p, s.Key)
	if raw == nil {
		return v, false, nil
	}
	v, err = s.Decode(raw)
	if err != nil {
		var zero T
		return zero, false, fmt.Errorf("%w (%s)", err, p.Join(s.Key))
	}
	return v, true, nil
}

// Save writes v to the slot in the node p. It encodes inside the transaction;
// see Encode for what is large or waits for nothing.
func (s Slot[T]) Save(tx Tx, p Path, v T) error {
	raw, err := s.Encode(v)
	if err != nil {
		return err
	}
	return tx.Put(p, s.Key, raw)
}

// Encode returns what Save would Put. Transactions run one at a time, so what
// many callers save often is better encoded before the transaction:
//
//	raw, err := slot.Encode(v)
//	…
//	err = store.Update(func(tx state.Tx) error { return tx.Put(p, slot.Key, raw) })
func (s Slot[T]) Encode(v T) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("state: encode %q: %w", s.Key, err)
	}
	return seal(s.Version, data), nil
}

// Decode is the inverse of Encode.
func (s Slot[T]) Decode(raw []byte) (v T, err error) {
	version, data, err := unseal(raw)
	switch {
	case err != nil:
		return v, err
	case version > s.Version:
		return v, fmt.Errorf("%w: version %d, this program knows %d", ErrTooNew, version, s.Version)
	case version < s.Version && s.Migrate == nil:
		return v, fmt.Errorf("%w: version %d, and nothing migrates it to %d", ErrCorrupt, version, s.Version)
	case version < s.Version:
		v, err = s.Migrate(version, data)
	default:
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		return v, fmt.Errorf("%w: version %d: %w", ErrCorrupt, version, err)
	}
	return v, nil
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // made once by the library

// seal puts version and checksum before data.
func seal(version int, data []byte) []byte {
	out := make([]byte, 0, binary.MaxVarintLen64+4+len(data))
	out = binary.AppendUvarint(out, uint64(version))
	sum := crc32.Update(crc32.Checksum(out, castagnoli()), castagnoli(), data)
	return append(binary.LittleEndian.AppendUint32(out, sum), data...)
}

// unseal is the inverse of seal. data is a part of raw.
func unseal(raw []byte) (version int, data []byte, err error) {
	v, n := binary.Uvarint(raw)
	if n <= 0 || len(raw) < n+4 || v > math.MaxInt32 || len(binary.AppendUvarint(nil, v)) != n {
		return 0, nil, fmt.Errorf("%w: no version", ErrCorrupt)
	}
	data = raw[n+4:]
	sum := crc32.Update(crc32.Checksum(raw[:n], castagnoli()), castagnoli(), data)
	if sum != binary.LittleEndian.Uint32(raw[n:]) {
		return 0, nil, fmt.Errorf("%w: checksum differs", ErrCorrupt)
	}
	return int(v), data, nil
}
