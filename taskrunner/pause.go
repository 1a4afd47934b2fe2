// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"time"
)

// sleep waits for d, or less if ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backoff is first, doubled or more with each try, up to limit. Tries count from 1.
func backoff(try int, first time.Duration, factor int, limit time.Duration) time.Duration {
	d := first
	for range try - 1 {
		if d *= time.Duration(factor); d >= limit {
			return limit
		}
	}
	return min(d, limit)
}
