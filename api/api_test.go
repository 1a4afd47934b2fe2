// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/taskrunner"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares bytes with a file of testdata. The shapes are a contract: a
// change that is not an addition breaks those who read them.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// raw gets a path and returns the body, indented where it is one JSON value.
func raw(t *testing.T, c *Client, path string) []byte {
	t.Helper()
	resp, err := c.send(within(t), http.MethodGet, path, nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var out bytes.Buffer
	if json.Indent(&out, data, "", "  ") != nil {
		return data
	}
	return out.Bytes()
}

func TestShapes(t *testing.T) {
	f := newFake()
	f.root = "/data/alloc"
	killed := finished(alloc("bbbb-2", "web", "api", 1), 137)
	killed.Tasks["web"] = taskrunner.Snapshot{
		Phase: taskrunner.Dead, StartedAt: at(1), FinishedAt: at(9), Failed: true, Restarts: 2, Attempt: 2, Reason: "attempts used up",
		Exit: &driver.ExitResult{Code: 137, Signal: 9, OOMKilled: true}, Durable: true,
		Events: []taskrunner.Event{
			{Seq: 7, Time: at(9), Kind: taskrunner.Terminated, Attrs: map[string]string{"exit_code": "137", "signal": "9", "oom_killed": "true"}},
		},
	}
	killed.Alloc.DesiredStatus = spec.DesiredStop
	waiting := alloc("cccc-3", "db", "main", 0)
	waiting.Status, waiting.Description, waiting.Durable = allocrunner.Pending, "no task has started", false
	waiting.Alloc.Tasks = append(waiting.Alloc.Tasks, spec.Task{Name: "after", Driver: "raw_exec", Lifecycle: &spec.Lifecycle{Hook: spec.LifecyclePoststart, Sidecar: true}})
	waiting.Tasks = map[string]taskrunner.Snapshot{"web": {Phase: taskrunner.Pending}}
	broken := nodekeep.AllocStatus{Alloc: &spec.Alloc{ID: "dddd-4"}, Quarantined: "state: corrupt value"}
	broken.Status, broken.Done = allocrunner.Failed, true
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), killed, waiting, broken}
	f.events = []nodekeep.Event{
		{Token: 5, Time: at(3), AllocID: "aaaa-1", Task: "web", Event: taskrunner.Event{Seq: 1, Time: at(3), Kind: taskrunner.Started}},
		{Token: 6, Time: at(4), AllocID: "bbbb-2", Task: "web", Event: taskrunner.Event{Seq: 2, Time: at(4), Kind: taskrunner.Terminated, Attrs: map[string]string{"exit_code": "3"}}},
	}
	c := dialFake(t, f, true)
	golden(t, "ps.json", raw(t, c, "/v1/allocs"))
	golden(t, "events.jsonl", raw(t, c, "/v1/events"))
	golden(t, "inspect.json", raw(t, c, "/v1/allocs/bbbb-2"))
	require.NotContains(t, string(raw(t, c, "/v1/events?after=5")), `"token":5`)
	require.NotContains(t, string(raw(t, c, "/v1/events?alloc=aaaa-1")), `"token":6`)
}

// TestRoundTrip: what the client decodes is what the handler shaped.
func TestRoundTrip(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), finished(alloc("bbbb-2", "web", "api", 1), 3)}
	c := dialFake(t, f, true)
	list, err := c.Allocs(within(t))
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, shape(&f.allocs[0]), list[0])
	require.False(t, list[0].Finished())
	require.True(t, list[1].Finished())
	require.Equal(t, 4711, list[0].Tasks[0].PID)
	require.Zero(t, list[1].Tasks[0].PID, "a dead task has no process")
	require.Equal(t, 3, *list[1].Tasks[0].ExitCode)
	in, err := c.Inspect(within(t), "web.api[1]")
	require.NoError(t, err)
	require.Equal(t, "bbbb-2", in.ID)
	require.Equal(t, "raw_exec", in.Spec.Tasks[0].Driver)
	why, err := c.Degraded(within(t))
	require.NoError(t, err)
	require.Empty(t, why)
	f.fault = errors.New("api: no space left")
	why, err = c.Degraded(within(t))
	require.NoError(t, err)
	require.Equal(t, "no space left", why)
}

