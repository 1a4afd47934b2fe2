// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	winio "github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

const (
	pipePrefix  = `\\.\pipe\`
	dialTimeout = 5 * time.Second
	// pipeAccess: the system, administrators and the owner; nothing inherited.
	pipeAccess = "D:P(A;;GA;;;SY)(A;;GA;;;BA)(A;;GA;;;OW)"
)

var peekNamedPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("PeekNamedPipe")

// Create checks that the name is one of a pipe and that no pipe has it
// (fs.ErrExist). A named pipe lives as long as its reader, so it is OpenReader
// that makes it. The owner does not apply: administrators and the user that
// opens the reader may write.
func Create(path string, _ Owner) error {
	l, err := listen(path)
	if err != nil {
		return err
	}
	return l.Close()
}

// OpenReader makes the pipe and reads from any number of writers, one after the
// other or at once. A second reader of the name is fs.ErrExist. A read waits
// until something is written; Close ends it.
func OpenReader(path string) (io.ReadCloser, error) {
	l, err := listen(path)
	if err != nil {
		return nil, err
	}
	r := &pipeReader{
		l: l, conns: map[*pipeConn]bool{}, chunks: make(chan []byte), taken: make(chan struct{}),
		woken: make(chan struct{}, 1), settled: make(chan struct{}, 1), done: make(chan struct{}),
	}
	r.wg.Add(1)
	go r.accept()
	return r, nil
}

// OpenWriter connects to the pipe. It waits up to 5 s while all instances are
// busy; without a reader it is fs.ErrNotExist at once.
func OpenWriter(path string) (io.WriteCloser, error) {
	if err := checkPipe(path); err != nil {
		return nil, err
	}
	timeout := dialTimeout
	return winio.DialPipe(path, &timeout)
}

func checkPipe(path string) error {
	if len(path) <= len(pipePrefix) || !strings.EqualFold(path[:len(pipePrefix)], pipePrefix) {
		return &fs.PathError{Op: "open", Path: path, Err: ErrNotFIFO}
	}
	return nil
}

func listen(path string) (net.Listener, error) {
	if err := checkPipe(path); err != nil {
		return nil, err
	}
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: pipeAccess, InputBufferSize: bufSize})
	if errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_PIPE_BUSY) {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	return l, err
}

// pipeReader merges what all writers of one pipe write. Each has a goroutine,
// which hands over a piece and waits until it is taken.
type pipeReader struct {
	l       net.Listener
	wg      sync.WaitGroup
	chunks  chan []byte
	taken   chan struct{}
	woken   chan struct{}
	settled chan struct{}
	done    chan struct{}
	once    sync.Once

	mu    sync.Mutex
	conns map[*pipeConn]bool
	open  int // connections that have not settled yet

	rest []byte // of the piece in hand; the reader's own
}

// pipeConn is one writer's end.
type pipeConn struct {
	net.Conn
	settling bool // guarded by pipeReader.mu
}

func (r *pipeReader) accept() {
	defer r.wg.Done()
	for {
		c, err := r.l.Accept()
		if err != nil {
			return
		}
		pc := &pipeConn{Conn: c}
		r.mu.Lock()
		r.conns[pc] = true
		r.mu.Unlock()
		select {
		case <-r.done: // Close may have looked before
			_ = c.Close()
		default:
		}
		r.wg.Add(1)
		go r.serve(pc)
	}
}

func (r *pipeReader) serve(c *pipeConn) {
	defer r.wg.Done()
	defer r.gone(c)
	buf := buffers.Get().(*[bufSize]byte)
	defer buffers.Put(buf)
	left := -1 // bytes to the settling point; -1 is none
	for {
		b := buf[:]
		if left >= 0 {
			b = b[:min(left, len(b))]
		}
		if left == 0 {
			left = -1
			r.settle1(c)
			continue
		}
		n, err := c.Read(b)
		if n > 0 {
			if left > 0 {
				left -= n
			}
			select {
			case r.chunks <- b[:n]:
				<-r.taken
			case <-r.done:
				return
			}
		}
		switch {
		case errors.Is(err, winio.ErrTimeout): // no read is under way now, so this is exact
			_ = c.SetReadDeadline(time.Time{})
			left = available(c.Conn)
		case err != nil:
			return
		}
	}
}

func (r *pipeReader) gone(c *pipeConn) {
	r.settle1(c)
	r.mu.Lock()
	delete(r.conns, c)
	r.mu.Unlock()
	_ = c.Close()
}

// settle1 notes that one connection is settled.
func (r *pipeReader) settle1(c *pipeConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.settling {
		return
	}
	c.settling = false
	if r.open--; r.open == 0 {
		r.settled <- struct{}{}
	}
}

// settle asks for one errSettled from Read once all that is in the pipe now has
// been read.
func (r *pipeReader) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = len(r.conns)
	for c := range r.conns {
		c.settling = true
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
	if r.open == 0 {
		r.settled <- struct{}{}
	}
}

func available(c net.Conn) int {
	f, ok := c.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	var n uint32
	if ok, _, _ := peekNamedPipe.Call(f.Fd(), 0, 0, 0, uintptr(unsafe.Pointer(&n)), 0); ok == 0 {
		return 0
	}
	return int(n)
}

// Read returns what any writer wrote.
func (r *pipeReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		select {
		case r.rest = <-r.chunks:
		case <-r.woken:
			return 0, os.ErrDeadlineExceeded
		case <-r.settled:
			return 0, errSettled
		case <-r.done:
			return 0, os.ErrClosed
		}
	}
	n := copy(b, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		r.taken <- struct{}{}
	}
	return n, nil
}

// SetReadDeadline wakes a waiting Read when t has passed already.
func (r *pipeReader) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		select {
		case r.woken <- struct{}{}:
		default:
		}
	}
	return nil
}

// Close ends all connections and waits for their goroutines. Not while Read runs.
func (r *pipeReader) Close() error {
	r.once.Do(func() {
		close(r.done)
		_ = r.l.Close()
		r.mu.Lock()
		for c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		if len(r.rest) > 0 {
			r.taken <- struct{}{}
		}
		r.wg.Wait()
	})
	return nil
}

func (p *Pump) runFile(*os.File) { p.runReader() }
