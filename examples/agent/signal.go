// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// leave is why an agent lets go of its tasks: a signal, or that nobody reads its
// output any more.
type leave struct{ why os.Signal }

func (l *leave) Error() string { return fmt.Sprintf("left on %s", l.why) }

// code is the exit code that a shell expects of that signal.
func (l *leave) code() exitCode {
	if s, ok := l.why.(syscall.Signal); ok {
		return exitCode(128 + int(s))
	}
	return 1
}

// leaveWithAudience ends the context when nobody looks any more: the terminal was
// closed, or what read our output has ended.
//
// A write to a pipe without a reader raises SIGPIPE, which must be caught, not
// ignored: what is ignored stays so in the tasks. Sockets raise it too, so not
// the signal counts but the failed write of our own output. Where the parent has
// turned SIGPIPE or SIGHUP off, as service managers and nohup do, the output is
// lost and nothing else happens.
func (a *app) leaveWithAudience(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	hup := make(chan os.Signal, 1)
	pipe := make(chan os.Signal, 1)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(hup, syscall.SIGHUP)
	}
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(pipe, syscall.SIGPIPE)
		out, errs := a.stdout, a.stderr
		lost := func() { cancel(&leave{syscall.SIGPIPE}) }
		a.stdout, a.stderr = &watched{out, lost}, &watched{errs, lost}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-hup:
			cancel(&leave{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		signal.Stop(hup) // SIGPIPE stays caught: there may be last words
	}
}

// watched is an output that tells when its reader has gone.
type watched struct {
	io.Writer
	lost func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		w.lost()
	}
	return n, err
}
