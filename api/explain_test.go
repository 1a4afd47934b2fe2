// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/explain"
)

// explaining is a fake that says why.
type explaining struct{ *fake }

func (explaining) Explain(_ context.Context, id string) (explain.AllocReasons, error) {
	if id != "aaaa-1" {
		return explain.AllocReasons{}, fmt.Errorf("%w: %s", nodekeep.ErrNoAlloc, id)
	}
	return explain.AllocReasons{ID: id, Tasks: []explain.TaskReasons{
		{Name: "web", Waiting: []explain.Reason{explain.Of(explain.Gate, "")}}, {Name: "db"}}}, nil
}

func TestExplain(t *testing.T) {
	f := newFake()
	f.allocs = []nodekeep.AllocStatus{alloc("aaaa-1", "web", "api", 0), alloc("bbbb-2", "db", "api", 0)}
	ask := func(a Agent, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		Handler(Config{Agent: a}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w
	}
	w := ask(explaining{f}, "/v1/allocs/aaaa/explain")
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"id":"aaaa-1","job":"","group":"","index":0,"status":"","desired":"","description":"","waiting":[],"failed":null,"next":[],"tasks":[
		{"name":"web","state":"","phase":"","waiting":[{"kind":"gate","message":"its alloc does not let it start yet"}],"failed":null,"next":[]},
		{"name":"db","state":"","phase":"","waiting":[],"failed":null,"next":[]}]}`, w.Body.String())
	require.NotContains(t, ask(explaining{f}, "/v1/allocs/aaaa/explain?task=web").Body.String(), `"db"`)
	require.Equal(t, http.StatusNotFound, ask(explaining{f}, "/v1/allocs/aaaa/explain?task=nix").Code)
	require.Equal(t, http.StatusNotFound, ask(explaining{f}, "/v1/allocs/bbbb/explain").Code)
	require.Equal(t, http.StatusBadRequest, ask(explaining{f}, "/v1/allocs/aaaa/explain?taks=web").Code)
	require.Equal(t, http.StatusNotImplemented, ask(f, "/v1/allocs/aaaa/explain").Code)

	c := dialFake(t, f, true)
	_, err := c.Explain(within(t), "web", "t")
	require.ErrorIs(t, err, driver.ErrNotImplemented)
}
