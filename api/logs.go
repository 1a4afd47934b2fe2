// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/logmon/tail"
	"github.com/nodekeep/nodekeep/spec"
)

// logs streams a task's output. A stream that follows ends when the alloc has
// finished and all was sent; one that the agent's end cuts is seen as cut.
func (s *server) logs(w http.ResponseWriter, r *http.Request) error {
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	cfg, err := s.tailConfig(r, al)
	if err != nil {
		return err
	}
	// What cannot be read is told before the answer begins. It may not be there yet.
	rd, err := tail.Open(r.Context(), cfg)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &Error{Code: CodeConflict, Message: fmt.Sprintf("the logs of alloc %s cannot be read: %s", al.Alloc.ID, Plain(err)),
			Hint: "the task, or somebody else, has put something in the place of its log directory, or the node has no more of what it takes"}
	}
	framed := r.Header.Get("Accept") == logFrames
	w.Header().Set("Content-Type", "application/octet-stream")
	if framed {
		w.Header().Set("Content-Type", logFrames)
	}
	out := &flushed{w: w, rc: http.NewResponseController(w)}
	if err := out.rc.Flush(); err != nil {
		if rd != nil {
			_ = rd.Close()
		}
		return nil // the client has left
	}
	to := logSink{Writer: out, lost: func(int64) error { return nil }}
	if framed {
		to = framedSink(out, al.Alloc.Task(cfg.Base[:strings.LastIndexByte(cfg.Base, '.')]))
	}
	err = s.sendLog(r.Context(), to, al.Alloc.ID, cfg, rd)
	if err != nil && out.err == nil {
		if r.Context().Err() == nil {
			s.Log.Warn("a log could not be sent to its end", "alloc_id", al.Alloc.ID, "log", cfg.Base, "error", err)
			if framed {
				e, _ := toError(err)
				data, _ := json.Marshal(e) // of strings
				_ = (&frames{w: out}).write(frameError, data)
				return nil
			}
		}
		panic(http.ErrAbortHandler) // the client must not take this for the end
	}
	return nil
}

// logSink takes a log, and what is missing of it.
type logSink struct {
	io.Writer
	lost func(files int64) error
}

// lostLog says that files were rotated away before they could be read, and how
// much they held at most.
type lostLog struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

func framedSink(w io.Writer, t *spec.Task) logSink {
	f := &frames{w: w}
	size := t.LogConfig().MaxSize
	return logSink{outStream{f, frameStdout}, func(files int64) error {
		data, _ := json.Marshal(lostLog{files, files * size}) // of numbers
		return f.write(frameLost, data)
	}}
}

// copyLog copies what rd reads, and tells of what it could not.
func copyLog(to logSink, rd *tail.Reader) error {
	buf, told := make([]byte, chunk), int64(0)
	for {
		n, err := rd.Read(buf)
		if skipped := rd.Skipped(); skipped > told {
			if err := to.lost(skipped - told); err != nil {
				return err
			}
			told = skipped
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// framedLog is the client's end of a log as frames.
type framedLog struct {
	*body
	lost func(files, bytes int64)
	buf  []byte
	rest []byte // of the frame read last
}

func (l *framedLog) Read(p []byte) (int, error) {
	for len(l.rest) == 0 {
		kind, data, err := readFrame(l.body, l.buf)
		if err != nil {
			return 0, err
		}
		l.buf = data[:cap(data)]
		switch kind {
		case frameStdout:
			l.rest = data
		case frameLost:
			var lost lostLog
			if json.Unmarshal(data, &lost) == nil && l.lost != nil {
				l.lost(lost.Files, lost.Bytes)
			}
		case frameError:
			e := &Error{}
			if err := json.Unmarshal(data, e); err != nil {
				return 0, l.c.lost(err)
			}
			return 0, e
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// tailConfig says what to read of which file.
func (s *server) tailConfig(r *http.Request, al *nodekeep.AllocStatus) (cfg tail.Config, err error) {
	q, err := query(r, "task", "stream", "lines", "follow")
	if err != nil {
		return cfg, err
	}
	task := q.Get("task")
	if task == "" && len(al.Alloc.Tasks) == 1 {
		task = al.Alloc.Tasks[0].Name
	}
	t := al.Alloc.Task(task)
	if t == nil {
		return cfg, errNoTask(al, task)
	}
	if t.LogConfig().Disabled {
		return cfg, &Error{Code: CodeConflict, Message: fmt.Sprintf("the job has turned off the log of task %q", task), Hint: "look where the task itself writes"}
	}
	stream := q.Get("stream")
	switch stream {
	case "":
		stream = "stdout"
	case "stdout", "stderr":
	default:
		return cfg, &Error{Code: CodeInvalid, Message: "unknown stream " + strconv.Quote(stream), Hint: "use stdout or stderr"}
	}
	dir, ok := s.Agent.Dir(al.Alloc.ID)
	if !ok {
		return cfg, &Error{Code: CodeConflict, Message: fmt.Sprintf("alloc %s was collected, and its logs with it", al.Alloc.ID)}
	}
	cfg = tail.Config{Dir: dir.Logs(), Base: task + "." + stream, Follow: q.Get("follow") != ""}
	if v := q.Get("lines"); v != "" {
		switch cfg.Lines, err = strconv.Atoi(v); {
		case err != nil || cfg.Lines < -1:
			return cfg, &Error{Code: CodeInvalid, Message: "lines " + strconv.Quote(v) + " is no number of lines", Hint: "use 1 or more, or -1 for none but what comes"}
		case cfg.Lines == -1:
			cfg.Lines, cfg.FromEnd = 0, true
		}
	}
	return cfg, nil
}

// sendLog copies a log. It waits for the directory where the alloc has none yet,
// and rd is nil.
func (s *server) sendLog(ctx context.Context, to logSink, id string, cfg tail.Config, rd *tail.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for rd == nil {
		changed := s.Agent.Changed()
		var err error
		if rd, err = tail.Open(ctx, cfg); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !cfg.Follow || s.over(id) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { _ = rd.Close() }()
	var watcher sync.WaitGroup
	if cfg.Follow {
		watcher.Go(func() {
			if s.untilOver(ctx, id) == nil {
				rd.Finish()
			}
		})
	}
	err := copyLog(to, rd)
	cancel()
	watcher.Wait()
	return err
}

// over says that nothing of the alloc will write any more.
func (s *server) over(id string) bool {
	st, ok := s.Agent.Alloc(id)
	if !ok {
		return true
	}
	a := shape(&st)
	return a.Finished()
}

func (s *server) untilOver(ctx context.Context, id string) error {
	for {
		changed := s.Agent.Changed()
		if s.over(id) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// flushed sends every write at once and remembers that the client has left.
type flushed struct {
	w   io.Writer
	rc  *http.ResponseController
	err error
}

func (f *flushed) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	f.err = err
	return n, err
}
