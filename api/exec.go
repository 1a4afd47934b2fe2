// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// execRequest is the body of an exec.
type execRequest struct {
	Task    string              `json:"task"`
	Command []string            `json:"command"`
	Env     []string            `json:"env,omitempty"`
	TTY     bool                `json:"tty,omitempty"`
	Size    driver.TerminalSize `json:"size,omitzero"`
	Stdin   bool                `json:"stdin,omitempty"` // input follows
}

// errLeft says that the client of an exec is gone.
var errLeft = errors.New("the client left")

// lastWords is how long the end of an exec may take to reach a client that does
// not read.
const lastWords = time.Second

// exec runs a command beside a task and moves its streams in frames. All that can
// be known before is answered as by any other request.
func (s *server) exec(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Upgrade") != execProtocol {
		return &Error{Code: CodeInvalid, Message: "exec needs a connection upgraded to " + execProtocol, Hint: "use nodekeep exec, or package api"}
	}
	var req execRequest
	if err := readBody(w, r, &req); err != nil {
		return err
	}
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	switch {
	case len(req.Command) == 0 || req.Command[0] == "":
		return &Error{Code: CodeInvalid, Message: "no command named", Hint: "name a program and its arguments"}
	case al.Alloc.Task(req.Task) == nil:
		return errNoTask(al, req.Task)
	case al.Done || al.Status.Terminal():
		return fmt.Errorf("%w: alloc %s is %s: nothing can be run in it", allocrunner.ErrTerminal, al.Alloc.ID, al.Status)
	case al.Tasks[req.Task].State() != taskrunner.Running:
		return fmt.Errorf("%w: task %q is %s", taskrunner.ErrNotRunning, req.Task, al.Tasks[req.Task].State())
	}
	rc := http.NewResponseController(w)
	conn, rw, err := rc.Hijack()
	if err != nil {
		return fmt.Errorf("api: exec: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", execProtocol); err != nil {
		return nil // the client has left
	}
	call := nodekeep.ExecCall{AllocID: al.Alloc.ID, Task: req.Task, By: who(r)}
	// What the server has read already, then the connection itself: the server's
	// reader would end the request's context with the client.
	early, _ := rw.Peek(rw.Reader.Buffered())
	s.converse(r.Context(), conn, bufio.NewReaderSize(io.MultiReader(bytes.NewReader(early), conn), chunk), call, req)
	return nil
}

// converse is an exec on a connection that is ours.
func (s *server) converse(ctx context.Context, conn net.Conn, in *bufio.Reader, call nodekeep.ExecCall, req execRequest) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A client that does not read must not hold up the end of the node.
	defer context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now().Add(lastWords)) })()
	out := &frames{w: conn}
	box := newInbox(func(n int) {
		_ = out.write(frameCredit, binary.BigEndian.AppendUint32(nil, uint32(n))) // the reader of conn sees that it broke
	})
	sizes := make(chan driver.TerminalSize, 1)
	var reader sync.WaitGroup
	reader.Go(func() { cancel(receive(in, box, sizes)) })
	x := driver.ExecRequest{
		Command: req.Command, Env: req.Env, TTY: req.TTY, Size: req.Size, Resize: sizes,
		Stdout: outStream{out, frameStdout}, Stderr: outStream{out, frameStderr},
	}
	if req.Stdin {
		x.Stdin = box
	}
	res, err := s.Agent.Exec(ctx, call, x)
	kind, last := frameExit, any(res)
	if err != nil {
		e, _ := toError(err)
		kind, last = frameError, e
	}
	data, merr := json.Marshal(last)
	if merr == nil {
		_ = out.write(kind, data) // a client that left does not want it
	}
	_ = conn.Close()
	_ = box.Close()
	reader.Wait()
}

// receive reads what the client sends until it is gone.
func receive(in *bufio.Reader, box *inbox, sizes chan driver.TerminalSize) error {
	buf := make([]byte, chunk)
	for {
		kind, data, err := readFrame(in, buf)
		if err != nil {
			return errLeft
		}
		switch {
		case kind == frameStdin && !box.put(data):
			return errors.New("api: the client sent more input than it may")
		case kind == frameSize && len(data) == 4:
			select {
			case <-sizes: // only the last one counts
			default:
			}
			sizes <- driver.TerminalSize{Rows: binary.BigEndian.Uint16(data), Cols: binary.BigEndian.Uint16(data[2:])}
		}
	}
}

