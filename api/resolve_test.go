// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
)

func TestResolve(t *testing.T) {
	mk := func(id, ns, job, group string, index, created int, done bool) Alloc {
		return Alloc{ID: id, Namespace: ns, Job: job, Group: group, Index: index, Done: done, CreatedAt: time.Unix(int64(created), 0)}
	}
	list := []Alloc{
		mk("11aa", "default", "web", "api", 0, 1, true), // replaced by the next
		mk("22bb", "default", "web", "api", 0, 2, false),
		mk("33cc", "default", "pair", "g", 0, 1, false),
		mk("34dd", "default", "pair", "g", 1, 1, false),
		mk("44", "default", "old", "g", 0, 1, true),
		mk("44ee", "default", "old", "g", 0, 2, true),
		mk("55aa", "one", "both", "g", 0, 1, false),
		mk("66aa", "two", "both", "g", 0, 1, false),
		mk("77aa", "default", "33cc", "g", 0, 1, false), // a job named like an id
	}
	for ref, want := range map[string]string{
		"11aa": "11aa", "11": "11aa", "22": "22bb",
		"web": "22bb", "web.api[0]": "22bb",
		"pair.g[1]": "34dd", "34": "34dd",
		"old": "44ee", "44": "44", "44e": "44ee", // an id before the beginning of another
		"33cc": "33cc", "77": "77aa",
	} {
		al, err := resolve(list, ref)
		require.NoError(t, err, ref)
		require.Equal(t, want, al.ID, ref)
	}
	for ref, is := range map[string]error{
		"pair": ErrAmbiguous, "3": ErrAmbiguous, "both": ErrAmbiguous, "both.g[0]": ErrAmbiguous,
		"we": nodekeep.ErrNoAlloc, "web.api": nodekeep.ErrNoAlloc, "web.api[1]": nodekeep.ErrNoAlloc,
		"": ErrInvalid,
	} {
		_, err := resolve(list, ref)
		require.ErrorIs(t, err, is, ref)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("11", "11aa", "web")
	f.Add("web.g[0]", "x", "web")
	f.Fuzz(func(t *testing.T, ref, id, job string) {
		list := []Alloc{{ID: id, Job: job, Group: "g"}, {ID: id + "x", Job: job, Group: "g", Index: 1}}
		al, err := resolve(list, ref)
		if (err == nil) != (al.ID != "" || id == "" && ref == job) && err == nil && al.Job != job {
			t.Fatalf("%q found %+v", ref, al)
		}
		if ref != "" && ref == id {
			require.NoError(t, err)
			require.Equal(t, id, al.ID)
		}
	})
}
