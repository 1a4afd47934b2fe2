// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodekeep/nodekeep"
)

// Client speaks to an agent through its socket. It is safe for concurrent use;
// every call connects when needed. Errors are *Error and match the sentinels of
// the packages they come from; an agent that does not answer is ErrNoAgent.
type Client struct {
	http   http.Client
	socket string
}

// Dial makes a client of the agent whose socket is at path. It does no I/O.
func Dial(path string) *Client {
	c := &Client{socket: path}
	c.http.Transport = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
		DisableCompression: true,
	}
	return c
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Allocs lists every alloc of the node.
func (c *Client) Allocs(ctx context.Context) (list []Alloc, err error) {
	return list, c.call(ctx, http.MethodGet, "/v1/allocs", nil, &list)
}

// Degraded says why the node cannot write what it was told to run; empty while
// all is well. Allocs of which the same is true say so themselves.
func (c *Client) Degraded(ctx context.Context) (why string, err error) {
	var i info
	err = c.call(ctx, http.MethodGet, "/v1/agent", nil, &i)
	return i.Degraded, err
}

// Drivers are the drivers of the node, sorted by name; none from an agent that does
// not tell.
func (c *Client) Drivers(ctx context.Context) ([]nodekeep.DriverStatus, error) {
	var i info
	err := c.call(ctx, http.MethodGet, "/v1/agent", nil, &i)
	return i.Drivers, err
}

// Inspect tells everything about the alloc that ref names.
func (c *Client) Inspect(ctx context.Context, ref string) (in Inspection, err error) {
	return in, c.call(ctx, http.MethodGet, allocPath(ref, ""), nil, &in)
}

// Watch yields the allocs with these ids, or all, and each again when it
// changed, until ctx ends or an error was yielded. An alloc that was removed
// from the node comes a last time with Gone set.
func (c *Client) Watch(ctx context.Context, ids ...string) iter.Seq2[Alloc, error] {
	return stream[Alloc](ctx, c, "/v1/allocs", url.Values{"follow": {"1"}, "id": ids}, false)
}

// Events yields the events after the token: those that are there, or with follow
// also those that come, until ctx ends. alloc, a REF, selects; empty is all.
// state.ErrCompacted says that events after the token are gone.
func (c *Client) Events(ctx context.Context, after uint64, alloc string, follow bool) iter.Seq2[Event, error] {
	return c.EventsFrom(ctx, strconv.FormatUint(after, 10), alloc, follow)
}

// EventsFrom is Events after a cursor: what a reader that outlives the agent keeps of
// the last event it saw. It is state.ErrCompacted also if the agent's state was put
// back from a copy that does not know that event; a bare token does not tell.
func (c *Client) EventsFrom(ctx context.Context, cursor, alloc string, follow bool) iter.Seq2[Event, error] {
	q := url.Values{"after": {cursor}}
	if alloc != "" {
		q.Set("alloc", alloc)
	}
	if follow {
		q.Set("follow", "1")
	}
	return stream[Event](ctx, c, "/v1/events", q, !follow)
}

// LogQuery selects output of one task.
type LogQuery struct {
	Task   string // may be empty where there is one
	Stderr bool   // instead of stdout
	Lines  int    // only the last ones; 0 is all, -1 is none but what comes
	Follow bool   // go on until the alloc has finished
	// Lost is called from Read, between the bytes before and after, when so many
	// log files were rotated away before they could be read; together they had up
	// to so many bytes. Nil: what is missing is not told.
	Lost func(files, bytes int64)
}

