// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff(t *testing.T) {
	for i, want := range []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 2 * time.Minute, 2 * time.Minute} {
		require.Equal(t, want, again(i+1))
	}
	require.Equal(t, 10*time.Second, backoff(1000, retryFirst, 2, retryLimit))
	require.Equal(t, retryFirst, backoff(1, retryFirst, 2, retryLimit))
}
