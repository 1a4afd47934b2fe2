// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package tail

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/nodekeep/nodekeep/logmon/internal/logdir"
)

const (
	block  = 32 << 10 // read at once when lines are counted
	maxGap = 1 << 20  // files that rotation removes between two looks; more is a planted file's number
)

// expected is the index of the next file to open.
func (r *Reader) expected() int64 {
	if r.cur != nil {
		return r.at.n + 1
	}
	return r.at.n
}

// atLeast returns the first index from n on.
func atLeast(have []int64, n int64) (int64, bool) {
	for _, i := range have {
		if i >= n {
			return i, true
		}
	}
	return 0, false
}

// read returns bytes of the current file, up to its end or the log's.
func (r *Reader) read(b []byte) (int, error) {
	if r.cur == nil {
		return 0, nil
	}
	if !r.cfg.Follow && r.at.n >= r.end.n {
		if r.at.n > r.end.n || r.at.off >= r.end.off {
			return 0, nil
		}
		b = b[:min(int64(len(b)), r.end.off-r.at.off)]
	}
	n, err := r.cur.ReadAt(b, r.at.off)
	r.at.off += int64(n)
	if n > 0 || err == nil {
		return n, nil
	}
	if err != io.EOF {
		return 0, err
	}
	if st, err := r.cur.Stat(); err == nil {
		if st.Size() < r.at.off { // emptied by somebody: what is appended now is new
			r.at.off = 0
		}
		r.unnamed = logdir.Links(st) == 0
	}
	return 0, nil
}

// open makes n the current file. One that is no log file, or is gone by now, is
// passed over.
func (r *Reader) open(root *os.Root, n int64) error {
	f, _, err := logdir.OpenFile(root, r.cfg.Base, n, os.O_RDONLY)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if gap := n - r.expected(); gap < maxGap {
		r.skipped += gap
	}
	if err != nil {
		r.skipped++
		n++ // cur is nil below: expected next
	}
	if r.cur != nil {
		_ = r.cur.Close()
	}
	r.cur, r.at, r.unnamed = f, pos{n, 0}, false
	return nil
}

// restart makes n the next file to open, after what is left of the current one.
func (r *Reader) restart(n int64) {
	if r.cur != nil {
		_ = r.cur.Close()
	}
	r.cur, r.at, r.unnamed = nil, pos{n, 0}, false
}

// start makes f, which is file n, the current one at off.
func (r *Reader) start(f *os.File, n, off int64) {
	if r.cur != nil {
		_ = r.cur.Close()
	}
	r.cur, r.at = f, pos{n, off}
}

// seek sets the place to begin and, without Follow, the end.
func (r *Reader) seek(ctx context.Context) error {
	r.end = pos{-1, 0}
	root, err := logdir.Open(r.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	have, err := logdir.Indices(root, r.cfg.Base)
	if err != nil || len(have) == 0 {
		return err
	}
	r.at = pos{have[0], 0}
	var tail counter
	switch {
	case r.cfg.Lines > 0:
		tail = &lines{want: r.cfg.Lines}
	case r.cfg.FromEnd:
		tail = &distance{left: r.cfg.Offset}
	}
	found := false
	// Newest first: the end is set by the newest, and what is looked for from
	// the end is found without touching older files.
	for i := len(have) - 1; i >= 0 && !found; i-- {
		f, st, err := logdir.OpenFile(root, r.cfg.Base, have[i], os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if r.end.n < 0 {
			r.end = pos{have[i], st.Size()}
		}
		if tail == nil {
			_ = f.Close()
			break
		}
		off, ok, err := tail.before(ctx, f, st.Size())
		if err != nil {
			_ = f.Close()
			return err
		}
		r.start(f, have[i], off) // the start of the log, unless an older file is found
		found = ok
	}
	if r.cfg.From != nil {
		return r.resume(root, have, *r.cfg.From)
	}
	if tail == nil {
		return r.forward(root, have, r.cfg.Offset)
	}
	return nil
}

// resume goes to a place of an earlier reader.
func (r *Reader) resume(root *os.Root, have []int64, at Place) error {
	if at.Index > have[len(have)-1]+1 { // of another log, or the numbers began again
		return nil
	}
	r.at = pos{at.Index, 0}
	f, _, err := logdir.OpenFile(root, r.cfg.Base, at.Index, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.start(f, at.Index, at.Offset)
	return nil
}

// forward goes to the byte off from the start.
func (r *Reader) forward(root *os.Root, have []int64, off int64) error {
	for _, n := range have {
		f, st, err := logdir.OpenFile(root, r.cfg.Base, n, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		r.start(f, n, min(off, st.Size()))
		if off <= st.Size() {
			return nil
		}
		off -= st.Size()
	}
	return nil
}

// counter looks for a place from the end of the log; before is called with one
// file after the other, the newest first.
type counter interface {
	before(ctx context.Context, f *os.File, size int64) (off int64, found bool, err error)
}

// distance finds the byte so many before the end.
type distance struct{ left int64 }

func (d *distance) before(_ context.Context, _ *os.File, size int64) (int64, bool, error) {
	if d.left <= size {
		return size - d.left, true, nil
	}
	d.left -= size
	return 0, false, nil
}

// lines finds the start of the last so many lines.
type lines struct {
	want, seen int
	inside     bool // a byte after this place was seen: a line end here ends an earlier line
}

func (l *lines) before(ctx context.Context, f *os.File, size int64) (int64, bool, error) {
	buf := make([]byte, block)
	for end := size; end > 0; {
		if err := context.Cause(ctx); err != nil {
			return 0, false, err
		}
		from := max(0, end-block)
		b := buf[:end-from]
		if n, err := f.ReadAt(b, from); n < len(b) {
			if err == io.EOF { // emptied meanwhile
				return 0, true, nil
			}
			return 0, false, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] == '\n' && l.inside {
				if l.seen++; l.seen == l.want {
					return from + int64(i) + 1, true, nil
				}
			}
			l.inside = true
		}
		end = from
	}
	return 0, false, nil
}
