// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// maxBody bounds a request's body: a thousand large jobs fit, an endless one not.
const maxBody = 64 << 20

// The bodies of the operations.

type stopRequest struct {
	NoShutdownDelay bool `json:"no_shutdown_delay,omitempty"`
	Kill            bool `json:"kill,omitempty"` // no grace at all, and no task has a turn after the others
}

type restartRequest struct {
	Task string `json:"task,omitempty"`
	All  bool   `json:"all,omitempty"` // tasks that have ended too
}

type signalRequest struct {
	Task   string `json:"task,omitempty"`
	Signal string `json:"signal"`
}

func (s *server) stop(w http.ResponseWriter, r *http.Request) error {
	var req stopRequest
	return s.operate(w, r, &req, "stop", func(al *nodekeep.AllocStatus) error {
		// The desired state is what stops it. The agent is told too where that is
		// not all, and where it could not be written: a full disk stops no stop.
		var unwritten error
		if s.Jobs != nil {
			err := s.Jobs.Stop(r.Context(), al.Alloc.ID)
			if err == nil && req == (stopRequest{}) {
				return nil
			}
			if !errors.Is(err, nodekeep.ErrNoAlloc) {
				unwritten = err
			}
		}
		if al.Done {
			return unwritten
		}
		kill := allocrunner.KillRequest{Reason: "stopped by " + who(r), NoShutdownDelay: req.NoShutdownDelay || req.Kill}
		if req.Kill {
			kill.Grace, kill.Poststop = -1, true
		}
		err := s.Agent.Stop(r.Context(), al.Alloc.ID, kill)
		switch {
		case errors.Is(err, allocrunner.ErrTerminal): // it has ended by now
			return unwritten
		case errors.Is(err, taskrunner.ErrNotDurable) && unwritten == nil:
			unwritten = err
		case err != nil && !errors.Is(err, taskrunner.ErrNotDurable):
			return errors.Join(unwritten, err)
		}
		if unwritten != nil {
			return &Error{Code: CodeNotDurable, Message: fmt.Sprintf("alloc %s is being stopped, but that could not be written: %s", al.Alloc.ID, Plain(unwritten)),
				Hint: "make room on the disk and stop it again, or it starts again with the agent"}
		}
		return nil
	})
}

func (s *server) restart(w http.ResponseWriter, r *http.Request) error {
	var req restartRequest
	return s.operate(w, r, &req, "restart", func(al *nodekeep.AllocStatus) error {
		if req.Task != "" && al.Alloc.Task(req.Task) == nil {
			return errNoTask(al, req.Task)
		}
		return s.Agent.Restart(r.Context(), al.Alloc.ID, allocrunner.RestartRequest{Task: req.Task, All: req.All, Reason: "asked for by " + who(r)})
	})
}

func (s *server) signal(w http.ResponseWriter, r *http.Request) error {
	var req signalRequest
	return s.operate(w, r, &req, "signal", func(al *nodekeep.AllocStatus) error {
		if req.Signal == "" {
			return &Error{Code: CodeInvalid, Message: "no signal named", Hint: "name one such as SIGHUP"}
		}
		if req.Task != "" && al.Alloc.Task(req.Task) == nil {
			return errNoTask(al, req.Task)
		}
		return s.Agent.Signal(r.Context(), al.Alloc.ID, req.Task, req.Signal, "asked for by "+who(r))
	})
}

// operate reads the body into req, finds the alloc, runs f and answers with the
// alloc as it was before. Who asked, for what and how it ended is logged.
func (s *server) operate(w http.ResponseWriter, r *http.Request, req any, what string, f func(*nodekeep.AllocStatus) error) error {
	if err := readBody(w, r, req); err != nil {
		return err
	}
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	before := shape(al)
	err = f(al)
	result := "accepted"
	if err != nil {
		result = err.Error()
	}
	asked, _ := json.Marshal(req) // it was decoded just now
	s.Log.Info(what+" asked for", "alloc_id", al.Alloc.ID, "by", who(r), "request", string(asked), "result", result)
	if err != nil {
		return err
	}
	return writeJSON(w, before)
}

func (s *server) apply(w http.ResponseWriter, r *http.Request) error {
	if s.Jobs == nil {
		return &Error{Code: CodeNotSupported, Message: "this node takes its jobs from elsewhere", Hint: "submit them there"}
	}
	var jobs []Job
	if err := readBody(w, r, &jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		for _, al := range j.Allocs {
			if al == nil {
				return &Error{Code: CodeInvalid, Message: fmt.Sprintf("job %q has an alloc that is null", j.ID)}
			}
		}
	}
	all, err := s.Jobs.Apply(r.Context(), jobs)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		s.Log.Info("job applied", "job", j.ID, "namespace", j.Namespace, "allocs", len(j.Allocs), "by", who(r))
	}
	return writeJSON(w, all)
}

// gc collects every finished alloc and answers with their ids.
func (s *server) gc(w http.ResponseWriter, r *http.Request) error {
	before := s.list()
	err := s.Agent.GC(r.Context())
	if err == nil && s.Jobs != nil {
		err = s.Jobs.Forget(r.Context())
	}
	ids := []string{}
	for i := range before {
		if st, ok := s.Agent.Alloc(before[i].ID); !before[i].Gone && (!ok || st.Gone) {
			ids = append(ids, before[i].ID)
		}
	}
	s.Log.Info("collection asked for", "by", who(r), "collected", len(ids))
	if err != nil {
		return err
	}
	return writeJSON(w, ids)
}

// readBody decodes the body; an empty one is an empty object.
func readBody(w http.ResponseWriter, r *http.Request, into any) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && len(data) > 0 {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return &Error{Code: CodeInvalid, Message: "the request's body is not right: " + err.Error()}
	}
	return nil
}
