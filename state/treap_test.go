// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// A treap is the map it should be, and so is each older one after the changes.
func TestTreap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var tr *treap[int]
	want := map[string]int{}
	type version struct {
		tr   *treap[int]
		want map[string]int
	}
	var old []version
	for i := range 5000 {
		// Keys as they are in practice: in order, and differing in the last bytes.
		key := string(binary.BigEndian.AppendUint64(nil, uint64(rnd.IntN(1000))))
		if rnd.IntN(3) == 0 {
			tr = tr.del(key)
			delete(want, key)
		} else {
			tr = tr.put(key, i)
			want[key] = i
		}
		if i%500 == 0 {
			old = append(old, version{tr, maps.Clone(want)})
		}
	}
	for _, v := range append(old, version{tr, want}) {
		keys := slices.Collect(v.tr.keys())
		if !slices.Equal(keys, slices.Sorted(maps.Keys(v.want))) {
			t.Fatalf("%d keys, want %d", len(keys), len(v.want))
		}
		for k, w := range v.want {
			if got, ok := v.tr.get(k); !ok || got != w {
				t.Errorf("%x: %d %v, want %d", k, got, ok, w)
			}
		}
		if _, ok := v.tr.get("none"); ok {
			t.Error("found what is not there")
		}
	}
	if d := depth(tr); d > 40 {
		t.Errorf("depth %d with %d keys", d, len(want))
	}
	for k := range tr.keys() { // an iteration may end early
		if tr = tr.del(k); k > "" {
			break
		}
	}
	for k := range want {
		tr = tr.del(k)
	}
	if tr != nil {
		t.Error("not empty")
	}
}

func depth(t *treap[int]) int {
	if t == nil {
		return 0
	}
	return 1 + max(depth(t.left), depth(t.right))
}
