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
	id   chan []byte   // of its goroutine, for the stack
	err  error         // valid once done is closed
}

// spawn runs f in a goroutine and contains its panic.
func spawn(f func() error) *call {
	c := &call{done: make(chan struct{}), id: make(chan []byte, 1), err: errExited}
	go func() {
		defer close(c.done)
		defer func() {
			if p := recover(); p != nil {
				c.err = &panicError{p, debug.Stack()}
			}
		}()
		c.id <- goroutineID()
		c.err = f()
	}()
	return c
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
func guard(ctx context.Context, late time.Duration, f func(context.Context) error) (error, *call) {
	c := spawn(func() error { return f(ctx) })
	select {
	case <-c.done:
		return c.err, nil
	case <-ctx.Done():
	}
	t := time.NewTimer(late)
	defer t.Stop()
	select {
	case <-c.done:
		return c.err, nil
	case <-t.C:
		return errAbandoned, c
	}
}

// stack is where the call is now.
func (c *call) stack() string {
	id := <-c.id
	c.id <- id
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.HasPrefix(g, id) {
			return string(g)
		}
	}
	return "" // it has returned meanwhile
}

// goroutineID is how a stack trace of the calling goroutine begins.
func goroutineID() []byte {
	buf := make([]byte, 40)
	buf = buf[:runtime.Stack(buf, false)]
	if i := bytes.IndexByte(buf, '['); i > 0 {
		buf = buf[:i]
	}
	return buf
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
