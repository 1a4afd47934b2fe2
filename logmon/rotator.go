// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
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
	size   int64    // of out
	bol    bool     // the last byte written ended a line
	next   bool     // the file n is finished: open a new one
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
	r := &Rotator{cfg: cfg, n: -1, bol: true, good: healthy, step: func(string) {}}
	r.SetLimits(cfg.MaxSize, cfg.MaxFiles)
	if cfg.Mode == 0 {
		r.cfg.Mode = 0o644
	}
	return r
}

// SetLimits changes size and number of files; the next rotation goes by them.
// Zero values are the defaults.
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
	r.good, r.retry = 0, time.Now().Add(retryAfter)
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

// flush tells of lost output without waiting for more of it.
func (r *Rotator) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost > 0 && !r.closed {
		_ = r.tell() // counted still
	}
}

// tell writes how much was lost.
func (r *Rotator) tell() error {
	if r.lost == 0 {
		return nil
	}
	note := "[nodekeep: " + strconv.FormatInt(r.lost, 10) + " bytes of output lost]\n"
	if !r.bol {
		note = "\n" + note
	}
	if _, err := r.put([]byte(note)); err != nil {
		r.retry = time.Now().Add(retryAfter)
		return err
	}
	r.lost = 0
	return nil
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
		cut := split(b, r.size, r.cfg.MaxSize, r.bol)
		if cut > 0 {
			m, err := r.out.Write(b[:cut])
			r.wrote(b[:m])
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

func (r *Rotator) wrote(b []byte) {
	if len(b) == 0 {
		return
	}
	r.size += int64(len(b))
	r.bol = b[len(b)-1] == '\n'
	if r.good < healthy {
		if r.good += int64(len(b)); r.good >= healthy {
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
// the next file. bol says that the file ends with a whole line.
func split(b []byte, size, limit int64, bol bool) int {
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
	if from == 0 && bol && size > 0 && size+window > limit {
		return 0
	}
	return len(fit)
}
