// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"errors"
	"strconv"

	"github.com/nodekeep/nodekeep/internal/creator"
)

// launchExecIn has a creator run a command in a task's container. It runs before it
// is known here; until it is its creator keeps its end, and it carries its mark.
func (s *server) launchExecIn(c *conn, r request, fds [3]int) (*session, error) {
	s.mu.Lock()
	t := s.tasks[r.spec.ID]
	s.mu.Unlock()
	if t == nil {
		return nil, ErrNotFound
	}
	if <-t.started; t.failed != nil {
		return nil, ErrNotFound
	}
	if t.spec.Container == nil {
		return nil, errors.New("supervisor: " + r.spec.ID + " is in no container")
	}
	x, err := s.admitExec(c, t)
	if err != nil {
		return nil, err
	}
	k, err := s.create(creator.Exec, r.spec.Container, fds, adjOf(t.st.PID), x.mark)
	var res creator.Result
	if err == nil {
		defer k.end()
		res, err = s.ask(k, r.spec.Container.Spec)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && startOf(res.PID) != res.Start {
		err = errors.New("supervisor: the creator died, and the command with it")
	}
	if err != nil {
		s.forgetSession(x)
		if !t.alive() || startTime(t.st.PID) != t.st.Start {
			err = errors.Join(ErrExited, err)
		}
		return nil, err
	}
	x.st.PID, x.st.Start = res.PID, res.Start
	s.watch(res.PID, x)
	if s.tasks[t.spec.ID] != t { // destroyed meanwhile, with all that was in its cgroups by then
		go s.hangUp(x)
		return nil, ErrExited
	}
	if err := s.note(x.line()); err != nil {
		println(err.Error())
	}
	return x, nil
}

// admitExec enters a command that is about to be forked.
func (s *server) admitExec(c *conn, t *task) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.alive() {
		return nil, ErrExited
	}
	x := &session{t: t, c: c, mark: t.nextMark(), st: Status{ID: t.spec.ID, BootID: s.boot}}
	if err := s.note(line("R", t.spec.ID, strconv.FormatUint(x.mark, 10))); err != nil {
		return nil, err
	}
	t.execs[x.mark] = x
	return x, nil
}
