// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package tail reads the rotating files that package logmon writes as one
// stream of bytes: from the start, from an offset, or the last lines; to the end
// or following what is written.
//
//	web.stdout.7   web.stdout.8   web.stdout.9
//	├────────────┼────────────┼───────▷ grows, then web.stdout.10
//	oldest            ▲ read in numeric order, whole file by whole file
//
// Rules a caller can rely on:
//
//   - Order is numeric: 9, 10, 11. Across a rotation no byte is lost or repeated.
//   - Offsets count over all files there are at Open. The writer removes old
//     files, so an offset from the start names another byte later; one from the
//     end does not depend on them.
//   - A file that is removed before it was reached is a gap, counted by Skipped;
//     one that is being read is read to its end. What follows is in order.
//   - A log that has no file yet is empty, not an error.
//   - A reader that follows is woken by the kernel, never by a timer. Each takes
//     one inotify instance, of which Linux gives a user 128 by default.
//   - Links, FIFOs and files with several names are passed over: a task may be
//     able to put them there.
package tail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/nodekeep/nodekeep/logmon/internal/logdir"
)

// Config says what to read. Dir and Base are required; without more the whole
// log is read, from the oldest byte to what was the newest at Open.
type Config struct {
	Dir  string // an existing directory, not a link to one
	Base string // file name without index, such as "web.stdout"

	// Follow goes on at the end and waits for more. Without it Read ends with
	// io.EOF where the log ended at Open, however fast the task writes.
	Follow bool

	Offset  int64 // bytes from the start, over all files; more than there are is the end
	FromEnd bool  // Offset counts back from the end; more than there are is the start
	Lines   int   // start at the last so many lines instead; one that has no end yet counts

	// From starts at the Place where an earlier Reader of this log stood. A file that
	// was removed since is a gap, the one of the place too: how much of it had been
	// read is not known. A place that this log has never come to is one of another
	// log, and means the start.
	From *Place
}

// Place is a byte of a log, by the file that holds it: it stays the same when older
// files are removed.
type Place struct{ Index, Offset int64 }

