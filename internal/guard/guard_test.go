// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package guard_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/internal/guard"
)

func TestRun(t *testing.T) {
	boom := errors.New("boom")
	block := make(chan struct{})
	for name, c := range map[string]struct {
		f    func(context.Context) error
		want error
		took time.Duration
	}{
		"returns":    {func(context.Context) error { return boom }, boom, 0},
		"obeys":      {func(ctx context.Context) error { <-ctx.Done(); return boom }, boom, time.Minute},
		"slow":       {func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Second / 2); return boom }, boom, time.Minute + time.Second/2},
		"deaf":       {func(context.Context) error { <-block; return nil }, guard.ErrAbandoned, time.Minute + time.Second},
		"leaves":     {func(context.Context) error { runtime.Goexit(); return nil }, nil, 0},
		"panics":     {func(context.Context) error { panic("at the disco") }, nil, 0},
		"nil, panic": {func(context.Context) error { panic(boom) }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				block = make(chan struct{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				call, err := guard.Run(ctx, guard.Late, c.f)
				require.Error(t, err)
				require.Equal(t, c.took, time.Since(began))
				if c.want != nil {
					require.ErrorIs(t, err, c.want)
				}
				var p *guard.PanicError
				if errors.As(err, &p) {
					require.Contains(t, p.Stack, "TestRun")
					require.Contains(t, err.Error(), "panic: ")
				}
				require.Equal(t, name == "deaf", call != nil)
				if call != nil {
					require.False(t, call.Returned())
					require.Contains(t, call.Stack(), "TestRun")
					close(block)
					<-call.Done()
					require.NoError(t, call.Err())
					require.Empty(t, call.Stack())
				}
			})
		})
	}
}

func TestGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		g := guard.NewGroup(ctx)
		cancel()
		obeyed := false
		require.True(t, g.Start("short", func(context.Context) {}))
		synctest.Wait()
		require.True(t, g.Start("obeys", func(ctx context.Context) { <-ctx.Done(); obeyed = true }))
		require.True(t, g.Start("deaf", func(context.Context) { <-block }))
		require.True(t, g.Start("panics", func(context.Context) { panic("x") }))
		synctest.Wait()
		require.False(t, obeyed, "the end of the parent's context is not that of the work")
		work := g.Close()
		require.False(t, g.Start("late", func(context.Context) { t.Error("started") }))
		began := time.Now()
		bad := map[string]error{}
		guard.Wait(work, guard.Late, func(m guard.Member, err error) { bad[m.Name] = err })
		require.Equal(t, time.Second, time.Since(began))
		require.True(t, obeyed)
		require.Len(t, bad, 2)
		require.ErrorIs(t, bad["deaf"], guard.ErrAbandoned)
		require.ErrorContains(t, bad["panics"], "panic: x")
		close(block)
	})
}

func hangsHere(c chan struct{}) error { <-c; return nil }

func TestStack(t *testing.T) {
	release := make(chan struct{})
	var calls []*guard.Call
	for range 3 {
		calls = append(calls, guard.Spawn(func() error { return hangsHere(release) }))
	}
	for _, c := range calls {
		for !strings.Contains(c.Stack(), "hangsHere") { // it has not begun yet
			runtime.Gosched()
		}
		require.NotContains(t, c.Stack(), "TestStack(", "its own goroutine only")
	}
	close(release)
	for _, c := range calls {
		<-c.Done()
		require.NoError(t, c.Err())
		require.Empty(t, c.Stack())
	}
}