func TestOperations(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0)}
	ctx := within(t)
	c := dialFake(t, f, true)
	before, err := c.Stop(ctx, "web", false)
	require.NoError(t, err)
	require.Equal(t, "aaaa-1", before.ID)
	require.Equal(t, []string{"jobs.stop aaaa-1"}, f.made(), "the desired state is what stops it")
	_, err = c.Kill(ctx, "web")
	require.NoError(t, err)
	require.Equal(t, []string{"jobs.stop aaaa-1", "stop aaaa-1 nodelay=true grace=-1"}, f.made(), "and the agent is told what the desired state cannot say")
	_, err = c.Restart(ctx, "aa", "web", false)
	require.NoError(t, err)
	_, err = c.Restart(ctx, "aa", "", true)
	require.NoError(t, err)
	_, err = c.Signal(ctx, "aa", "", "SIGHUP")
	require.NoError(t, err)
	list, err := c.Apply(ctx, []Job{{Namespace: "default", ID: "x", Allocs: []*spec.Alloc{{ID: "x-1"}}}})
	require.NoError(t, err)
	require.Equal(t, []Applied{{ID: "x-1", Job: "x", Change: ChangeNew}}, list)
	require.Equal(t, []string{
		"restart aaaa-1 task=web all=false", "restart aaaa-1 task= all=true", "signal aaaa-1 task= SIGHUP", "apply [x-1]",
	}, f.made())

	f.err = errors.New("no space left")
	_, err = c.Stop(ctx, "web", false)
	requireCode(t, err, CodeInternal)
	require.Equal(t, []string{"jobs.stop aaaa-1", "stop aaaa-1 nodelay=false grace=0"}, f.made(), "the task is stopped all the same")
	f.err = taskrunner.ErrNotDurable
	_, err = c.Stop(ctx, "web", false)
	requireCode(t, err, CodeNotDurable)
	require.ErrorIs(t, err, taskrunner.ErrNotDurable)
	f.made()
	f.err = nil
	f.change(func() { f.allocs = append(f.allocs, finished(alloc("bbbb-2", "web", "api", 1), 0)) })
	ids, err := c.GC(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"bbbb-2"}, ids)
	require.Equal(t, []string{"gc", "jobs.forget"}, f.made())

	alone := dialFake(t, f, false)
	_, err = alone.Stop(ctx, "web", false)
	require.NoError(t, err)
	require.Len(t, f.made(), 1, "without a job store the agent stops it")
	_, err = alone.Apply(ctx, nil)
	requireCode(t, err, CodeNotSupported)
}

func requireCode(t *testing.T, err error, code Code) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, e.Error())
}

