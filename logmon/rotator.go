// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	defaultMaxSize  = 10 << 20
	defaultMaxFiles = 10

	lineWindow = 32 << 10               // how far before the limit a line end is looked for
	retryAfter = 100 * time.Millisecond // between two tries on a disk that fails
	healthy    = 64 << 10               // bytes after which a disk that failed counts as good again
)

// RotateConfig says where output goes. Dir and Base are required.
type RotateConfig struct {
	Dir  string // an existing directory, not a link to one
	Base string // file name without index, such as "web.stdout"

	MaxSize  int64 // bytes a file; default 10 MiB
	MaxFiles int   // default 10; at least 1

	UID, GID int         // owner of the files; 0 is whoever creates them
	Mode     fs.FileMode // permission bits whatever the umask; default 0644
}

// Rotator is a writer that spreads what it is given over files of bounded size
// and removes the oldest. Its methods may be called from any goroutine. They
// block for as long as the file system does and no longer.
type Rotator struct {
	mu     sync.Mutex
	cfg    RotateConfig
	out    *os.File // nil until the first byte and after an error
	n      int64    // index of the newest file written, -1 before the first
	next   bool     // the file n is finished: open a new one
	plain  bool     // this file system cannot take bytes from a FIFO by itself
	closed bool

	lost     int64     // bytes dropped and not told yet
	retry    time.Time // not before
	good     int64     // bytes written since the last trouble
	reported bool      // this trouble was returned already
	soft     error     // a trouble that lost nothing, to be returned once

	step func(string) // tests: called before each step of a rotation
}

// NewRotator does no I/O: files are looked for at the first Write.
func NewRotator(cfg RotateConfig) *Rotator {
	r := &Rotator{cfg: cfg, n: -1, good: healthy, step: func(string) {}}
	r.SetLimits(cfg.MaxSize, cfg.MaxFiles)
	if cfg.Mode == 0 {
		r.cfg.Mode = 0o644
	}
	return r
}

// SetLimits changes size and number of files from the next byte on; what exists
// is kept until the next rotation. Zero values are the defaults.
func (r *Rotator) SetLimits(maxSize int64, maxFiles int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if maxSize <= 0 {
		maxSize = defaultMaxSize
	}
	if maxFiles <= 0 {
		maxFiles = defaultMaxFiles
	}
	r.cfg.MaxSize, r.cfg.MaxFiles = maxSize, maxFiles
}

// Write takes all of b, always: what cannot be written is dropped and counted.
// The error, beside n == len(b), reports a trouble once when it begins, not at
// every call. After Close it is os.ErrClosed with n == 0.
func (r *Rotator) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	var n int
	var err error
	if r.lost > 0 {
		if time.Now().Before(r.retry) {
			r.lost += int64(len(b))
			return len(b), nil
		}
		err = r.tell()
	}
	if err == nil {
		if n, err = r.put(b); err == nil {
			err, r.soft = r.soft, nil
			return len(b), err
		}
	}
	r.lost += int64(len(b) - n)
	_ = r.later(err)
	if r.reported {
		return len(b), nil
	}
	r.reported = true
	return len(b), &fs.PathError{Op: "output is being lost: write", Path: r.cfg.Dir + "/" + r.cfg.Base, Err: err}
}

// Close tells of lost output, if it can, and closes the file. Idempotent.
func (r *Rotator) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.tell()
	r.shut()
	return err
}

// flush tells of lost output without waiting for more of it: at an exit there
// may be none.
func (r *Rotator) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost > 0 && !r.closed {
		_ = r.tell() // counted still
	}
}

// tell writes how much was lost, on a line of its own. What cannot be told stays
// counted.
func (r *Rotator) tell() error {
	if r.lost == 0 {
		return nil
	}
	note := "[nodekeep: " + strconv.FormatInt(r.lost, 10) + " bytes of output lost]\n"
	if r.out == nil {
		if err := r.open(); err != nil {
			return r.later(err)
		}
	}
	if !r.bol(r.end()) {
		note = "\n" + note
	}
	if _, err := r.put([]byte(note)); err != nil {
		return r.later(err)
	}
	r.lost = 0
	return nil
}

// later puts off the next try.
func (r *Rotator) later(err error) error {
	r.good, r.retry = 0, time.Now().Add(retryAfter)
	return err
}

// put writes b, rotating as often as it takes, and returns how much was
// written. After an error the file is opened anew.
func (r *Rotator) put(b []byte) (n int, err error) {
	for len(b) > 0 {
		if r.out == nil {
			if err := r.open(); err != nil {
				return n, err
			}
		}
		size := r.end()
		cut := split(b, size, r.cfg.MaxSize, r.bol)
		if cut > 0 {
			m, err := r.out.Write(b[:cut])
			r.wrote(m)
			n += m
			if err != nil {
				r.shut()
				return n, err
			}
			b = b[cut:]
		}
		if len(b) > 0 {
			r.shut()
			r.next = true
		}
	}
	return n, nil
}

// end goes to the end of the file and returns its size. It is asked for before
// every write: somebody may have emptied the file.
func (r *Rotator) end() int64 {
	size, err := r.out.Seek(0, io.SeekEnd)
	if err != nil {
		return r.cfg.MaxSize // a new file, then
	}
	return size
}

// bol says whether a file of that size ends with a whole line.
func (r *Rotator) bol(size int64) bool {
	last := []byte{'\n'}
	if size > 0 {
		_, _ = r.out.ReadAt(last, size-1)
	}
	return last[0] == '\n'
}

// wrote counts towards the disk being good again: one that takes a few bytes
// now and then is still the trouble that was reported.
func (r *Rotator) wrote(n int) {
	if r.good < healthy {
		if r.good += int64(n); r.good >= healthy {
			r.reported = false
		}
	}
}

func (r *Rotator) shut() {
	if r.out != nil {
		_ = r.out.Close() // written with write(2): nothing is buffered here
		r.out = nil
	}
}

// split says how much of b goes to a file of the given size; the rest, if any,
// belongs to the next one. A line is kept whole as long as it may turn out to
// be no longer than the window: it must begin a window before the limit or in
// the next file. A line that is longer is split where the file is full. bol says
// whether the file ends with a whole line; it is asked only where that matters.
func split(b []byte, size, limit int64, bol func(size int64) bool) int {
	window := min(lineWindow, limit/4)
	if size+int64(len(b))+window <= limit {
		return len(b)
	}
	fit := b[:max(0, min(int64(len(b)), limit-size))]
	from := max(0, len(fit)-int(window))
	for i := len(fit) - 1; i >= from; i-- {
		if fit[i] != '\n' {
			continue
		}
		if len(fit) == len(b) && size+int64(i+1)+window <= limit {
			return len(b) // the line begun has room enough
		}
		return i + 1
	}
	if from == 0 && size > 0 && size+window > limit && bol(size) {
		return 0
	}
	return len(fit)
}
