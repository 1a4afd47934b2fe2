// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginwire

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// notFound ends the text of an error about an unknown task: all that other agents
// have to tell it by.
const notFound = "task not found for given id"

// kinds are the contract's errors as one nodekeep program names them to another.
var kinds = map[pluginpb.Problem_Kind]error{
	pluginpb.Problem_TASK_NOT_FOUND:  driver.ErrTaskNotFound,
	pluginpb.Problem_TASK_EXISTS:     driver.ErrTaskExists,
	pluginpb.Problem_TASK_RUNNING:    driver.ErrTaskRunning,
	pluginpb.Problem_TASK_EXITED:     driver.ErrTaskExited,
	pluginpb.Problem_NOT_IMPLEMENTED: driver.ErrNotImplemented,
	pluginpb.Problem_UNAVAILABLE:     driver.ErrUnavailable,
	pluginpb.Problem_PLUGIN_GONE:     driver.ErrPluginGone,
	pluginpb.Problem_UNKNOWN_SIGNAL:  driver.ErrUnknownSignal,
	pluginpb.Problem_FOREIGN_SCOPE:   driver.ErrForeignScope,
	pluginpb.Problem_COMMAND:         driver.ErrCommand,
}

// Status is a driver's or device's error on the wire: code Unknown and its text,
// which is all that other agents look at, and for ours a detail that keeps apart
// what the contract keeps apart.
func Status(err error) error { return toStatus(err, false) }

// StartStatus is Status for errors of StartTask, which always say whether trying
// again may help: an agent takes silence for no.
func StartStatus(err error) error { return toStatus(err, true) }

func toStatus(err error, start bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	p := &pluginpb.Problem{Recoverable: driver.IsRecoverable(err)}
	for k := pluginpb.Problem_Kind(1); int(k) <= len(kinds); k++ {
		if errors.Is(err, kinds[k]) {
			p.Kinds = append(p.Kinds, k)
		}
	}
	text, code := strings.ToValidUTF8(err.Error(), "\uFFFD"), codes.Unknown
	if errors.Is(err, driver.ErrTaskNotFound) {
		text += ": " + notFound
	}
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(p)}
	if start || p.Recoverable {
		code = codes.FailedPrecondition
		r := &pluginpb.RecoverableError{Recoverable: p.Recoverable}
		details = []protoadapt.MessageV1{protoadapt.MessageV1Of(r), details[0]}
	}
	st, derr := status.New(code, text).WithDetails(details...)
	if derr != nil {
		return status.Error(code, text)
	}
	return st.Err()
}

// remote is an error that came over the wire.
type remote struct {
	text string
	is   []error
}

func (r *remote) Error() string   { return r.text }
func (r *remote) Unwrap() []error { return r.is }

// Error reads an error of a call. ctx is the call's: when it has ended, its cause
// is the error. gone says whether the plugin's process has ended, after a moment's
// wait if need be; a call that broke is ErrPluginGone then, else ErrUnavailable.
func Error(ctx context.Context, err error, gone func() bool) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if st.Code() == codes.DeadlineExceeded || st.Code() == codes.Canceled {
		expire(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return broken("the plugin ended the stream", gone)
	case !ok:
		return err
	}
	text := strings.ToValidUTF8(st.Message(), "\uFFFD")
	var marked, ours bool
	var is []error
	for i, d := range st.Details() {
		switch d := d.(type) {
		case *pluginpb.RecoverableError:
			marked = marked || i == 0 && d.Recoverable
		case *pluginpb.Problem:
			ours = true
			marked = marked || d.Recoverable
			for _, k := range d.Kinds {
				if e := kinds[k]; e != nil {
					is = append(is, e)
				}
			}
		}
	}
	if ours {
		text = strings.TrimSuffix(text, ": "+notFound)
	} else {
		switch st.Code() {
		case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
			return broken(text, gone)
		}
		is = guess(st.Code(), text)
	}
	err = &remote{text: text, is: is}
	if marked {
		err = driver.Recoverable(err)
	}
	return err
}

// expire waits for a deadline that is about to be over: the other side, which
// knows it too, may be quicker.
func expire(ctx context.Context) {
	const skew = 100 * time.Millisecond
	if at, ok := ctx.Deadline(); !ok || time.Until(at) > skew {
		return
	}
	t := time.NewTimer(2 * skew)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func broken(text string, gone func() bool) error {
	kind := driver.ErrUnavailable
	if gone() {
		kind = driver.ErrPluginGone
	}
	return &remote{text: kind.Error() + ": " + text, is: []error{kind}}
}

// guess finds the contract's errors in what plugins of other origin say: codes,
// where they have any, and the texts that most of them use.
func guess(code codes.Code, text string) []error {
	has := func(parts ...string) bool {
		for _, p := range parts {
			if !strings.Contains(text, p) {
				return false
			}
		}
		return true
	}
	switch {
	case code == codes.Unimplemented:
		return []error{driver.ErrNotImplemented}
	case strings.HasSuffix(text, notFound), strings.HasPrefix(text, "task does not exist"):
		return []error{driver.ErrTaskNotFound}
	case has("task with ID", "already started"):
		return []error{driver.ErrTaskExists}
	case has("not supported by this driver"), has("driver does not support exec"), has("RPC not supported by driver"):
		return []error{driver.ErrNotImplemented}
	}
	return nil
}