// TestErrors: each error is the same one on both sides, with what to do.
func TestErrors(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), alloc("aabb-2", "web", "api", 1)}
	f.oldest = 10
	c := dialFake(t, f, true)
	ctx := within(t)
	for name, tt := range map[string]struct {
		call func() error
		is   error
		code Code
		text string
	}{
		"no alloc":             {func() error { _, err := c.Inspect(ctx, "nix"); return err }, nodekeep.ErrNoAlloc, CodeNoAlloc, "nodekeep ps lists them"},
		"ambiguous":            {func() error { _, err := c.Inspect(ctx, "aa"); return err }, ErrAmbiguous, CodeAmbiguous, "aaaa-1 (web.api[0], running), aabb-2"},
		"no task":              {func() error { _, err := c.Restart(ctx, "aaa", "db", false); return err }, ErrNoTask, CodeNoTask, `no task "db": it has web`},
		"no signal":            {func() error { _, err := c.Signal(ctx, "aaa", "", ""); return err }, ErrInvalid, CodeInvalid, "SIGHUP"},
		"compacted":            {func() error { return lastError(c.Events(ctx, 3, "", false)) }, state.ErrCompacted, CodeCompacted, "events after 3 are no longer kept: the oldest is "},
		"compacted, following": {func() error { return lastError(c.Events(ctx, 3, "", true)) }, state.ErrCompacted, CodeCompacted, "start without --since"},
		"ahead":                {func() error { return lastError(c.Events(ctx, 99, "", false)) }, state.ErrCompacted, CodeCompacted, "no event has the token 99 yet: the newest is "},
		"put back":             {func() error { return lastError(c.EventsFrom(ctx, "5@gone", "", false)) }, state.ErrCompacted, CodeCompacted, "its state was put back from a copy"},
		"no cursor":            {func() error { return lastError(c.EventsFrom(ctx, "five", "", false)) }, nil, CodeInvalid, "is no token"},
		"ahead, following":     {func() error { return lastError(c.Events(ctx, 99, "", true)) }, state.ErrCompacted, CodeCompacted, "no event has the token 99 yet"},
		"events of nobody":     {func() error { return lastError(c.Events(ctx, 0, "nix", true)) }, nodekeep.ErrNoAlloc, CodeNoAlloc, ""},
		"log of nobody":        {func() error { _, err := c.Logs(ctx, "nix", LogQuery{}); return err }, nodekeep.ErrNoAlloc, CodeNoAlloc, ""},
		"log of a gone alloc":  {func() error { _, err := c.Logs(ctx, "aaa", LogQuery{}); return err }, nil, CodeConflict, "collected"},
		"body":                 {func() error { return c.call(ctx, http.MethodPut, "/v1/jobs", "no job", nil) }, ErrInvalid, CodeInvalid, ""},
		"null alloc":           {func() error { _, err := c.Apply(ctx, []Job{{ID: "x", Allocs: []*spec.Alloc{nil}}}); return err }, ErrInvalid, CodeInvalid, "null"},
		"parameter":            {func() error { return c.call(ctx, http.MethodGet, "/v1/events?allloc=x", nil, nil) }, ErrInvalid, CodeInvalid, "known are"},
		"token":                {func() error { return c.call(ctx, http.MethodGet, "/v1/events?after=x", nil, nil) }, ErrInvalid, CodeInvalid, "token"},
		"lines":                {func() error { return c.call(ctx, http.MethodGet, "/v1/allocs/aaa/logs?lines=-2", nil, nil) }, nil, CodeConflict, ""},
		"endpoint":             {func() error { return c.call(ctx, http.MethodGet, "/v2/allocs", nil, nil) }, nil, CodeNotSupported, "nodekeep version"},
		"method":               {func() error { return c.call(ctx, http.MethodDelete, "/v1/allocs", nil, nil) }, nil, CodeNotSupported, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.call()
			requireCode(t, err, tt.code)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			require.Contains(t, err.Error(), tt.text)
		})
	}
	for _, is := range []error{nodekeep.ErrNoAlloc, taskrunner.ErrNotRunning, allocrunner.ErrTerminal, driver.ErrUnknownSignal, driver.ErrNotImplemented, driver.ErrUnavailable} {
		f.err = is
		_, err := c.Signal(ctx, "aaa", "", "SIGHUP")
		require.ErrorIs(t, err, is)
		require.NotContains(t, err.Error(), "driver: ")
	}
}

func TestPlain(t *testing.T) {
	err := errors.Join(fmt.Errorf("api: %w", nodekeep.ErrNoAlloc), errors.New(`nodekeep: unknown driver: x`))
	require.Equal(t, "no such alloc\nunknown driver: x", Plain(err))
}

// lastError runs a stream to its end.
func lastError[T any](seq func(yield func(T, error) bool)) (last error) {
	for _, err := range seq {
		last = err
	}
	return last
}

func TestWatch(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), alloc("bbbb-2", "web", "api", 1)}
	c := dialFake(t, f, true)
	var got []string
	for al, err := range c.Watch(within(t), "aaaa-1") {
		require.NoError(t, err)
		got = append(got, string(al.Status))
		switch len(got) {
		case 1:
			f.change(func() { f.allocs[1] = finished(f.allocs[1], 0) }) // not asked for
			f.change(func() { f.allocs[0] = finished(f.allocs[0], 3) })
		case 2:
			f.change(func() { f.allocs = nil })
		}
		if al.Gone {
			break
		}
	}
	require.Equal(t, []string{"running", "failed", ""}, got)
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	require.ErrorIs(t, lastError(c.Watch(ctx)), context.Canceled)
}

