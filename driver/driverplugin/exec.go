// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
)

// chunk is how much input goes into one message.
const chunk = 32 << 10

type execStream = grpc.BidiStreamingClient[driverpb.ExecTaskStreamingRequest, driverpb.ExecTaskStreamingResponse]

// execution is one command in a plugin:
//
//	──▶ setup, then input, sizes, end of input
//	◀── output of both kinds, its ends, at last the result
type execution struct {
	r   *remote
	req driver.ExecRequest
	id  string

	mu     sync.Mutex // one sender at a time
	stream execStream
}

func (x *execution) run(ctx context.Context) (driver.ExitResult, error) {
	var env []byte
	if len(x.req.Env) > 0 {
		var err error
		if env, err = json.Marshal(x.req.Env); err != nil {
			return driver.ExitResult{}, fmt.Errorf("driverplugin: exec: %w", err)
		}
	}
	own, cancel := context.WithCancelCause(execContext(ctx, env))
	defer cancel(nil)
	var err error
	if x.stream, err = x.r.rpc.ExecTaskStreaming(own); err != nil {
		return driver.ExitResult{}, x.r.error(ctx, err)
	}
	x.send(&driverpb.ExecTaskStreamingRequest{Setup: &driverpb.ExecTaskStreamingRequest_Setup{TaskId: x.id, Command: x.req.Command, Tty: x.req.TTY}})
	if x.req.TTY && x.req.Size != (driver.TerminalSize{}) {
		x.resize(x.req.Size)
	}
	over := make(chan struct{})
	var sizes sync.WaitGroup
	sizes.Go(func() { x.sizes(over) })
	go x.input() // may be left behind in a Read that does not return
	res, began, err := x.output()
	close(over)
	if err == nil {
		sizes.Wait()
		return res, nil
	}
	cancel(err)
	sizes.Wait()
	var writer *outputError
	if !errors.As(err, &writer) {
		err = x.r.error(ctx, err)
	}
	if began {
		return driver.ExitResult{Code: -1, Err: "how the command ended is not known: " + err.Error()}, err
	}
	return driver.ExitResult{}, err
}

// send drops what cannot be sent: the receiving side learns why.
func (x *execution) send(m *driverpb.ExecTaskStreamingRequest) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stream.Send(m) == nil
}

func (x *execution) resize(s driver.TerminalSize) {
	x.send(&driverpb.ExecTaskStreamingRequest{TtySize: &driverpb.ExecTaskStreamingRequest_TerminalSize{Height: int32(s.Rows), Width: int32(s.Cols)}})
}

func (x *execution) sizes(over <-chan struct{}) {
	sizes := x.req.Resize
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				sizes = nil
				continue
			}
			x.resize(s)
		case <-over:
			return
		}
	}
}

func (x *execution) input() {
	end := &driverpb.ExecTaskStreamingRequest{Stdin: &driverpb.ExecTaskStreamingIOOperation{Close: true}}
	if x.req.Stdin == nil {
		x.send(end)
		return
	}
	for {
		b := make([]byte, chunk) // the transport may still hold the one before
		n, err := x.req.Stdin.Read(b)
		if n > 0 && !x.send(&driverpb.ExecTaskStreamingRequest{Stdin: &driverpb.ExecTaskStreamingIOOperation{Data: b[:n]}}) {
			return
		}
		if err != nil {
			x.send(end)
			return
		}
	}
}

// outputError is the caller's own: it could not take what the command wrote.
type outputError struct{ error }

func (e *outputError) Unwrap() error { return e.error }

// output hands on what the command writes until its result is there. began says
// that it was run, as far as we know.
func (x *execution) output() (res driver.ExitResult, began bool, err error) {
	exited := false
	for {
		m, err := x.stream.Recv()
		if exited && err != nil {
			return res, true, nil
		}
		if err != nil {
			return res, began, err
		}
		began = true
		for _, o := range []struct {
			w io.Writer
			b []byte
		}{{x.req.Stdout, m.GetStdout().GetData()}, {x.req.Stderr, m.GetStderr().GetData()}} {
			if o.w == nil || len(o.b) == 0 {
				continue
			}
			if _, err := o.w.Write(o.b); err != nil {
				return res, true, &outputError{err}
			}
		}
		if m.GetExited() && !exited {
			exited = true
			res = exitFrom(m.GetResult(), "")
		}
	}
}
