// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/logmon/tail"
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
	w.Header().Set("Content-Type", "application/octet-stream")
	out := &flushed{w: w, rc: http.NewResponseController(w)}
	if err := out.rc.Flush(); err != nil {
		return nil // the client has left
	}
	err = s.sendLog(r.Context(), out, al.Alloc.ID, cfg)
	if err != nil && out.err == nil {
		if r.Context().Err() == nil {
			s.Log.Warn("a log could not be sent to its end", "alloc_id", al.Alloc.ID, "log", cfg.Base, "error", err)
		}
		panic(http.ErrAbortHandler) // the client must not take this for the end
	}
	return nil
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

// sendLog copies a log. It waits for the directory where the alloc has none yet.
func (s *server) sendLog(ctx context.Context, out io.Writer, id string, cfg tail.Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		changed := s.Agent.Changed()
		_, err := os.Stat(cfg.Dir)
		if err == nil {
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
	rd, err := tail.Open(ctx, cfg)
	if err != nil {
		return err
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
	_, err = io.Copy(out, rd)
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
