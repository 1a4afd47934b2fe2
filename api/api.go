// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package api is the HTTP API of a node on a unix socket, and its Go client.
// Whoever may open the socket may do everything: it is 0600 and its owner's.
//
//	GET  /v1/agent                          who serves here, with which drivers, and whether its disk fails
//	GET  /v1/node                           what the node is, its drivers
//	GET  /v1/plugins                        the programs of drivers, and what is wrong with them
//	GET  /v1/allocs                         every alloc, a JSON array
//	GET  /v1/allocs?follow=1[&id=ID…]       one alloc a line, again at each change
//	GET  /v1/allocs/REF                     one alloc with everything
//	GET  /v1/allocs/REF/explain[?task=T]    what it waits for, what failed, what comes next
//	POST /v1/allocs/REF/stop                {no_shutdown_delay, kill}
//	POST /v1/allocs/REF/restart             {task, all}
//	POST /v1/allocs/REF/signal              {task, signal}
//	GET  /v1/allocs/REF/logs[?task=T&stream=stdout|stderr&lines=N&follow=1]   raw bytes, or as frames if asked for
//	POST /v1/allocs/REF/exec                {task, command, env, tty, size, stdin}: upgraded to frames (frame.go)
//	GET  /v1/allocs/REF/stats[?task=T&interval=D&follow=1]   one sample a line
//	GET  /v1/events[?after=TOKEN&alloc=REF&follow=1]   one event a line; or its cursor
//	PUT  /v1/jobs                           [Job…]: the desired state of these jobs
//	GET  /v1/backup                         the state file as it is, raw bytes
//	GET  /v1/upgrade                        whether the version of before can be put back
//	POST /v1/upgrade/commit                 from here on it cannot
//	POST /v1/gc                             finished allocs are removed now
//
// REF is an alloc's id, the unique beginning of one, JOB or JOB.GROUP[index]
// where that is one alloc. An error is the JSON of Error; after the first line
// of a stream it is the last line. Operations are accepted, not awaited: follow
// the alloc to see them done.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocdir"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

// Reader is what the API reads of an agent. *nodekeep.Agent is one.
type Reader interface {
	Ready() <-chan struct{}
	Allocs() []nodekeep.AllocStatus
	Alloc(id string) (nodekeep.AllocStatus, bool)
	Changed() <-chan struct{}
	Dir(id string) (*allocdir.Dir, bool)
	Drivers() []nodekeep.DriverStatus
}

// Operator is what the API does with an agent. *nodekeep.Agent is one.
type Operator interface {
	Stop(ctx context.Context, id string, r allocrunner.KillRequest) error
	Restart(ctx context.Context, id string, r allocrunner.RestartRequest) error
	Signal(ctx context.Context, id, task, signal, reason string) error
	GC(ctx context.Context) error
	Exec(ctx context.Context, call nodekeep.ExecCall, req driver.ExecRequest) (driver.ExitResult, error)
	Stats(ctx context.Context, id, task string, interval time.Duration) iter.Seq2[nodekeep.TaskUsage, error]
}

// Agent is all of them, and its events.
type Agent interface {
	Reader
	Operator
	NodeReader
	Events(ctx context.Context, after uint64) iter.Seq2[nodekeep.Event, error]
	EventsSince(after uint64, max int) ([]nodekeep.Event, error)
	EventBounds() (oldest, newest uint64, err error)
	ResolveEvent(cursor string) (token uint64, err error)
}

// Job is what is wanted of one job: its allocs, one for each group and index.
// The ids they carry are proposals.
type Job struct {
	Namespace string        `json:"namespace"`
	ID        string        `json:"id"`
	Allocs    []*spec.Alloc `json:"allocs"`
}

// Change is what an apply does to an alloc.
type Change string

// The changes.
const (
	ChangeNew       Change = "new"       // nothing ran in its place
	ChangeReplaced  Change = "replaced"  // it takes the place of Applied.Replaces, which is stopped or is over
	ChangeUpdated   Change = "updated"   // in place: what runs goes on
	ChangeUnchanged Change = "unchanged" // as before
	ChangeStopped   Change = "stopped"   // no longer part of the job
)

// Applied is what an apply does to one alloc.
type Applied struct {
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Index     int    `json:"index"`
	Change    Change `json:"change"`
	Replaces  string `json:"replaces,omitempty"` // an alloc's id
}

// Jobs is where a node without a control plane keeps what it shall run. All
// methods return once the wish is on disk and handed to the agent.
type Jobs interface {
	// Apply makes jobs the desired state: all of them or, on an error, none. It
	// returns what becomes of each of their allocs. Faults of the jobs are ErrInvalid.
	Apply(ctx context.Context, jobs []Job) ([]Applied, error)
	// Stop makes the alloc's desired status stop; nodekeep.ErrNoAlloc if it is not
	// one of a job's.
	Stop(ctx context.Context, allocID string) error
	// Forget drops the allocs that the agent has collected.
	Forget(ctx context.Context) error
	// Fault is why what is wanted is not all on disk, or not all with the agent,
	// although it was promised; nil while all is well. It does not block on work.
	Fault() error
}

// Config is what a Handler serves.
type Config struct {
	Agent   Agent
	Jobs    Jobs   // nil: allocs come from a control plane, and apply is refused
	Version string // of the program, told by /v1/agent
	Log     hclog.Logger
}

// server is the handler behind the API.
type server struct {
	Config
}

