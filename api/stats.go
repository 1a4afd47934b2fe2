// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// glance is between the two samples that a single look needs: percentages are
// over a time.
const glance = 250 * time.Millisecond

// stats streams what the tasks of an alloc use, one sample a line. Without follow
// it is one sample of each task that runs.
func (s *server) stats(w http.ResponseWriter, r *http.Request) error {
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	q, err := query(r, "task", "interval", "follow")
	if err != nil {
		return err
	}
	task := q.Get("task")
	if task != "" && al.Alloc.Task(task) == nil {
		return errNoTask(al, task)
	}
	if al.Done || al.Status.Terminal() {
		return fmt.Errorf("%w: alloc %s is %s: it uses nothing", allocrunner.ErrTerminal, al.Alloc.ID, al.Status)
	}
	var interval time.Duration
	if v := q.Get("interval"); v != "" {
		if interval, err = time.ParseDuration(v); err != nil || interval <= 0 {
			return &Error{Code: CodeInvalid, Message: "interval " + strconv.Quote(v) + " is no duration", Hint: "use one such as 1s"}
		}
	}
	out := newLines(w)
	if q.Get("follow") == "" {
		return out.end(s.glance(r, al, task, out))
	}
	if out.flush() != nil {
		return nil
	}
	for u, err := range s.Agent.Stats(r.Context(), al.Alloc.ID, task, interval) {
		if err != nil {
			return out.end(err)
		}
		if out.write(u) != nil || out.flush() != nil {
			return nil
		}
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client must not take this for the end
	}
	return nil
}

// glance writes the second sample of each running task.
func (s *server) glance(r *http.Request, al *nodekeep.AllocStatus, task string, out *lines) error {
	missing := map[string]bool{}
	for i := range al.Alloc.Tasks {
		name := al.Alloc.Tasks[i].Name
		if (task == "" || task == name) && al.Tasks[name].State() == taskrunner.Running {
			missing[name] = true
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("%w: no task of alloc %s that was asked for runs", taskrunner.ErrNotRunning, al.Alloc.ID)
	}
	// A task that ends meanwhile says no more.
	ctx, cancel := context.WithTimeout(r.Context(), 4*glance)
	defer cancel()
	seen := map[string]bool{}
	for u, err := range s.Agent.Stats(ctx, al.Alloc.ID, task, glance) {
		if err != nil {
			return err
		}
		if missing[u.Task] && seen[u.Task] {
			delete(missing, u.Task)
			if out.write(u) != nil {
				return nil
			}
		}
		if seen[u.Task] = true; len(missing) == 0 {
			return nil
		}
	}
	return nil
}

// Stats yields what a task uses, or each task of the alloc if task is "": once,
// or with follow at the interval (0 is a second) until the tasks are dead or ctx
// ends.
func (c *Client) Stats(ctx context.Context, ref, task string, interval time.Duration, follow bool) iter.Seq2[nodekeep.TaskUsage, error] {
	q := url.Values{}
	if task != "" {
		q.Set("task", task)
	}
	if interval > 0 {
		q.Set("interval", interval.String())
	}
	if follow {
		q.Set("follow", "1")
	}
	return stream[nodekeep.TaskUsage](ctx, c, allocPath(ref, "stats"), q, true)
}
