// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin

import (
	"context"
	"errors"
	"io"
	"maps"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin/driverpb"
	"github.com/nodekeep/nodekeep/internal/pluginwire"
)

const (
	// unread is how many events a slow reader may be behind.
	unread = 100
	// reopenMax is the longest pause before a stream that ended is opened again.
	reopenMax = time.Minute
	// firstSample is how long Stats waits to learn that there will be none.
	firstSample = 2 * time.Second
)

func ended(err error) bool { return errors.Is(err, io.EOF) }

// Fingerprint implements driver.Driver. The stream is opened again when the driver
// ends it; when the process has ended, the channel is closed.
func (r *remote) Fingerprint(ctx context.Context) (<-chan driver.Fingerprint, error) {
	out := make(pluginwire.Latest[driver.Fingerprint], 1)
	r.work.Go(func() {
		defer close(out)
		var last *driver.Fingerprint
		put := func(fp driver.Fingerprint) {
			if last == nil || last.Health != fp.Health || last.Description != fp.Description || !maps.Equal(last.Attributes, fp.Attributes) {
				last = &fp
				out.Put(fp)
			}
		}
		var slow pluginwire.Limiter
		for wait := time.Second; ; wait = min(2*wait, reopenMax) {
			err := r.fingerprints(ctx, func(fp driver.Fingerprint) { put(fp); wait = time.Second; slow.Wait(ctx) })
			if ctx.Err() != nil {
				return
			}
			err = r.error(ctx, err)
			select {
			case <-r.stop:
				return
			default:
			}
			put(driver.Fingerprint{Health: driver.Unhealthy, Description: short(err.Error())})
			if errors.Is(err, driver.ErrPluginGone) {
				return
			}
			pluginwire.Pause(ctx, wait)
		}
	})
	return out, nil
}

func (r *remote) fingerprints(ctx context.Context, got func(driver.Fingerprint)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.rpc.Fingerprint(ctx, &driverpb.FingerprintRequest{})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		got(fingerprintFrom(m))
	}
}

// Stats implements driver.Meter. What is wrong comes with the first message only,
// and from some drivers never, so it is waited for, not for long.
func (r *remote) Stats(ctx context.Context, id string, interval time.Duration) (<-chan driver.Usage, error) {
	if r.has != nil && !r.has.GetStats() {
		return nil, r.cannot("stats")
	}
	if interval <= 0 {
		interval = time.Second
	}
	own, cancel := context.WithCancel(ctx)
	stream, err := r.rpc.TaskStats(own, &driverpb.TaskStatsRequest{TaskId: id, CollectionInterval: durationpb.New(interval)})
	if err != nil {
		cancel()
		return nil, r.error(ctx, err)
	}
	out := make(pluginwire.Latest[driver.Usage], 1)
	first := make(chan error, 1)
	r.work.Go(func() {
		defer close(out)
		defer cancel()
		var slow pluginwire.Limiter
		for began := false; ; began = true {
			m, err := stream.Recv()
			if !began {
				first <- err
			}
			if err != nil {
				return
			}
			if m.GetStats() != nil {
				out.Put(usageFrom(m))
			}
			slow.Wait(own)
		}
	})
	t := time.NewTimer(firstSample)
	defer t.Stop()
	select {
	case err = <-first:
	case <-t.C:
	}
	if err != nil && !ended(err) {
		return nil, r.error(ctx, err)
	}
	return out, nil
}

// Events implements driver.EventSource.
func (r *remote) Events(ctx context.Context) (<-chan driver.Event, error) {
	if r.has != nil && !r.has.GetEvents() {
		return nil, r.cannot("events")
	}
	stream, err := r.rpc.TaskEvents(ctx, &driverpb.TaskEventsRequest{})
	if err != nil {
		return nil, r.error(ctx, err)
	}
	out := make(chan driver.Event, unread)
	r.work.Go(func() {
		defer close(out)
		var slow pluginwire.Limiter
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case out <- eventFrom(m):
			default: // nobody reads
			}
			slow.Wait(stream.Context())
		}
	})
	return out, nil
}

// envHeader carries the variables of a command to our own drivers: the wire has no
// place for them.
const envHeader = "nodekeep-exec-env-bin"

// Exec implements driver.Execer. When ctx ends, the driver ends the command; how
// it ended cannot be learned then.
func (r *remote) Exec(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	if req.Stdin != nil {
		defer func() { _ = req.Stdin.Close() }() // a Read under way returns
	}
	if !r.info.Capabilities.Exec {
		return driver.ExitResult{}, r.cannot("exec")
	}
	if len(req.Env) > 0 && r.has == nil {
		return driver.ExitResult{}, r.cannot("exec with variables of its own")
	}
	x := &execution{r: r, req: req, id: id}
	res, err := x.run(ctx)
	// Some drivers can do but one of the two calls.
	if errors.Is(err, driver.ErrNotImplemented) && req.Stdin == nil && !req.TTY && r.has == nil {
		return r.execPlain(ctx, id, req)
	}
	return res, err
}

// execPlain runs a command with the call that returns all output in one piece.
func (r *remote) execPlain(ctx context.Context, id string, req driver.ExecRequest) (driver.ExitResult, error) {
	limit := 24 * time.Hour
	if at, ok := ctx.Deadline(); ok {
		limit = max(time.Millisecond, time.Until(at))
	}
	resp, err := r.rpc.ExecTask(ctx, &driverpb.ExecTaskRequest{TaskId: id, Command: req.Command, Timeout: durationpb.New(limit)})
	if err != nil {
		return driver.ExitResult{}, r.error(ctx, err)
	}
	res := exitFrom(resp.GetResult(), "")
	for _, o := range []struct {
		w io.Writer
		b []byte
	}{{req.Stdout, resp.GetStdout()}, {req.Stderr, resp.GetStderr()}} {
		if o.w != nil && len(o.b) > 0 {
			if _, err := o.w.Write(o.b); err != nil {
				return res, err
			}
		}
	}
	return res, nil
}

func execContext(ctx context.Context, env []byte) context.Context {
	if len(env) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, envHeader, string(env))
}