// Handler serves the API. Requests that need the agent's allocs wait until it
// has tried to restore them. It is safe for concurrent use.
func Handler(cfg Config) http.Handler {
	if cfg.Log == nil {
		cfg.Log = hclog.NewNullLogger()
	}
	s := &server{cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent", s.handle(s.agent))
	mux.HandleFunc("GET /v1/node", s.handle(s.node))
	mux.HandleFunc("GET /v1/plugins", s.handle(s.plugins))
	mux.HandleFunc("GET /v1/allocs", s.handle(s.allocs))
	mux.HandleFunc("GET /v1/allocs/{$}", s.handle(func(http.ResponseWriter, *http.Request) error {
		_, err := resolve(nil, "")
		return err
	}))
	mux.HandleFunc("GET /v1/allocs/{ref}", s.handle(s.inspect))
	mux.HandleFunc("GET /v1/allocs/{ref}/explain", s.handle(s.explain))
	mux.HandleFunc("GET /v1/allocs/{ref}/logs", s.handle(s.logs))
	mux.HandleFunc("POST /v1/allocs/{ref}/stop", s.handle(s.stop))
	mux.HandleFunc("POST /v1/allocs/{ref}/restart", s.handle(s.restart))
	mux.HandleFunc("POST /v1/allocs/{ref}/signal", s.handle(s.signal))
	mux.HandleFunc("POST /v1/allocs/{ref}/exec", s.handle(s.exec))
	mux.HandleFunc("GET /v1/allocs/{ref}/stats", s.handle(s.stats))
	mux.HandleFunc("GET /v1/events", s.handle(s.events))
	mux.HandleFunc("PUT /v1/jobs", s.handle(s.apply))
	mux.HandleFunc("POST /v1/gc", s.handle(s.gc))
	mux.HandleFunc("GET /v1/backup", s.handle(s.backup))
	mux.HandleFunc("GET /v1/upgrade", s.handle(s.upgrade))
	mux.HandleFunc("POST /v1/upgrade/commit", s.handle(s.commitUpgrade))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &Error{Code: CodeNotSupported, Message: fmt.Sprintf("this agent does not know %s %s", r.Method, r.URL.Path),
			Hint: "it may be older than this program: compare nodekeep version"})
	})
	return mux
}

// handle gives a function that may fail the shape of an HTTP handler.
func (s *server) handle(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.Agent.Ready():
		case <-r.Context().Done():
			writeError(w, r.Context().Err())
			return
		}
		if err := f(w, r); err != nil {
			writeError(w, err)
		}
	}
}

// Serve serves h on ln until ctx ends, then ends the streams that are open and
// returns nil. It closes ln.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, log hclog.Logger) error {
	if log == nil {
		log = hclog.NewNullLogger()
	}
	var open sync.WaitGroup // connections that were upgraded are the handler's, not the server's
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			open.Add(1)
			defer open.Done()
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peer(c))
		},
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("api: %w", err)
	case <-ctx.Done():
	}
	// The streams' contexts are ctx's children: they end by themselves.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := srv.Shutdown(grace)
	if err != nil {
		err = srv.Close()
	}
	waitFor(&open, shutdownGrace)
	<-failed //nolint:errcheck // http.ErrServerClosed
	return err
}

// shutdownGrace is how long requests may take to end once the server shall.
const shutdownGrace = 2 * time.Second

type peerKey struct{}

// who is the process that asks, for the log.
func who(r *http.Request) string {
	if p, ok := r.Context().Value(peerKey{}).(string); ok {
		return p
	}
	return "unknown"
}

// info says who serves.
type info struct {
	Version  string `json:"version"`
	PID      int    `json:"pid"`
	Degraded string `json:"degraded,omitempty"` // why what is wanted cannot be written; tried again

	Drivers []nodekeep.DriverStatus `json:"drivers"`
}

func (s *server) agent(w http.ResponseWriter, _ *http.Request) error {
	i := info{Version: s.Version, PID: os.Getpid(), Drivers: s.Agent.Drivers()}
	if s.Jobs != nil {
		if err := s.Jobs.Fault(); err != nil {
			i.Degraded = Plain(err)
		}
	}
	return writeJSON(w, i)
}

func (s *server) allocs(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "follow", "id")
	if err != nil {
		return err
	}
	if q.Get("follow") != "" {
		return s.followAllocs(w, r, q["id"])
	}
	return writeJSON(w, s.list())
}

func (s *server) list() []Alloc {
	all := s.Agent.Allocs()
	list := make([]Alloc, len(all))
	for i := range all {
		list[i] = shape(&all[i])
	}
	return list
}

func (s *server) inspect(w http.ResponseWriter, r *http.Request) error {
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	return writeJSON(w, s.inspection(al))
}

// resolve finds the alloc that the request's path names.
func (s *server) resolve(r *http.Request) (*nodekeep.AllocStatus, error) {
	return s.find(r.PathValue("ref"))
}

func (s *server) find(ref string) (*nodekeep.AllocStatus, error) {
	al, err := resolve(s.list(), ref)
	if err != nil {
		return nil, err
	}
	st, ok := s.Agent.Alloc(al.ID)
	if !ok {
		return nil, fmt.Errorf("%w: %s was removed just now", nodekeep.ErrNoAlloc, al.ID)
	}
	return &st, nil
}

func writeJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return ignoreGone(json.NewEncoder(w).Encode(v))
}

// ignoreGone drops the error of writing to a client that has left.
func ignoreGone(err error) error {
	var op *net.OpError
	if errors.As(err, &op) || errors.Is(err, http.ErrHandlerTimeout) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}