func TestFollowEvents(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), alloc("bbbb-2", "web", "api", 1)}
	add := func(token uint64, id string) {
		f.change(func() { f.events = append(f.events, nodekeep.Event{Token: token, AllocID: id}) })
	}
	add(1, "aaaa-1")
	add(2, "bbbb-2")
	c := dialFake(t, f, true)
	var got []uint64
	for e, err := range c.Events(within(t), 0, "aaaa-1", true) {
		require.NoError(t, err)
		if got = append(got, e.Token); len(got) == 1 {
			add(3, "bbbb-2")
			add(4, "aaaa-1")
		}
		if len(got) == 2 {
			break
		}
	}
	require.Equal(t, []uint64{1, 4}, got)
}

// TestAgentEnds: what follows is told that the agent went away, and does not
// take it for the end of what it followed.
func TestAgentEnds(t *testing.T) {
	f := newFake()
	f.root = t.TempDir()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0)}
	writeLog(t, f, "aaaa-1", "web.stdout.0", "hello\n")
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, ln, Handler(Config{Agent: f}), nil) }()
	c := Dial(path)
	log, err := c.Logs(within(t), "aaa", LogQuery{Follow: true})
	require.NoError(t, err)
	buf := make([]byte, 6)
	_, err = io.ReadFull(log, buf)
	require.NoError(t, err)
	watched := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		var last error
		for _, err := range c.Watch(within(t)) {
			if last = err; err == nil {
				close(first)
			}
		}
		watched <- last
	}()
	<-first
	cancel()
	require.NoError(t, <-served)
	require.ErrorIs(t, <-watched, ErrNoAgent)
	_, err = io.ReadAll(log)
	require.ErrorIs(t, err, ErrNoAgent)
	_, err = c.Allocs(within(t))
	require.ErrorIs(t, err, ErrNoAgent)
	require.Contains(t, err.Error(), path)
}

// TestWaitsForRestore: an agent that is still looking for its tasks does not say
// that there are none.
func TestWaitsForRestore(t *testing.T) {
	f := newFake()
	f.ready = make(chan struct{})
	c := dialFake(t, f, true)
	answer := make(chan []Alloc, 1)
	go func() {
		list, err := c.Allocs(within(t))
		if err == nil {
			answer <- list
		}
		close(answer)
	}()
	f.change(func() { f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0)} })
	close(f.ready)
	require.Len(t, <-answer, 1)
}

func writeLog(t *testing.T, f *fake, id, name, content string) {
	t.Helper()
	d, ok := f.Dir(id)
	require.True(t, ok)
	require.NoError(t, os.MkdirAll(d.Logs(), 0o755))
	file, err := os.OpenFile(filepath.Join(d.Logs(), name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteString(content)
	require.NoError(t, err)
}

func TestLogs(t *testing.T) {
	f := newFake()
	f.root = t.TempDir()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0)}
	c := dialFake(t, f, true)
	read := func(q LogQuery) string {
		r, err := c.Logs(within(t), "aaa", q)
		require.NoError(t, err)
		defer r.Close()
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		return string(data)
	}
	require.Empty(t, read(LogQuery{}), "no directory yet")

	// A follower that was there first sees all, once, across files, and ends with the alloc.
	r, err := c.Logs(within(t), "aaa", LogQuery{Follow: true})
	require.NoError(t, err)
	defer r.Close()
	writeLog(t, f, "aaaa-1", "web.stdout.0", "one\ntwo\n")
	f.change(func() {})
	buf := make([]byte, 8)
	_, err = io.ReadFull(r, buf)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", string(buf))
	writeLog(t, f, "aaaa-1", "web.stdout.1", "three\n")
	writeLog(t, f, "aaaa-1", "web.stderr.0", "oops\n")
	f.change(func() { f.allocs[0] = finished(f.allocs[0], 0) })
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "three\n", string(rest))

	require.Equal(t, "one\ntwo\nthree\n", read(LogQuery{}))
	require.Equal(t, "two\nthree\n", read(LogQuery{Lines: 2}))
	require.Equal(t, "three\n", read(LogQuery{Lines: 1, Follow: true}))
	require.Empty(t, read(LogQuery{Lines: -1, Follow: true}))
	require.Equal(t, "oops\n", read(LogQuery{Stderr: true, Task: "web"}))
	big := strings.Repeat("x", 1<<20) + "\n"
	writeLog(t, f, "aaaa-1", "web.stdout.2", big)
	require.Equal(t, big, read(LogQuery{Lines: 1}))

	two := alloc("bbbb-2", "web", "api", 1)
	two.Alloc.Tasks = append(two.Alloc.Tasks, spec.Task{Name: "quiet", Driver: "raw_exec", Logs: &spec.LogConfig{Disabled: true}})
	f.change(func() { f.allocs = append(f.allocs, two) })
	_, err = c.Logs(within(t), "bbb", LogQuery{})
	require.ErrorIs(t, err, ErrNoTask)
	require.ErrorContains(t, err, "name one of web, quiet")
	_, err = c.Logs(within(t), "bbb", LogQuery{Task: "quiet"})
	requireCode(t, err, CodeConflict)
}

