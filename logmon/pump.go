// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const bufSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufSize]byte) }}

// Pump copies one FIFO to one Rotator. It holds no buffer and makes no wake-up
// while nothing is written. Its methods may be called from any goroutine.
//
//	Drain, Close ─▶ asked, and a read deadline that has passed ─▶ Run wakes
//	Run: asks the FIFO how much it holds ─▶ a mark that far ahead ─▶ calls back
//	     once the mark, or an empty FIFO, is reached: no timer, no polling
type Pump struct {
	r    io.ReadCloser
	w    *Rotator
	warn func(string)
	done chan struct{} // closed when Run has ended

	asked atomic.Bool // something below is new to Run

	mu      sync.Mutex
	drains  []func() // not seen by Run yet
	closing bool
	running bool // or has run
	ended   bool

	// Owned by Run.
	read  int64  // bytes taken from the FIFO
	marks []mark // ascending
	last  bool   // Run ends with the last mark
	fail  error
}

// mark is a place in the stream; fn is called once it is on file.
type mark struct {
	at int64
	fn func()
}

// NewPump takes r, which comes from OpenReader, and w: Run closes both. warn is
// told of troubles, once each; nil is nobody. It does no I/O.
func NewPump(r io.ReadCloser, w *Rotator, warn func(string)) *Pump {
	if warn == nil {
		warn = func(string) {}
	}
	return &Pump{r: r, w: w, warn: warn, done: make(chan struct{})}
}

// Run copies until Close. That nobody holds the FIFO for writing does not end
// it: a task's next attempt will. The caller's goroutine is the pump's; a second
// call waits for the end of the first.
func (p *Pump) Run() {
	p.mu.Lock()
	second := p.running
	p.running = true
	p.mu.Unlock()
	if second {
		<-p.done
		return
	}
	defer close(p.done)
	if f, ok := p.r.(*os.File); ok {
		p.runFile(f)
	} else {
		p.runReader()
	}
	if p.fail != nil && !errors.Is(p.fail, os.ErrClosed) {
		p.warn("log collection ended: " + p.fail.Error())
	}
	if err := p.w.Close(); err != nil {
		p.warn(err.Error())
	}
	_ = p.r.Close()
	p.finish()
}

// Drain calls fn once, when all that is in the FIFO now is on file (or dropped,
// if the disk takes none), however much is written afterwards. It does not wait:
// fn runs in the goroutine of Run, or in one of its own after the end of Run,
// and must not block. Before Run it waits for Run.
func (p *Pump) Drain(fn func()) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		go fn()
		return
	}
	p.drains = append(p.drains, fn)
	p.mu.Unlock()
	p.wake()
}

// Close ends Run once all that is in the FIFO now is on file. It does not wait;
// a caller that must waits for Run to return. Idempotent. Before Run, or without
// it, all is copied and closed just the same.
func (p *Pump) Close() {
	p.mu.Lock()
	p.closing = true
	unused := !p.running
	p.mu.Unlock()
	p.wake()
	_, file := p.r.(*os.File)
	if _, ok := p.r.(settler); !file && !ok {
		_ = p.r.Close() // nothing else would wake it
	}
	if unused {
		go p.Run() // ends by itself
	}
}

func (p *Pump) wake() {
	p.asked.Store(true)
	if d, ok := p.r.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(time.Unix(1, 0)) // the pump sets it back and looks
	}
}

// finish calls what was asked for and never came.
func (p *Pump) finish() {
	p.mu.Lock()
	p.ended = true
	rest := p.drains
	p.drains = nil
	p.mu.Unlock()
	p.reached(1<<63 - 1)
	for _, fn := range rest {
		fn()
	}
}

// take turns what was asked into marks. pending is what the FIFO holds.
func (p *Pump) take(pending int) {
	p.asked.Store(false)
	p.mu.Lock()
	drains := p.drains
	p.drains = nil
	p.last = p.closing
	p.mu.Unlock()
	at := p.read + int64(pending)
	for _, fn := range drains {
		p.marks = append(p.marks, mark{at, fn})
	}
	if p.last {
		p.marks = append(p.marks, mark{at, func() {}})
	}
}

// reached calls the marks up to at, all of which is on file.
func (p *Pump) reached(at int64) {
	if len(p.marks) == 0 {
		return
	}
	p.w.flush()
	for len(p.marks) > 0 && p.marks[0].at <= at {
		fn := p.marks[0].fn
		p.marks = p.marks[1:]
		fn()
	}
}

func (p *Pump) write(b []byte) {
	if _, err := p.w.Write(b); err != nil {
		p.warn(err.Error())
	}
}

// errSettled is what a settler's Read returns when it has settled.
var errSettled = errors.New("logmon: settled")

// settler is a reader that can say, by one errSettled from Read, that all that
// was there to read at the call of settle has been read.
type settler interface{ settle() }

// runReader is for readers that are no descriptors. One that is no settler is
// drained at its end only, which also ends the pump.
func (p *Pump) runReader() {
	buf := buffers.Get().(*[bufSize]byte)
	defer buffers.Put(buf)
	for settling := false; ; {
		n, err := p.r.Read(buf[:])
		p.write(buf[:n])
		switch {
		case errors.Is(err, errSettled):
			settling = false
			p.reached(1<<63 - 1)
			if p.last {
				return
			}
		case errors.Is(err, os.ErrDeadlineExceeded): // woken
		case err != nil:
			p.mu.Lock()
			if err != io.EOF && !p.closing {
				p.fail = err
			}
			p.mu.Unlock()
			return
		}
		if s, ok := p.r.(settler); ok && !settling && p.asked.Load() {
			p.take(0)
			settling = true
			s.settle()
		}
	}
}
