// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// span is where in a JSON text the value at path is, its name included.
type span struct {
	start, end int
	path       []string
}

// index holds spans, inner ones after the ones around them.
type index []span

// spans indexes compact JSON.
func spans(src []byte) index {
	x := indexer{src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	x.dec.UseNumber()
	x.value(nil, 0)
	return x.index
}

// at is the path of the innermost value around a byte.
func (x index) at(offset int) []string {
	for _, s := range slices.Backward(x) {
		if s.start <= offset && offset < s.end {
			return s.path
		}
	}
	return nil
}

type indexer struct {
	src   []byte
	dec   *json.Decoder
	index index
}

// value reads one value whose span begins at start.
func (x *indexer) value(path []string, start int) {
	i := len(x.index)
	x.index = append(x.index, span{start: start, path: path})
	tok, err := x.dec.Token()
	if err != nil {
		return
	}
	if d, ok := tok.(json.Delim); ok {
		for n := 0; x.dec.More(); n++ {
			start := x.next()
			key := strconv.Itoa(n)
			if d == '{' {
				k, err := x.dec.Token()
				if err != nil {
					return
				}
				key, _ = k.(string)
			}
			x.value(append(slices.Clone(path), key), start)
		}
		if _, err := x.dec.Token(); err != nil {
			return
		}
	}
	x.index[i].end = int(x.dec.InputOffset())
}

// next is the offset of the next token, past a comma.
func (x *indexer) next() int {
	o := int(x.dec.InputOffset())
	for o < len(x.src) && x.src[o] == ',' {
		o++
	}
	return o
}
