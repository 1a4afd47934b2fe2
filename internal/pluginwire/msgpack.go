// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginwire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ErrConfig says that a configuration cannot be read from the wire or written to
// it.
var ErrConfig = errors.New("config does not fit the plugin wire")

// maxDepth is how deep a configuration may nest.
const maxDepth = 64

// Pack writes a decoded configuration, a JSON value, as the wire has it: msgpack
// with sorted keys. Numbers are the smallest integer, else a float; decoders
// elsewhere take nothing in place of these. An integer beyond 64 bits is its
// decimal text. Nothing is no bytes.
func Pack(raw json.RawMessage) ([]byte, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: there is more after the value", ErrConfig)
	}
	return pack(nil, v, 0)
}

func pack(b []byte, v any, depth int) (_ []byte, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested more than %d deep", ErrConfig, maxDepth)
	}
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0), nil
	case bool:
		if v {
			return append(b, 0xc3), nil
		}
		return append(b, 0xc2), nil
	case string:
		return packString(b, v), nil
	case json.Number:
		return packNumber(b, v.String())
	case []any:
		b = packLen(b, len(v), 0x90, 0xdc)
		for _, e := range v {
			if b, err = pack(b, e, depth+1); err != nil {
				return nil, err
			}
		}
		return b, nil
	case map[string]any:
		b = packLen(b, len(v), 0x80, 0xde)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if b, err = pack(packString(b, k), v[k], depth+1); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: %T", ErrConfig, v)
}

// packLen begins an array or a map: the short form, or two or four bytes of
// length behind code and code+1.
func packLen(b []byte, n int, short, code byte) []byte {
	switch {
	case n < 16:
		return append(b, short|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, code), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code+1), uint32(n))
}

func packString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

func packNumber(b []byte, s string) ([]byte, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return packInt(b, n), nil
	}
	if whole(s) {
		return packString(b, s), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: number %.40s: %w", ErrConfig, s, err)
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return packInt(b, int64(f)), nil
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(f)), nil
}

func whole(s string) bool {
	for i, c := range []byte(s) {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return false
		}
	}
	return true
}

func packInt(b []byte, n int64) []byte {
	switch {
	case n >= 0 && n < 128, n < 0 && n >= -32:
		return append(b, byte(n))
	case n >= 0 && n <= math.MaxUint8:
		return append(b, 0xcc, byte(n))
	case n >= 0 && n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n >= 0 && n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	case n >= 0:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), uint64(n))
	case n >= math.MinInt8:
		return append(b, 0xd0, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(n))
}

// Unpack reads what Pack and other agents write. It takes all of msgpack but
// extensions, infinities and keys that are no text; time and space are bounded by
// the length of b. No bytes are nothing.
func Unpack(b []byte) (json.RawMessage, error) {
	if len(b) == 0 {
		return nil, nil
	}
	u := unpacker{b: b}
	v, err := u.value(0)
	if err == nil && len(u.b) > 0 {
		err = fmt.Errorf("%d bytes are left over", len(u.b))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return out, nil
}

type unpacker struct{ b []byte }

var errShort = errors.New("it ends too early")

func (u *unpacker) take(n uint64) ([]byte, error) {
	if n > uint64(len(u.b)) {
		return nil, errShort
	}
	out := u.b[:n]
	u.b = u.b[n:]
	return out, nil
}

// number reads n bytes, big end first.
func (u *unpacker) number(n uint64) (uint64, error) {
	b, err := u.take(n)
	v := uint64(0)
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v, err
}

func (u *unpacker) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxDepth)
	}
	code, err := u.number(1)
	if err != nil {
		return nil, err
	}
	switch c := byte(code); {
	case c < 0x80:
		return int64(c), nil
	case c >= 0xe0:
		return int64(int8(c)), nil
	case c < 0x90:
		return u.object(uint64(c&0xf), depth)
	case c < 0xa0:
		return u.array(uint64(c&0xf), depth)
	case c < 0xc0:
		return u.text(uint64(c & 0x1f))
	case c == 0xc0:
		return nil, nil
	case c == 0xc2, c == 0xc3:
		return c == 0xc3, nil
	case c >= 0xca && c <= 0xd3:
		return u.numeric(c)
	}
	return u.sized(byte(code), depth)
}

// numeric reads floats (ca, cb) and integers without (cc–cf) and with (d0–d3) a
// sign, of 1, 2, 4 and 8 bytes.
func (u *unpacker) numeric(c byte) (any, error) {
	switch {
	case c == 0xca:
		n, err := u.number(4)
		return finite(float64(math.Float32frombits(uint32(n))), err)
	case c == 0xcb:
		n, err := u.number(8)
		return finite(math.Float64frombits(n), err)
	case c <= 0xcf:
		return u.number(1 << (c - 0xcc))
	}
	size := uint64(1) << (c - 0xd0)
	n, err := u.number(size)
	shift := 64 - 8*size
	return int64(n<<shift) >> shift, err
}

func finite(f float64, err error) (any, error) {
	if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = errors.New("it has a number that is none")
	}
	return f, err
}

// sized reads what has its length in front.
func (u *unpacker) sized(c byte, depth int) (any, error) {
	size := map[byte]uint64{0xc4: 1, 0xc5: 2, 0xc6: 4, 0xd9: 1, 0xda: 2, 0xdb: 4, 0xdc: 2, 0xdd: 4, 0xde: 2, 0xdf: 4}[c]
	if size == 0 {
		return nil, fmt.Errorf("it has a value of the unknown kind %#x", c)
	}
	n, err := u.number(size)
	switch {
	case err != nil:
		return nil, err
	case c >= 0xde:
		return u.object(n, depth)
	case c >= 0xdc:
		return u.array(n, depth)
	}
	return u.text(n)
}

func (u *unpacker) text(n uint64) (string, error) {
	b, err := u.take(n)
	if err == nil && !utf8.Valid(b) {
		err = errors.New("it has a text that is not UTF-8")
	}
	return string(b), err
}

func (u *unpacker) array(n uint64, depth int) ([]any, error) {
	if n > uint64(len(u.b)) {
		return nil, errShort
	}
	out := []any{}
	for range n {
		v, err := u.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (u *unpacker) object(n uint64, depth int) (map[string]any, error) {
	if n > uint64(len(u.b)) {
		return nil, errShort
	}
	out := map[string]any{}
	for range n {
		k, err := u.value(depth + 1)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("it has a key that is no text: %v", k)
		}
		if out[key], err = u.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return out, nil
}
