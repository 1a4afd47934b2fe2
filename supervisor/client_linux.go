// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// client is one connection to a supervisor. It is ended by Close, by the
// supervisor's end and by an answer that makes no sense; calls under way then
// fail with ErrClosed.
type client struct {
	f      *os.File
	pid    int // of a supervisor this process started, to be reaped when it ends
	since  time.Time
	closed atomic.Bool // by us
	end    chan struct{}
	used   bool // guarded by Scope.mu: it was the scope's connection, and its end is unasked
	scope  *Scope

	wmu   sync.Mutex // orders writes
	mu    sync.Mutex
	seq   uint32
	calls map[uint32]*call // nil once ended

	// What watches silence; guarded by mu.
	awaited int         // calls that are to be answered soon
	silence *time.Timer // runs while there are any
	heard   bool        // something came since it was set
	pinged  bool        // nothing came, so a Hello was asked
}

// call is one request under way. Any number may wait for it.
type call struct {
	done  chan struct{}
	waits bool // for as long as a process lives
	r     reply
	err   error
}

func newClient(s *Scope, f *os.File, pid int) *client {
	return &client{scope: s, f: f, pid: pid, since: time.Now(), end: make(chan struct{}), calls: map[uint32]*call{}}
}

// close ends the connection from our side.
func (c *client) close() {
	c.closed.Store(true)
	_ = c.f.Close()
}

func (c *client) ended() bool {
	select {
	case <-c.end:
		return true
	default:
		return false
	}
}

// run reads answers until the connection ends.
func (c *client) run() {
	var buf []byte
	for {
		b, err := readFrame(c.f, &buf, maxReply)
		if err != nil {
			break
		}
		r, ok := decodeReply(b)
		if !ok {
			break
		}
		if cap(buf) > 64<<10 {
			buf = nil
		}
		c.mu.Lock()
		k := c.calls[r.id]
		delete(c.calls, r.id)
		if c.heard = true; k != nil {
			c.answered(k)
		}
		c.mu.Unlock()
		if k != nil {
			k.r, k.err = r, r.err
			close(k.done)
		}
	}
	c.forgetAll(ErrClosed)
	reapSupervisors(c.pid, !c.closed.Load())
	close(c.end)
}

// send sends one request. It fails through the call, never at once.
func (c *client) send(kind uint8, fill func(*enc)) *call {
	k := &call{done: make(chan struct{}), waits: kind == kWait || kind == kExecWait}
	c.mu.Lock()
	if c.calls == nil {
		c.mu.Unlock()
		k.err = ErrClosed
		close(k.done)
		return k
	}
	c.seq++
	id := c.seq
	c.calls[id] = k
	if !k.waits {
		c.watchSilence()
	}
	c.mu.Unlock()
	e := newFrame(kind, id)
	if fill != nil {
		fill(e)
	}
	b := e.done()
	if len(b)-4 > maxRequest {
		c.forget(id, k, errors.New("supervisor: the request is "+itoa(len(b))+" bytes long, the limit is "+itoa(maxRequest)))
		return k
	}
	c.wmu.Lock()
	_ = c.f.SetWriteDeadline(time.Now().Add(c.scope.pool.hung)) // of one that does not read
	_, err := c.f.Write(b)
	_ = c.f.SetWriteDeadline(time.Time{})
	c.wmu.Unlock()
	if err != nil {
		_ = c.f.Close()
		c.forget(id, k, ErrClosed)
	}
	return k
}

// forget ends a call that has not been answered.
func (c *client) forget(id uint32, k *call, err error) {
	c.mu.Lock()
	mine := c.calls[id] == k
	delete(c.calls, id)
	if mine {
		c.answered(k)
	}
	c.mu.Unlock()
	if mine {
		k.err = err
		close(k.done)
	}
}

// forgetAll ends all calls and the connection.
func (c *client) forgetAll(err error) {
	c.mu.Lock()
	left := c.calls
	c.calls = nil
	if c.silence != nil {
		c.silence.Stop()
	}
	c.mu.Unlock()
	for _, k := range left {
		k.err = err
		close(k.done)
	}
	_ = c.f.Close()
}

// await waits for the answer, for the end of ctx or for stop.
func (k *call) await(ctx context.Context, stop <-chan struct{}) (reply, error) {
	select {
	case <-k.done:
		return k.r, k.err
	default:
	}
	select {
	case <-k.done:
		return k.r, k.err
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	case <-stop:
		return reply{}, ErrClosed
	}
}

// answer waits for the answer or for stop.
func (k *call) answer(stop <-chan struct{}) (reply, error) {
	select {
	case <-k.done:
		return k.r, k.err
	case <-stop:
		return reply{}, ErrClosed
	}
}

// within waits for the answer, no longer than bound, or for stop.
func (k *call) within(bound time.Duration, stop <-chan struct{}) (reply, error) {
	t := time.NewTimer(bound)
	defer t.Stop()
	select {
	case <-k.done:
		return k.r, k.err
	case <-t.C:
		return reply{}, ErrNotAnswering
	case <-stop:
		return reply{}, ErrClosed
	}
}

// one takes the one status of the asked task out of a reply: an answer is never
// taken on trust, a supervisor of another version may have misunderstood.
func one(r reply, err error, id string) (Status, error) {
	if err != nil {
		return Status{}, err
	}
	for _, st := range r.statuses {
		if st.ID == id {
			return st, nil
		}
	}
	return Status{}, errors.New("supervisor: the answer is not about task " + quote(id))
}
