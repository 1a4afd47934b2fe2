// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package keeper_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/internal/keeper"
)

func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake := make(chan struct{}, 1)
		useless := errors.New("useless")
		var mu sync.Mutex // of all below
		began, next := time.Now(), errors.New("it ended")
		var stays time.Duration
		var at []time.Duration
		var last string
		done := make(chan struct{})
		go func() {
			defer close(done)
			keeper.Keep(ctx, 2*time.Second, wake, func(context.Context) error {
				mu.Lock()
				at = append(at, time.Since(began))
				d, err := stays, next
				mu.Unlock()
				time.Sleep(d)
				return err
			}, func(err error, text string) bool {
				mu.Lock()
				defer mu.Unlock()
				last = text
				return errors.Is(err, useless)
			})
		}()
		// lives says when live was called within a time, and the last text.
		lives := func(within time.Duration) ([]time.Duration, string) {
			time.Sleep(within)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := at
			began, at = time.Now(), nil
			return out, last
		}
		from := func(d time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			stays, next = d, err
		}
		got, text := lives(time.Millisecond)
		require.Equal(t, []time.Duration{0, 0}, got)
		require.Equal(t, "it ended; it is started again in 500ms", text)
		got, _ = lives(6 * time.Second)
		require.Equal(t, []time.Duration{499 * time.Millisecond, 1499 * time.Millisecond, 3499 * time.Millisecond, 5499 * time.Millisecond}, got)
		wake <- struct{}{}
		got, _ = lives(time.Millisecond)
		require.Len(t, got, 2, "woken from its pause, and that is a first start")
		from(2*time.Minute, errors.New("it had stayed"))
		_, text = lives(5 * time.Minute)
		require.Equal(t, "it had stayed", text)
		from(time.Second, keeper.ErrReplaced)
		lives(2 * time.Minute)
		got, _ = lives(10 * time.Second)
		require.Len(t, got, 10, "no pause for what was replaced")
		from(0, useless)
		lives(2 * time.Second)
		got, _ = lives(time.Hour)
		require.Empty(t, got)
		wake <- struct{}{}
		got, _ = lives(time.Hour)
		require.Len(t, got, 1)
		cancel()
		<-done
	})
}

func TestMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m keeper.Mutex
		n := 0
		add := func() {
			m.Lock()
			defer m.Unlock()
			n++
			m.Notify()
		}
		over := func() bool { return n >= 2 }
		require.ErrorIs(t, m.Await(t.Context(), time.Second, over), keeper.ErrTooLong)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the cause")
		time.AfterFunc(time.Second, func() { cancel(cause) })
		require.ErrorIs(t, m.Await(ctx, 0, over), cause)
		watch := keeper.Watch(t.Context(), &m, func() (int, bool) { return n, n == 4 })
		require.Equal(t, 0, <-watch)
		time.AfterFunc(time.Second, add)
		time.AfterFunc(2*time.Second, add)
		require.NoError(t, m.Await(t.Context(), 0, over))
		synctest.Wait()
		require.Equal(t, 2, <-watch, "the newest")
		add()
		require.Equal(t, 3, <-watch)
		add()
		require.Equal(t, 4, <-watch)
		_, open := <-watch
		require.False(t, open, "that was the last")
	})
}

func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m keeper.Mutex
		all, last := []int{1, 2}, false
		got := make(chan int, 10)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			keeper.Each(t.Context(), &m, func() ([]int, bool) { return all, last }, func(n int) {
				time.Sleep(time.Minute)
				got <- n
			})
		}()
		synctest.Wait()
		m.Lock()
		all, last = append(all, 3), true
		m.Notify()
		m.Unlock()
		<-ended
		require.Len(t, got, 3)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		keeper.Each(ctx, &m, func() ([]int, bool) { return nil, false }, func(int) {})
	})
}

func TestNames(t *testing.T) {
	require.True(t, keeper.Allowed("docker", nil, nil))
	require.True(t, keeper.Allowed("docker", []string{"dock*"}, []string{"x"}))
	require.False(t, keeper.Allowed("docker", []string{"podman"}, nil))
	require.False(t, keeper.Allowed("docker", []string{"docker"}, []string{"d*"}))
	require.False(t, keeper.Pattern(""))
	require.False(t, keeper.Pattern("[a"))
	require.True(t, keeper.Pattern("[a]"))
	t.Setenv("NK_EMPTY", "")
	require.Equal(t, []string{"NK_EMPTY="}, keeper.Environment([]string{"NK_EMPTY", "NK_NOT_THERE"}))
	require.NotEqual(t, keeper.LaunchDir("/run"), keeper.LaunchDir("/run"))
}