// TestLogGap: what was rotated away before a slow reader came to it is told, and
// where; and without the frames the output is as it was.
func TestLogGap(t *testing.T) {
	f := newFake()
	f.root = t.TempDir()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0)}
	c := dialFake(t, f, true)
	writeLog(t, f, "aaaa-1", "web.stdout.0", "one\n")
	var got []byte
	r, err := c.Logs(within(t), "aaa", LogQuery{Follow: true, Lost: func(files, bytes int64) {
		got = fmt.Appendf(got, "[%d %d]", files, bytes>>20)
	}})
	require.NoError(t, err)
	defer r.Close()
	buf := make([]byte, 4)
	_, err = io.ReadFull(r, buf)
	require.NoError(t, err)
	got = append(got, buf...)
	writeLog(t, f, "aaaa-1", "web.stdout.4", "five\n") // 1 to 3 were there and are gone
	f.change(func() { f.allocs[0] = finished(f.allocs[0], 0) })
	for {
		n, err := r.Read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
	}
	require.Equal(t, "one\n[3 30]five\n", string(got))

	req, err := newRequest(within(t), http.MethodGet, "/v1/allocs/aaa/logs", nil)
	require.NoError(t, err)
	resp, err := c.do(within(t), req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "one\nfive\n", string(raw))
}

// TestMisnamed: a wrong name is told as one, not as a fault of the agent.
func TestMisnamed(t *testing.T) {
	f := newFake()
	f.root = t.TempDir()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), alloc("bbbb-2", "db", "db", 0)}
	f.allocs[1].Gone, f.allocs[1].Alloc.Tasks = true, nil
	c := dialFake(t, f, true)
	for _, ref := range []string{"", ".", ".."} {
		_, err := c.Inspect(within(t), ref)
		require.ErrorContains(t, err, "no alloc", "%q", ref)
		_, err = c.Stop(within(t), ref, false)
		require.ErrorContains(t, err, "no alloc", "%q", ref)
		_, err = c.Logs(within(t), ref, LogQuery{})
		require.ErrorContains(t, err, "no alloc", "%q", ref)
	}
	for _, task := range []string{"", "t299"} {
		_, err := c.Logs(within(t), "db", LogQuery{Task: task})
		require.ErrorContains(t, err, "was collected")
		requireCode(t, err, CodeEnded)
	}
	// A link in the place of the log directory.
	d, ok := f.Dir("aaaa-1")
	require.True(t, ok)
	require.NoError(t, os.MkdirAll(filepath.Dir(d.Logs()), 0o755))
	require.NoError(t, os.Symlink(t.TempDir(), d.Logs()))
	for _, follow := range []bool{false, true} {
		_, err := c.Logs(within(t), "web", LogQuery{Follow: follow})
		requireCode(t, err, CodeConflict)
		require.ErrorContains(t, err, "is a link")
	}
}
