// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package account

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLookup(t *testing.T) {
	var b Book
	a, err := b.Lookup("root")
	require.NoError(t, err)
	require.Equal(t, 0, a.UID)
	require.Contains(t, a.Groups, 0)

	for _, tc := range []struct {
		in       string
		uid, gid int
	}{{"0", 0, 0}, {"root:root", 0, 0}, {"0:7", 0, 7}, {"3999999", 3999999, 3999999}, {"3999999:5", 3999999, 5}} {
		a, err := b.Lookup(tc.in)
		require.NoError(t, err, tc.in)
		require.Equal(t, []int{tc.uid, tc.gid}, []int{a.UID, a.GID}, tc.in)
	}
	for _, in := range []string{"", "no-such-user", "-1", "root:no-such-group", "4294967295", "4294967296", "0:4294967296"} {
		_, err := b.Lookup(in)
		require.Error(t, err, in)
	}
}

func TestKnown(t *testing.T) {
	var b Book
	for uid, want := range map[int]bool{0: true, 3999999: false} {
		got, err := b.Known(uid)
		require.NoError(t, err)
		require.Equal(t, want, got, uid)
	}
}

func TestLookupFromMany(t *testing.T) {
	var b Book
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if _, err := b.Lookup("root"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, b.found, 1)
}
