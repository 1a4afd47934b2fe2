// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// lateness is how long foreign code may take to return once its context ended.
const lateness = time.Second

var (
	errAbandoned = errors.New("taskrunner: did not return after its context ended and was abandoned")
	errExited    = errors.New("taskrunner: the goroutine of the callback ended itself")
)

// panicError is a contained panic.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// call is foreign code that runs in a goroutine of its own.
type call struct {
	done chan struct{} // closed when it has returned
	err  error         // valid once done is closed
}

// spawn runs f in a goroutine and contains its panic.
func spawn(f func() error) *call {
	c := &call{done: make(chan struct{}), err: errExited}
	go c.run(f)
	return c
}

// run is not inlined: its receiver's address in a stack trace names the call.
//
//go:noinline
func (c *call) run(f func() error) {
	defer close(c.done)
	defer func() {
		if p := recover(); p != nil {
			c.err = &panicError{p, debug.Stack()}
		}
	}()
	c.err = f()
}

// returned says whether the call is over.
func (c *call) returned() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// guard runs f and waits for it, after the end of ctx no longer than late. What
// is not back then is abandoned: the call that is returned is still under way.
func guard(ctx context.Context, late time.Duration, f func(context.Context) error) (*call, error) {
	c := spawn(func() error { return f(ctx) })
	select {
	case <-c.done:
		return nil, c.err
	case <-ctx.Done():
	}
	t := time.NewTimer(late)
	defer t.Stop()
	select {
	case <-c.done:
		return nil, c.err
	case <-t.C:
		return c, errAbandoned
	}
}

// stack is where the call is now; "" if it has returned meanwhile.
func (c *call) stack() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	me := fmt.Appendf(nil, "(*call).run(%p", c)
	for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.Contains(g, me) {
			return string(g)
		}
	}
	return ""
}

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
