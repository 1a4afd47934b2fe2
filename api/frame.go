// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Exec speaks frames in both directions once the connection was upgraded:
//
//	u8 kind | u32 length of what follows, big endian | bytes
//
// Kinds that a side does not know are skipped. The client may have window bytes
// of input on the way; each credit gives back what the command has taken, so that
// input nobody reads never hides what comes after it: a new size, or the end of
// the client.
const (
	frameStdin  byte = 1 // to the node; empty is the end of the input
	frameSize   byte = 2 // to the node; u16 rows, u16 columns
	frameStdout byte = 3 // to the client
	frameStderr byte = 4 // to the client
	frameExit   byte = 5 // to the client; JSON of a driver.ExitResult; the last, after all output
	frameError  byte = 6 // to the client; JSON of an Error; instead of frameExit
	frameCredit byte = 7 // to the client; u32, bytes of input taken
	frameLost   byte = 8 // to the client, in logs; JSON of a lostLog
)

const (
	execProtocol = "nodekeep-exec/1"               // of the Upgrade header
	logFrames    = "application/x-nodekeep-frames" // what logs may be asked for: frameStdout, frameLost, frameError
	window       = 256 << 10
	maxFrame     = 1 << 20
	chunk        = 32 << 10
)

// frames writes whole frames, from any goroutine.
type frames struct {
	mu sync.Mutex
	w  io.Writer
	b  []byte
}

func (f *frames) write(kind byte, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.b = append(f.b[:0], kind)
	f.b = binary.BigEndian.AppendUint32(f.b, uint32(len(data)))
	f.b = append(f.b, data...)
	_, err := f.w.Write(f.b)
	return err
}

// outStream is an io.Writer whose writes become frames of one kind.
type outStream struct {
	f    *frames
	kind byte
}

func (o outStream) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		c := min(len(p), chunk)
		if err = o.f.write(o.kind, p[:c]); err == nil {
			n, p = n+c, p[c:]
		}
	}
	return n, err
}

// readFrame reads the next frame into buf, which grows.
func readFrame(r io.Reader, buf []byte) (kind byte, data []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("api: a frame of %d bytes, the limit is %d", n, maxFrame)
	}
	if uint32(cap(buf)) < n {
		buf = make([]byte, n)
	}
	_, err = io.ReadFull(r, buf[:n])
	return h[0], buf[:n], err
}

// inbox is what came in and was not taken yet, at most a window of it.
type inbox struct {
	took func(n int) // from the reader's goroutine

	mu     sync.Mutex
	cond   *sync.Cond
	b      []byte
	ended  bool // nothing more comes
	closed bool // nobody reads any more
}

func newInbox(took func(n int)) *inbox {
	i := &inbox{took: took}
	i.cond = sync.NewCond(&i.mu)
	return i
}

// put never blocks. False: more than was allowed.
func (i *inbox) put(p []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.b)+len(p) > window {
		return false
	}
	if len(p) == 0 {
		i.ended = true
	} else if !i.closed && !i.ended {
		i.b = append(i.b, p...)
	}
	i.cond.Broadcast()
	return true
}

func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	for len(i.b) == 0 && !i.ended && !i.closed {
		i.cond.Wait()
	}
	n := copy(p, i.b)
	i.b = append(i.b[:0], i.b[n:]...)
	closed := i.closed
	i.mu.Unlock()
	switch {
	case closed:
		return 0, io.ErrClosedPipe
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	i.took(n)
	return n, nil
}

// Close ends a Read under way; what comes later is dropped.
func (i *inbox) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed, i.b = true, nil
	i.cond.Broadcast()
	return nil
}

// credit is how much input may still be sent.
type credit struct {
	mu   sync.Mutex
	cond *sync.Cond
	n    int
	over bool
}

func newCredit() *credit {
	c := &credit{n: window}
	c.cond = sync.NewCond(&c.mu)
	return c
}

// take waits for credit and takes at most want of it; 0: no more is wanted.
func (c *credit) take(want int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n == 0 && !c.over {
		c.cond.Wait()
	}
	if c.over {
		return 0
	}
	got := min(want, c.n)
	c.n -= got
	return got
}

func (c *credit) give(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = min(window, c.n+n)
	c.cond.Broadcast()
}

func (c *credit) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.cond.Broadcast()
}
