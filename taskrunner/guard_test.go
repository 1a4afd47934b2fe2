// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func hangsHere(c chan struct{}) error { <-c; return nil }

func TestStackOfACall(t *testing.T) {
	release := make(chan struct{})
	calls := make([]*call, 3)
	for i := range calls {
		calls[i] = spawn(func() error { return hangsHere(release) })
	}
	for _, c := range calls {
		for c.stack() == "" { // it has not begun yet
			runtime.Gosched()
		}
		require.Contains(t, c.stack(), "hangsHere")
		require.False(t, c.returned())
	}
	close(release)
	for _, c := range calls {
		<-c.done
		require.NoError(t, c.err)
	}
}

func TestGuard(t *testing.T) {
	boom := errors.New("boom")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		late, err := guard(ctx, time.Second, func(context.Context) error { return boom })
		require.Equal(t, boom, err)
		require.Nil(t, late)

		late, err = guard(ctx, time.Second, func(context.Context) error { panic("aua") })
		require.ErrorContains(t, err, "panic: aua")
		require.Nil(t, late)

		began := time.Now()
		late, err = guard(ctx, time.Second, func(ctx context.Context) error { <-ctx.Done(); return boom })
		require.Equal(t, boom, err)
		require.Nil(t, late)
		require.Equal(t, time.Minute, time.Since(began))

		began = time.Now()
		late, err = guard(ctx, time.Second, func(context.Context) error { time.Sleep(time.Hour); return boom })
		require.ErrorIs(t, err, errAbandoned)
		require.Equal(t, time.Second, time.Since(began))
		require.False(t, late.returned())
		<-late.done
		require.Equal(t, boom, late.err)
		require.Equal(t, time.Hour, time.Since(began))
	})
}

func TestBackoff(t *testing.T) {
	for i, want := range []time.Duration{5 * time.Second, 20 * time.Second, 80 * time.Second, 2 * time.Minute, 2 * time.Minute} {
		require.Equal(t, want, again(i+1))
	}
	require.Equal(t, 10*time.Second, backoff(1000, retryFirst, 2, retryLimit))
	require.Equal(t, retryFirst, backoff(1, retryFirst, 2, retryLimit))
}
