// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Groups are kept apart by what a commit takes, up to a limit; single calls are
// not, nor is the first call after a pause.
func TestPace(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for _, tc := range []struct {
		p    pace
		now  int
		left time.Duration
	}{
		{pace{}, 100, 0},
		{pace{at(100), at(102), false}, 102, 0},
		{pace{at(100), at(102), true}, 102, 6 * time.Millisecond},
		{pace{at(100), at(102), true}, 106, 2 * time.Millisecond},
		{pace{at(100), at(150), true}, 150, maxPace},
	} {
		require.Equal(t, tc.left, tc.p.left(at(tc.now)), "%+v", tc)
	}
	late := pace{at(100), at(102), true}
	require.LessOrEqual(t, late.left(at(200)), time.Duration(0))
}
