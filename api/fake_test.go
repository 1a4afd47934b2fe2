// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// fake is an agent made of data. err is what operations answer.
type fake struct {
	ready chan struct{}
	root  string // of the alloc directories

	mu      sync.Mutex
	allocs  []nodekeep.AllocStatus
	events  []nodekeep.Event
	oldest  uint64 // token of the oldest event that is kept
	changed chan struct{}
	calls   []string
	err     error
	fault   error // of the job store
	run     func(ctx context.Context, req driver.ExecRequest) (driver.ExitResult, error)
	samples int
}

func newFake() *fake {
	f := &fake{ready: make(chan struct{}), changed: make(chan struct{})}
	close(f.ready)
	return f
}

// change alters the fake and tells everybody.
func (f *fake) change(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) Ready() <-chan struct{} { return f.ready }

func (f *fake) Allocs() []nodekeep.AllocStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]nodekeep.AllocStatus(nil), f.allocs...)
}

func (f *fake) Alloc(id string) (nodekeep.AllocStatus, bool) {
	for _, st := range f.Allocs() {
		if st.Alloc.ID == id {
			return st, true
		}
	}
	return nodekeep.AllocStatus{}, false
}

func (f *fake) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fake) EventsSince(after uint64, most int) ([]nodekeep.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after+1 < f.oldest || after > f.newest() {
		return nil, state.ErrCompacted
	}
	var list []nodekeep.Event
	for _, e := range f.events {
		if e.Token > after && len(list) < most {
			list = append(list, e)
		}
	}
	return list, nil
}

func (f *fake) EventBounds() (oldest, newest uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.oldest, f.newest(), nil
}

func (f *fake) ResolveEvent(cursor string) (token uint64, err error) {
	text, run, _ := strings.Cut(cursor, "@")
	if run == "gone" {
		return 0, fmt.Errorf("%w: %w", outbox.ErrPutBack, state.ErrCompacted)
	}
	if token, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, outbox.ErrCursor
	}
	return token, nil
}

// newest is the token of the newest event, whether it is kept or not.
func (f *fake) newest() uint64 {
	last := max(f.oldest, 1) - 1
	for _, e := range f.events {
		last = max(last, e.Token)
	}
	return last
}

