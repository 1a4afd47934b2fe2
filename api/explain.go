// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/explain"
)

// explainer is an agent that says why things are as they are. *nodekeep.Agent is
// one.
type explainer interface {
	Explain(ctx context.Context, id string) (explain.AllocReasons, error)
}

// explain answers GET /v1/allocs/REF/explain[?task=T]: explain.AllocReasons with
// its messages.
func (s *server) explain(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "task")
	if err != nil {
		return err
	}
	al, err := s.resolve(r)
	if err != nil {
		return err
	}
	e, ok := s.Agent.(explainer)
	if !ok {
		return driver.ErrNotImplemented
	}
	why, err := e.Explain(r.Context(), al.Alloc.ID)
	if err != nil {
		return err
	}
	if task := q.Get("task"); task != "" && !why.Only(task) {
		return errNoTask(al, task)
	}
	why.Render(time.Now())
	return writeJSON(w, why)
}

// Explain says what the alloc that ref names waits for, what failed last and what
// will happen next; with a task, of that one only.
func (c *Client) Explain(ctx context.Context, ref, task string) (why explain.AllocReasons, err error) {
	path := allocPath(ref, "explain")
	if task != "" {
		path += "?task=" + url.QueryEscape(task)
	}
	return why, c.call(ctx, http.MethodGet, path, nil, &why)
}
