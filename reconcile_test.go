// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/spec"
)

func list(epoch string, index uint64, full bool, allocs ...*spec.Alloc) Desired {
	return Desired{Epoch: epoch, Index: index, Full: full, Allocs: allocs}
}

func at(id string, modify uint64) *spec.Alloc { return &spec.Alloc{ID: id, ModifyIndex: modify} }

func ids(allocs []*spec.Alloc) (out []string) {
	for _, a := range allocs {
		out = append(out, a.ID)
	}
	return out
}

func TestReconcile(t *testing.T) {
	now := time.Unix(1000, 0)
	ttl := 30 * time.Second
	seen := progress{Index: 25, Contacted: true}
	settling := progress{Epoch: "b", Index: 3, Contacted: true, Settled: now}
	have := map[string]known{"a": {modify: 10}, "b": {modify: 20}, "gone": {modify: 5, gone: true}}
	for _, tc := range []struct {
		name                   string
		p                      progress
		d                      Desired
		stale                  bool
		create, update, remove []string
		forget                 []string
	}{
		{name: "first list", d: list("", 1, true, at("a", 10), at("b", 20), at("gone", 5), at("n", 1)), create: []string{"n"}},
		{name: "travels back in time (FF-002)", p: seen, d: list("", 18, false, at("a", 10)), stale: true},
		{name: "equal index counts in full (FF-003)", p: seen, d: list("", 25, false, at("a", 10), at("gone", 5)), remove: []string{"b"}},
		{name: "missing, but changed after the list was made", p: progress{}, d: list("", 15, false, at("gone", 5)), remove: []string{"a"}},
		{name: "grown index updates", p: seen, d: list("", 26, false, at("a", 26), at("b", 20), at("gone", 5)), update: []string{"a"}},
		{name: "same or lower modify index does not", p: seen, d: list("", 26, false, at("a", 9), at("b", 20), at("gone", 5))},
		{name: "a collected alloc never runs again", p: seen, d: list("", 27, false, at("a", 10), at("b", 20), at("gone", 27))},
		{name: "a tombstone goes with its alloc", p: seen, d: list("", 27, false, at("a", 10), at("b", 20)), forget: []string{"gone"}},
		{name: "another epoch needs a full fetch", p: seen, d: list("b", 1, false), stale: true},
		{name: "another epoch removes nothing at first", p: seen, d: list("b", 1, true, at("n", 1)), create: []string{"n"}},
		{name: "nor from a resumed list", p: settling, d: list("b", 30, false)},
		{name: "but from the second full fetch", p: settling, d: list("b", 30, true, at("a", 10)), remove: []string{"b"}, forget: []string{"gone"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, act, err := reconcile(tc.p, tc.d, have, now, ttl)
			if tc.stale {
				require.ErrorIs(t, err, ErrStale)
				require.Equal(t, tc.p, p)
				return
			}
			require.NoError(t, err)
			slices.Sort(act.remove)
			require.Equal(t, tc.create, ids(act.create))
			require.Equal(t, tc.update, ids(act.update))
			require.Equal(t, tc.remove, act.remove)
			require.Equal(t, tc.forget, act.forget)
			require.True(t, p.Contacted)
			require.Equal(t, tc.d.Index, p.Index)
		})
	}
}

func TestReconcileNewEpochWaits(t *testing.T) {
	now := time.Unix(1000, 0)
	have := map[string]known{"a": {modify: 10}}
	p, act, err := reconcile(progress{Epoch: "a", Index: 25, Contacted: true}, list("b", 30, true), have, now, time.Minute)
	require.NoError(t, err)
	require.Empty(t, act.remove)
	p, act, err = reconcile(p, list("b", 31, true), have, now.Add(59*time.Second), time.Minute)
	require.NoError(t, err)
	require.Empty(t, act.remove, "a full list too early")
	_, act, err = reconcile(p, list("b", 31, true), have, now.Add(time.Minute), time.Minute)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, act.remove)
}