// Validate reports all faults of the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("tail: Dir is empty: name the log directory"))
	}
	if c.Base == "" || strings.ContainsAny(c.Base, `/\`+"\x00") {
		errs = append(errs, fmt.Errorf("tail: Base %q is not a file name: use \"<task>.stdout\" or \"<task>.stderr\"", c.Base))
	}
	if c.Offset < 0 {
		errs = append(errs, fmt.Errorf("tail: Offset %d is negative: use FromEnd to count from the end", c.Offset))
	}
	if c.Lines < 0 {
		errs = append(errs, fmt.Errorf("tail: Lines %d is negative", c.Lines))
	}
	if p := c.From; p != nil && (p.Index < 0 || p.Offset < 0) {
		errs = append(errs, fmt.Errorf("tail: From %d:%d is no place: nothing in it is negative", p.Index, p.Offset))
	}
	if c.From != nil && (c.Lines != 0 || c.Offset != 0 || c.FromEnd) {
		errs = append(errs, errors.New("tail: From excludes Lines, Offset and FromEnd: give one of them"))
	}
	if c.Lines > 0 && (c.Offset != 0 || c.FromEnd) {
		errs = append(errs, errors.New("tail: Lines excludes Offset and FromEnd: give one of them"))
	}
	return errors.Join(errs...)
}

// pos is a place in the log: byte off of file n.
type pos struct{ n, off int64 }

// Reader is an open log. Read is for one goroutine at a time; Close may be
// called from any.
type Reader struct {
	cfg   Config
	watch *fsnotify.Watcher // nil without Follow
	end   pos               // without Follow
	stop  func() bool       // of the context

	once sync.Once
	done chan struct{} // closed with cause set
	why  error
	last chan struct{} // closed by Finish
	rest sync.Once

	mu      sync.Mutex // held by Read while it works, and to close what is below
	cur     *os.File   // file at.n; nil before the first
	at      pos
	unnamed bool // cur was found removed
	skipped int64
	closed  bool
}

// Open finds the place to begin. It blocks for disk reads only. When ctx ends,
// Read returns the context's cause; Close must be called all the same.
func Open(ctx context.Context, cfg Config) (*Reader, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	r := &Reader{cfg: cfg, done: make(chan struct{}), last: make(chan struct{}), stop: func() bool { return true }}
	if cfg.Follow { // before the first look, so that nothing happens unseen
		var err error
		if r.watch, err = watchDir(cfg.Dir); err != nil {
			return nil, err
		}
	}
	if err := r.seek(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	r.stop = context.AfterFunc(ctx, func() { r.finish(context.Cause(ctx)) })
	return r, nil
}

func watchDir(dir string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("tail: follow %s: %w (too many followers? raise fs.inotify.max_user_instances)", dir, err)
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("tail: follow %s: %w", dir, err)
	}
	return w, nil
}

func (r *Reader) finish(why error) {
	r.once.Do(func() { r.why = why; close(r.done) })
}

// Finish ends the following: Read goes on to what is on file by now, then it is
// io.EOF. It is for a log that nobody writes any more. Idempotent; from any
// goroutine; a reader that does not follow is none the wiser.
func (r *Reader) Finish() { r.rest.Do(func() { close(r.last) }) }

// finished says whether Finish was called.
func (r *Reader) finished() bool {
	select {
	case <-r.last:
		return true
	default:
		return false
	}
}

// Close ends a waiting Read with os.ErrClosed and frees all. Idempotent.
func (r *Reader) Close() error {
	r.finish(os.ErrClosed)
	r.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.cur != nil {
		_ = r.cur.Close() // only read
	}
	if r.watch != nil {
		return r.watch.Close()
	}
	return nil
}

// Skipped returns how many files were removed before they could be read.
func (r *Reader) Skipped() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

// Place returns where the next byte is, or will be. After a Read of n bytes these
// began n before it, in the same file.
func (r *Reader) Place() Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Place{r.at.n, r.at.off}
}

// Read returns bytes of one file at a time. At the end it is io.EOF or, when
// following, waits; io.EOF comes then only after Finish or when the directory
// has gone. After the end of the context it is the context's cause, after Close
// os.ErrClosed.
func (r *Reader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		select {
		case <-r.done:
			return 0, r.why
		default:
		}
		last := r.finished() // before the look: all that was there then is seen
		n, err := r.next(b)
		if n > 0 || err != nil {
			return n, err
		}
		if last || !r.cfg.Follow {
			return 0, io.EOF
		}
		if err := r.wait(); err != nil {
			return 0, err
		}
	}
}

// next reads what is there, moving on to the next file where one is finished.
// 0 without an error is the end for now.
func (r *Reader) next(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	for {
		if n, err := r.read(b); n > 0 || err != nil {
			return n, err
		}
		if !r.cfg.Follow && r.expected() > r.end.n {
			return 0, nil
		}
		more, n, err := r.advance(b)
		if n > 0 || err != nil || !more {
			return n, err
		}
	}
}

// advance opens the next file, if there is one, or returns the last bytes of
// the current one. The directory is opened for each look: held open, its removal
// would never be told.
func (r *Reader) advance(b []byte) (more bool, n int, err error) {
	root, err := logdir.Open(r.cfg.Dir)
	if err != nil {
		return false, 0, r.removed(err)
	}
	defer func() { _ = root.Close() }()
	have, err := logdir.Indices(root, r.cfg.Base)
	if err != nil {
		return false, 0, r.removed(err)
	}
	if r.cfg.Follow && len(have) > 0 && r.at.n-have[len(have)-1] > logdir.Limit/2 { // the numbers ended, and the log began again
		r.restart(have[0])
	}
	next, ok := atLeast(have, r.expected())
	if !ok || (!r.cfg.Follow && next > r.end.n) {
		if r.unnamed { // likewise
			_ = r.cur.Close()
			r.cur, r.at, r.unnamed = nil, pos{r.at.n + 1, 0}, false
		}
		return false, 0, nil
	}
	// The writer finished this file before it made the next one: what came
	// between the last read and the look at the directory is read first.
	if n, err := r.read(b); n > 0 || err != nil {
		return true, n, err
	}
	return true, 0, r.open(root, next)
}

// removed makes the end of a directory the end of the log.
func (r *Reader) removed(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		r.finish(io.EOF)
		return io.EOF
	}
	return err
}

// wait returns nil when there may be something new.
func (r *Reader) wait() error {
	for {
		select {
		case <-r.done:
			return r.why
		case <-r.last:
			return nil
		case e, ok := <-r.watch.Events:
			if !ok { // Close
				<-r.done
				return r.why
			}
			if e.Has(fsnotify.Remove|fsnotify.Rename) && e.Name == filepath.Clean(r.cfg.Dir) {
				r.finish(io.EOF)
				return io.EOF
			}
			if _, ok := logdir.Index(filepath.Base(e.Name), r.cfg.Base); ok && e.Op != fsnotify.Chmod {
				return nil
			}
		case err, ok := <-r.watch.Errors:
			if ok && !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("tail: follow %s: %w", r.cfg.Dir, err)
			}
			return nil // too many events: look
		}
	}
}
