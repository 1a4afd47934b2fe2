// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package guard runs foreign code (callbacks of hooks) so that neither a panic
// nor a refusal to return harms whoever calls it.
//
//	Run(ctx, late, f) ──▶ f returned          its error, a panic as *PanicError
//	                 └──▶ ctx ended + late     ErrAbandoned and the call that goes on
//
// What is abandoned keeps its goroutine; nothing can end it. The caller logs its
// stack and drops whatever it may still bring.
package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// Late is how long foreign code may take to return once its context has ended.
const Late = time.Second

// ErrAbandoned says that a call did not return in time.
var ErrAbandoned = errors.New("did not return after its context ended and was abandoned")

// errExited is a call that ended its own goroutine (runtime.Goexit).
var errExited = errors.New("the goroutine of the callback ended itself")

// PanicError is a contained panic. Its text is short; the stack is for the log.
type PanicError struct {
	Value any
	Stack string
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Contain calls f in the caller's goroutine and makes its panic an error.
func Contain(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{p, string(debug.Stack())}
		}
	}()
	return f()
}

// Call is code that runs in a goroutine of its own.
type Call struct {
	done chan struct{}
	err  error // valid once done is closed
}

// Spawn starts f.
func Spawn(f func() error) *Call {
	c := &Call{done: make(chan struct{}), err: errExited}
	go c.run(f)
	return c
}

// run is not inlined: its receiver's address in a stack trace names the call,
// which costs a call that returns nothing.
//
//go:noinline
func (c *Call) run(f func() error) {
	defer close(c.done)
	c.err = Contain(f)
}

// Done is closed when the call has returned.
func (c *Call) Done() <-chan struct{} { return c.done }

// Returned says whether the call has returned.
func (c *Call) Returned() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// Err is what the call returned, ErrAbandoned if it has not.
func (c *Call) Err() error {
	if !c.Returned() {
		return ErrAbandoned
	}
	return c.err
}

// Stack is where the call is now; of one that panicked, where it did; "" of one
// that has returned.
func (c *Call) Stack() string {
	if c.Returned() {
		var p *PanicError
		if errors.As(c.err, &p) {
			return p.Stack
		}
		return ""
	}
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	me := fmt.Appendf(nil, "(*Call).run(%p", c)
	for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
		if bytes.Contains(g, me) {
			return string(g)
		}
	}
	return ""
}

// Run calls f and waits for it, after the end of ctx no longer than late. The
// call is returned with ErrAbandoned, and nil with any other error.
func Run(ctx context.Context, late time.Duration, f func(context.Context) error) (*Call, error) {
	c := Spawn(func() error { return f(ctx) })
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
		return c, ErrAbandoned
	}
}