func (f *fake) Events(ctx context.Context, after uint64) iter.Seq2[nodekeep.Event, error] {
	return func(yield func(nodekeep.Event, error) bool) {
		for {
			changed := f.Changed()
			list, err := f.EventsSince(after, 1000)
			if err != nil {
				yield(nodekeep.Event{}, err)
				return
			}
			for _, e := range list {
				if after = e.Token; !yield(e, nil) {
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *fake) Dir(id string) (*allocdir.Dir, bool) {
	if f.root == "" {
		return nil, false
	}
	d, err := allocdir.New(allocdir.Config{Root: f.root, AllocID: id})
	return d, err == nil
}

func (f *fake) Drivers() []nodekeep.DriverStatus {
	return []nodekeep.DriverStatus{{Name: "raw_exec", Version: "1", Detected: true, Healthy: true}}
}

func (f *fake) call(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.err
}

func (f *fake) made() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

func (f *fake) Stop(_ context.Context, id string, r allocrunner.KillRequest) error {
	return f.call("stop %s nodelay=%t grace=%d", id, r.NoShutdownDelay, r.Grace)
}

func (f *fake) Restart(_ context.Context, id string, r allocrunner.RestartRequest) error {
	return f.call("restart %s task=%s all=%t", id, r.Task, r.All)
}

func (f *fake) Signal(_ context.Context, id, task, signal, _ string) error {
	return f.call("signal %s task=%s %s", id, task, signal)
}

// Exec is what the test set.
func (f *fake) Exec(ctx context.Context, call nodekeep.ExecCall, req driver.ExecRequest) (driver.ExitResult, error) {
	if err := f.call("exec %s task=%s %q tty=%t", call.AllocID, call.Task, req.Command, req.TTY); err != nil || f.run == nil {
		return driver.ExitResult{}, err
	}
	return f.run(ctx, req)
}

// Stats yields as many samples as the test set.
func (f *fake) Stats(ctx context.Context, id, task string, interval time.Duration) iter.Seq2[nodekeep.TaskUsage, error] {
	err := f.call("stats %s task=%s %s", id, task, interval)
	return func(yield func(nodekeep.TaskUsage, error) bool) {
		for n := range f.samples {
			if !yield(nodekeep.TaskUsage{AllocID: id, Task: "web", Usage: driver.Usage{Time: at(n), Pids: n}}, nil) {
				return
			}
		}
		if err != nil {
			yield(nodekeep.TaskUsage{}, err)
		}
	}
}

// GC forgets what is done.
func (f *fake) GC(context.Context) error {
	f.change(func() { f.allocs = slices.DeleteFunc(f.allocs, func(st nodekeep.AllocStatus) bool { return st.Done }) })
	return f.call("gc")
}

// jobs is a job store made of nothing.
type jobs struct{ f *fake }

func (j jobs) Apply(_ context.Context, list []Job) (all []Applied, err error) {
	var ids []string
	for _, job := range list {
		for _, al := range job.Allocs {
			ids = append(ids, al.ID)
			all = append(all, Applied{ID: al.ID, Job: job.ID, Change: ChangeNew})
		}
	}
	return all, j.f.call("apply %v", ids)
}

func (j jobs) Forget(context.Context) error { return j.f.call("jobs.forget") }

func (j jobs) Fault() error { return j.f.fault }

func (j jobs) Stop(_ context.Context, id string) error { return j.f.call("jobs.stop %s", id) }

// at is a moment of the tests, in a zone that must not show.
func at(sec int) time.Time {
	return time.Date(2026, 1, 2, 3, 4, sec, 123456789, time.FixedZone("X", 3600))
}

// alloc is one alloc with one main task that runs.
func alloc(id, job, group string, index int) nodekeep.AllocStatus {
	return nodekeep.AllocStatus{
		Alloc: &spec.Alloc{
			ID: id, Name: spec.AllocName(job, group, index), JobID: job, Group: group, Index: index, Namespace: "default",
			JobType: spec.JobService, CreateTime: at(0), Tasks: []spec.Task{{Name: "web", Driver: "raw_exec"}},
		},
		Snapshot: allocrunner.Snapshot{
			Status: allocrunner.Running, Description: "tasks are running", Durable: true,
			Tasks: map[string]taskrunner.Snapshot{"web": {
				Phase: taskrunner.Running, Handle: &driver.Handle{PID: 4711}, StartedAt: at(1), Durable: true,
			}},
		},
	}
}

// finished ends an alloc's task with a code.
func finished(st nodekeep.AllocStatus, code int) nodekeep.AllocStatus {
	st.Status, st.Done, st.FinishedAt = allocrunner.Complete, true, at(9)
	if code != 0 {
		st.Status = allocrunner.Failed
	}
	st.Tasks = map[string]taskrunner.Snapshot{"web": {
		Phase: taskrunner.Dead, StartedAt: at(1), FinishedAt: at(9), Failed: code != 0, Handle: &driver.Handle{PID: 4711},
		Exit: &driver.ExitResult{Code: code}, Durable: true,
	}}
	return st
}

// dialFake serves the fake on a socket and returns a client of it.
func dialFake(t *testing.T, f *fake, withJobs bool) *Client {
	t.Helper()
	cfg := Config{Agent: f, Version: "test", Log: hclog.NewNullLogger()}
	if withJobs {
		cfg.Jobs = jobs{f}
	}
	return dialConfig(t, cfg)
}

func dialConfig(t *testing.T, cfg Config) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	ln, err := Listen(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, ln, Handler(cfg), nil) }()
	c := Dial(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		require.NoError(t, <-served)
		require.NoFileExists(t, path)
	})
	return c
}

// within bounds a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}