// Logs opens the output of a task as raw bytes. The reader ends when ctx does.
func (c *Client) Logs(ctx context.Context, ref string, q LogQuery) (io.ReadCloser, error) {
	v := url.Values{}
	if q.Task != "" {
		v.Set("task", q.Task)
	}
	if q.Stderr {
		v.Set("stream", "stderr")
	}
	if q.Lines != 0 {
		v.Set("lines", strconv.Itoa(q.Lines))
	}
	if q.Follow {
		v.Set("follow", "1")
	}
	req, err := newRequest(ctx, http.MethodGet, allocPath(ref, "logs")+"?"+v.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", logFrames)
	resp, err := c.do(ctx, req) //nolint:bodyclose // closed by the reader that is returned
	if err != nil {
		return nil, err
	}
	b := &body{resp.Body, c}
	if resp.Header.Get("Content-Type") != logFrames { // an older agent
		return b, nil
	}
	return &framedLog{body: b, lost: q.Lost}, nil
}

// Apply makes jobs the node's desired state and returns what becomes of each of
// their allocs: those that belong to them now in the order of jobs, each job's
// followed by those that are stopped.
func (c *Client) Apply(ctx context.Context, jobs []Job) (all []Applied, err error) {
	return all, c.call(ctx, http.MethodPut, "/v1/jobs", jobs, &all)
}

// Stop asks for the end of an alloc; like Restart and Signal it returns the
// alloc as it was before, once the wish is accepted.
func (c *Client) Stop(ctx context.Context, ref string, noShutdownDelay bool) (before Alloc, err error) {
	return before, c.call(ctx, http.MethodPost, allocPath(ref, "stop"), stopRequest{NoShutdownDelay: noShutdownDelay}, &before)
}

// Kill is a Stop without any grace.
func (c *Client) Kill(ctx context.Context, ref string) (before Alloc, err error) {
	return before, c.call(ctx, http.MethodPost, allocPath(ref, "stop"), stopRequest{Kill: true}, &before)
}

// Restart restarts a task, or every running one if none is named; with all also
// those that have ended.
func (c *Client) Restart(ctx context.Context, ref, task string, all bool) (before Alloc, err error) {
	return before, c.call(ctx, http.MethodPost, allocPath(ref, "restart"), restartRequest{task, all}, &before)
}

// Signal signals a task, or every running one if none is named.
func (c *Client) Signal(ctx context.Context, ref, task, signal string) (before Alloc, err error) {
	return before, c.call(ctx, http.MethodPost, allocPath(ref, "signal"), signalRequest{task, signal}, &before)
}

// GC removes what is left of finished allocs, their logs too, and returns their
// ids once it is done.
func (c *Client) GC(ctx context.Context) (ids []string, err error) {
	return ids, c.call(ctx, http.MethodPost, "/v1/gc", nil, &ids)
}

func allocPath(ref, verb string) string {
	p := "/v1/allocs/" + url.PathEscape(ref)
	if verb != "" {
		p += "/" + verb
	}
	return p
}

// call sends a request and decodes the answer.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return c.lost(err)
	}
	return nil
}

// send returns the response of a request that the agent accepted.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	req, err := newRequest(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	return c.do(ctx, req)
}

func (c *Client) do(ctx context.Context, req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.refusal(resp)
}

func newRequest(ctx context.Context, method, path string, in any) (*http.Request, error) {
	if ref, ok := strings.CutPrefix(path, "/v1/allocs/"); ok {
		ref, _, _ = strings.Cut(ref, "/")
		switch ref, _, _ = strings.Cut(ref, "?"); ref {
		case "", ".", "..": // a path with these is another one
			_, err := resolve(nil, ref)
			return nil, err
		}
	}
	var payload io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("api: %w", err)
		}
		payload = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://node"+path, payload)
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return req, nil
}

// refusal is the error that an answer carries.
func (c *Client) refusal(resp *http.Response) error {
	e := &Error{}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(data, e) != nil || e.Message == "" {
		return &Error{Code: CodeInternal, Message: fmt.Sprintf("the agent on %s answered %s", c.socket, resp.Status)}
	}
	return e
}

// unreachable says why no answer came.
func (c *Client) unreachable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist), isRefused(err):
		return &Error{Code: CodeNoAgent, Message: "no agent serves on " + c.socket}
	case errors.Is(err, fs.ErrPermission):
		return &Error{Code: CodeNoAgent, Message: "no permission to open " + c.socket, Hint: "use the account that runs the agent, or root"}
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return c.lost(cause(err))
}

// lost says that the agent went away in the middle.
func (c *Client) lost(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return &Error{Code: CodeNoAgent, Message: "the agent on " + c.socket + " went away", Hint: "its tasks go on; try again once it is back"}
	}
	return fmt.Errorf("api: %s: %w", c.socket, err)
}

// stream yields the values of a stream of JSON lines, which may end by itself or
// not. An Error as a line ends it.
func stream[T any](ctx context.Context, c *Client, path string, q url.Values, ends bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		resp, err := c.send(ctx, http.MethodGet, path+"?"+q.Encode(), nil)
		if err != nil {
			yield(none, err)
			return
		}
		defer resp.Body.Close()
		dec := json.NewDecoder(resp.Body)
		for {
			var raw json.RawMessage
			if err := dec.Decode(&raw); err != nil {
				switch {
				case ctx.Err() != nil:
					yield(none, context.Cause(ctx))
				case !errors.Is(err, io.EOF) || !ends:
					yield(none, c.lost(err))
				}
				return
			}
			e := &Error{}
			if json.Unmarshal(raw, e) == nil && e.Code != "" {
				yield(none, e)
				return
			}
			var v T
			if err := json.Unmarshal(raw, &v); err != nil {
				yield(none, c.lost(err))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}

// body tells the end of the agent from the end of the output.
type body struct {
	io.ReadCloser
	c *Client
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { // io.Reader's contract is ==
		err = b.c.lost(err)
	}
	return n, err
}
