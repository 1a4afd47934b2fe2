// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/outbox"
	"github.com/nodekeep/nodekeep/state"
)

// lines writes JSON values, one a line, each on its way at once.
type lines struct {
	enc   *json.Encoder
	rc    *http.ResponseController
	wrote bool
}

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &lines{enc: json.NewEncoder(w), rc: http.NewResponseController(w)}
}

func (l *lines) write(v any) error {
	l.wrote = true
	return l.enc.Encode(v)
}

// flush sends what was written; before the first line it sends the header, so
// that the client knows that it was heard.
func (l *lines) flush() error {
	l.wrote = true
	return l.rc.Flush()
}

// end tells an error: as the answer, or once a line was written, as the last line.
func (l *lines) end(err error) error {
	if err == nil || !l.wrote {
		return err
	}
	e, _ := toError(err)
	_ = l.enc.Encode(e)
	return nil
}

// followAllocs writes the allocs of ids, of all if there are none, and again
// each that changed, until the client leaves or all that were named are gone.
func (s *server) followAllocs(w http.ResponseWriter, r *http.Request, ids []string) error {
	out := newLines(w)
	seen := map[string]string{}
	for {
		changed := s.Agent.Changed() // before reading: no change is missed
		for _, st := range s.pick(ids) {
			line, err := json.Marshal(shape(&st))
			if err != nil {
				return out.end(err)
			}
			if seen[st.Alloc.ID] == string(line) {
				continue
			}
			seen[st.Alloc.ID] = string(line)
			if out.write(json.RawMessage(line)) != nil {
				return nil // the client has left
			}
		}
		for id := range seen {
			if _, ok := s.Agent.Alloc(id); !ok {
				delete(seen, id)
				if out.write(Alloc{ID: id, Gone: true, Tasks: []Task{}}) != nil {
					return nil
				}
			}
		}
		if out.flush() != nil {
			return nil
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}

func (s *server) pick(ids []string) []nodekeep.AllocStatus {
	if len(ids) == 0 {
		return s.Agent.Allocs()
	}
	var list []nodekeep.AllocStatus
	for _, id := range ids {
		if st, ok := s.Agent.Alloc(id); ok {
			list = append(list, st)
		}
	}
	return list
}

// page is how many events are read at a time.
const page = 256

func (s *server) events(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r, "after", "alloc", "follow")
	if err != nil {
		return err
	}
	var after uint64
	if v := q.Get("after"); v != "" {
		if after, err = s.Agent.ResolveEvent(v); err != nil {
			return s.noSuchCursor(v, after, err)
		}
	}
	var id string
	if ref := q.Get("alloc"); ref != "" {
		al, err := s.find(ref)
		if err != nil {
			return err
		}
		id = al.Alloc.ID
	}
	out := newLines(w)
	write := func(e *nodekeep.Event) error {
		if id != "" && e.AllocID != id {
			return nil
		}
		ev := shapeEvent(e.AllocID, e.Task, e.Token, e.Event)
		ev.Cursor = e.Cursor
		return out.write(ev)
	}
	if q.Get("follow") == "" {
		return out.end(s.noSuchToken(after, s.pastEvents(after, write)))
	}
	return out.end(s.noSuchToken(after, s.followEvents(r, after, out, write)))
}

// noSuchCursor says why there is nothing after a cursor.
func (s *server) noSuchCursor(cursor string, after uint64, err error) error {
	switch {
	case errors.Is(err, outbox.ErrCursor):
		return &Error{Code: CodeInvalid, Message: "after " + strconv.Quote(cursor) + " is no token", Hint: "take one from the field token, or cursor, of an event"}
	case errors.Is(err, outbox.ErrPutBack):
		return &Error{Code: CodeCompacted, Message: fmt.Sprintf("the event %s is not in this node's history: its state was put back from a copy of before", cursor),
			Hint: "start without --since, and see nodekeep ps for what is now"}
	}
	return s.noSuchToken(after, err)
}

// noSuchToken says of an error why there is nothing after a token: it is too old,
// or none that this agent gave.
func (s *server) noSuchToken(after uint64, err error) error {
	if !errors.Is(err, state.ErrCompacted) {
		return err
	}
	oldest, newest, berr := s.Agent.EventBounds()
	switch {
	case berr != nil:
		return errors.Join(err, berr)
	case after > newest:
		return &Error{Code: CodeCompacted, Message: fmt.Sprintf("no event has the token %d yet: the newest is %d", after, newest),
			Hint: "take one from the field token of events --json, of this node and since its state was last lost or put back"}
	}
	return &Error{Code: CodeCompacted, Message: fmt.Sprintf("events after %d are no longer kept: the oldest is %d", after, oldest),
		Hint: "start without --since, and see nodekeep ps for what is now"}
}

// followEvents writes what is there, then what comes, until the client leaves.
func (s *server) followEvents(r *http.Request, after uint64, out *lines, write func(*nodekeep.Event) error) error {
	if out.flush() != nil {
		return nil
	}
	for e, err := range s.Agent.Events(r.Context(), after) {
		if r.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if write(&e) != nil || out.flush() != nil {
			return nil
		}
	}
	return nil
}

// pastEvents writes every event after the token.
func (s *server) pastEvents(after uint64, write func(*nodekeep.Event) error) error {
	for {
		list, err := s.Agent.EventsSince(after, page)
		if err != nil {
			return err
		}
		for i := range list {
			if err := write(&list[i]); err != nil {
				return err
			}
			after = list[i].Token
		}
		if len(list) < page {
			return nil
		}
	}
}

// query parses the query and refuses names it does not know: a misspelt filter
// must not show everything.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &Error{Code: CodeInvalid, Message: err.Error()}
	}
	for name := range q {
		if !slices.Contains(known, name) {
			return nil, &Error{Code: CodeInvalid, Message: "unknown parameter " + strconv.Quote(name), Hint: "known are " + strings.Join(known, ", ")}
		}
	}
	return q, nil
}
