// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

// plan merges what is wanted into what is there, by place (group and index):
//
//   - the same alloc as before, running or completed: it stays as it is;
//   - one that differs only in what can change while it runs: it is updated;
//   - another one, or the old one was stopped, has failed or is over without
//     being a batch: the old one is stopped and a new one takes its place;
//   - no longer wanted: stopped.
//
// Of each place the latest stopped alloc is kept, to be looked at; older ones
// leave the list, and the agent collects them.
func (s *jobStore) plan(old *job, want api.Job, index uint64) (*job, []api.Applied) {
	j := &job{Format: jobFormat, Namespace: want.Namespace, ID: want.ID, Version: old.Version}
	var all []api.Applied
	fresh := map[string]bool{}
	for _, w := range want.Allocs {
		fresh[place(w)] = true
		cur, last := slot(old, place(w))
		if cur != nil && !s.spent(cur) {
			if kept, change := s.keep(cur, w, index); kept != nil {
				j.Allocs, all = append(j.Allocs, kept), append(all, applied(kept, change))
				if last != nil {
					j.Allocs = append(j.Allocs, last)
				}
				continue
			}
		}
		al := w.Clone()
		al.CreateIndex, al.ModifyIndex, al.CreateTime, al.DesiredStatus = index, index, time.Now().UTC(), spec.DesiredRun
		if old.Version != 0 || cur != nil || last != nil || s.spent(w) || s.gone(w.ID) {
			al.ID = nextID(w.ID, index) // an agent never runs an id twice, also not one that this store has lost
		}
		what := applied(al, api.ChangeNew)
		if cur != nil {
			last = stopped(cur, "replaced by a newer version of the job", index)
			what.Change, what.Replaces = api.ChangeReplaced, cur.ID
		}
		if last != nil {
			al.PreviousAlloc = last.ID
			j.Allocs = append(j.Allocs, last)
		}
		j.Allocs, all = append(j.Allocs, al), append(all, what)
		j.Version = index
	}
	for _, al := range old.Allocs {
		if fresh[place(al)] {
			continue
		}
		if cur, last := slot(old, place(al)); cur != nil {
			j.Allocs, all = append(j.Allocs, stopped(cur, "no longer part of the job", index)), append(all, applied(cur, api.ChangeStopped))
		} else if last != nil {
			j.Allocs = append(j.Allocs, last)
		}
		fresh[place(al)] = true
	}
	return j, all
}

// keep is cur as it shall be where w needs no new alloc: as it is, or with what
// can change while it runs. One that is over is not changed any more.
func (s *jobStore) keep(cur, w *spec.Alloc, index uint64) (*spec.Alloc, api.Change) {
	same := func(al *spec.Alloc) *spec.Alloc { // but for what this store itself decides
		c := al.Clone()
		c.ID, c.PreviousAlloc, c.DesiredStatus, c.DesiredReason = cur.ID, cur.PreviousAlloc, cur.DesiredStatus, cur.DesiredReason
		c.CreateIndex, c.ModifyIndex, c.CreateTime = cur.CreateIndex, cur.ModifyIndex, cur.CreateTime
		return c
	}
	place := func(al *spec.Alloc) *spec.Alloc { // where it is written is not what is written
		c := al.Clone()
		for i := range c.Tasks {
			c.Tasks[i].Origin = nil
		}
		return c
	}
	next := same(w)
	changes := spec.Diff(place(cur), place(next))
	switch {
	case len(changes) == 0:
		return cur, api.ChangeUnchanged
	case len(spec.Replaced(changes)) > 0 || !s.lives(cur):
		return nil, ""
	}
	next.ModifyIndex = index
	return next, api.ChangeUpdated
}

// lives says whether the agent has an alloc that is not over.
func (s *jobStore) lives(al *spec.Alloc) bool {
	st, ok := s.agent.Alloc(al.ID)
	return ok && !st.Gone && !st.Done && !st.Status.Terminal()
}

func applied(al *spec.Alloc, change api.Change) api.Applied {
	return api.Applied{ID: al.ID, Namespace: al.Namespace, Job: al.JobID, Group: al.Group, Index: al.Index, Change: change}
}

// slot returns what j has at a place: the alloc that shall run, and the latest
// that shall not.
func slot(j *job, at string) (cur, last *spec.Alloc) {
	for _, al := range j.Allocs {
		switch {
		case place(al) != at:
		case !al.Stopped():
			cur = al
		case last == nil || al.CreateIndex > last.CreateIndex:
			last = al
		}
	}
	return cur, last
}

// place is where an alloc stands in its job.
func place(al *spec.Alloc) string { return fmt.Sprintf("%s[%d]", al.Group, al.Index) }

// nextID is the id of a place's alloc that was made at index: a new one each
// time, and the same when the step is repeated.
func nextID(proposal string, index uint64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", proposal, index))
	h := hex.EncodeToString(sum[:16])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:32]}, "-")
}