// Exec runs a command beside a task and returns when it has ended, with its own
// exit code (see driver.Execer). When ctx ends, or this process does, the command
// gets SIGHUP and five seconds later SIGKILL.
func (c *Client) Exec(ctx context.Context, ref, task string, req driver.ExecRequest) (driver.ExitResult, error) {
	if req.Stdin != nil {
		defer func() { _ = req.Stdin.Close() }()
	}
	conn, err := dial(ctx, c.socket)
	if err != nil {
		return driver.ExitResult{}, c.unreachable(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	in := bufio.NewReaderSize(conn, chunk)
	if err := c.upgrade(ctx, conn, in, ref, execRequest{
		Task: task, Command: req.Command, Env: req.Env, TTY: req.TTY, Size: req.Size, Stdin: req.Stdin != nil,
	}); err != nil {
		return driver.ExitResult{}, err
	}
	out, left, done := &frames{w: conn}, newCredit(), make(chan struct{})
	var sizes, feed sync.WaitGroup
	sizes.Go(func() { sendSizes(out, req.Resize, done) })
	feed.Go(func() { sendInput(out, req, left) })
	res, err := c.follow(ctx, in, req, left)
	close(done)
	left.end()
	_ = conn.Close()
	sizes.Wait()
	if req.Stdin != nil {
		_ = req.Stdin.Close()
		waitFor(&feed, lastWords)
	}
	return res, err
}

// waitFor waits no longer than d: a Read that its Close does not end is left.
func waitFor(wg *sync.WaitGroup, d time.Duration) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// upgrade asks for the exec; from then on frames are spoken.
func (c *Client) upgrade(ctx context.Context, conn net.Conn, in *bufio.Reader, ref string, body execRequest) error {
	hr, err := newRequest(ctx, http.MethodPost, allocPath(ref, "exec"), body)
	if err != nil {
		return err
	}
	hr.Header.Set("Connection", "Upgrade")
	hr.Header.Set("Upgrade", execProtocol)
	if err = hr.Write(conn); err != nil {
		return c.unreachable(ctx, err)
	}
	resp, err := http.ReadResponse(in, hr)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	return c.refusal(resp)
}

// follow hands on the output until the command has ended.
func (c *Client) follow(ctx context.Context, in *bufio.Reader, req driver.ExecRequest, left *credit) (res driver.ExitResult, err error) {
	buf := make([]byte, chunk)
	for {
		kind, data, err := readFrame(in, buf)
		if err != nil {
			if ctx.Err() != nil {
				return res, context.Cause(ctx)
			}
			return res, &Error{Code: CodeNoAgent, Message: "the agent on " + c.socket + " went away, and the command is ended", Hint: "its tasks go on; try again once it is back"}
		}
		switch {
		case kind == frameStdout && req.Stdout != nil:
			_, err = req.Stdout.Write(data)
		case kind == frameStderr && req.Stderr != nil:
			_, err = req.Stderr.Write(data)
		case kind == frameCredit && len(data) == 4:
			left.give(int(binary.BigEndian.Uint32(data)))
		case kind == frameExit:
			if err := json.Unmarshal(data, &res); err != nil {
				return res, c.lost(err)
			}
			return res, nil
		case kind == frameError:
			e := &Error{}
			if err := json.Unmarshal(data, e); err != nil {
				return res, c.lost(err)
			}
			return res, e
		}
		if err != nil {
			return res, fmt.Errorf("api: output of the command: %w", err)
		}
	}
}

// sendInput sends what there is to read, and that it ended.
func sendInput(out *frames, req driver.ExecRequest, left *credit) {
	if req.Stdin == nil {
		return
	}
	buf := make([]byte, chunk)
	for {
		n, err := req.Stdin.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			m := left.take(len(p))
			if m == 0 || out.write(frameStdin, p[:m]) != nil {
				return
			}
			p = p[m:]
		}
		if err != nil {
			_ = out.write(frameStdin, nil)
			return
		}
	}
}

func sendSizes(out *frames, sizes <-chan driver.TerminalSize, done <-chan struct{}) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			data := binary.BigEndian.AppendUint16(nil, s.Rows)
			if out.write(frameSize, binary.BigEndian.AppendUint16(data, s.Cols)) != nil {
				return
			}
		case <-done:
			return
		}
	}
}
