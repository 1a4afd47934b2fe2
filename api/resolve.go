// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"fmt"
	"strings"

	"github.com/nodekeep/nodekeep"
)

// resolve finds the one alloc that ref names, in this order: its id; JOB or
// JOB.GROUP[index]; the unique beginning of an id. Allocs that are not finished
// go before finished ones, and of the finished ones of one place (job, group,
// index) the latest counts. Else it is nodekeep.ErrNoAlloc, or ErrAmbiguous with
// a list.
func resolve(list []Alloc, ref string) (Alloc, error) {
	if ref == "" {
		return Alloc{}, &Error{Code: CodeInvalid, Message: "no alloc named", Hint: "name an id, a job or JOB.GROUP[index]"}
	}
	for _, match := range []func(a *Alloc) bool{
		func(a *Alloc) bool { return a.ID == ref },
		func(a *Alloc) bool { return a.Job == ref || place(a) == ref },
		func(a *Alloc) bool { return strings.HasPrefix(a.ID, ref) },
	} {
		var found []*Alloc
		for i := range list {
			if match(&list[i]) {
				found = append(found, &list[i])
			}
		}
		if found = latest(found); len(found) == 1 {
			return *found[0], nil
		}
		if len(found) > 1 {
			return Alloc{}, ambiguous(ref, found)
		}
	}
	return Alloc{}, &Error{Code: CodeNoAlloc, Message: fmt.Sprintf("no alloc, job or JOB.GROUP[index] %q on this node", ref),
		Hint: "nodekeep ps lists them"}
}

// latest drops finished allocs when there are others, and else all but the
// latest of each place.
func latest(found []*Alloc) []*Alloc {
	var living []*Alloc
	newest := map[string]*Alloc{}
	var places []string
	for _, a := range found {
		if !a.Finished() {
			living = append(living, a)
		}
		key := a.Namespace + "\x00" + place(a)
		old, ok := newest[key]
		if !ok {
			places = append(places, key)
		}
		if !ok || a.CreatedAt.After(old.CreatedAt) {
			newest[key] = a
		}
	}
	if len(living) > 0 {
		return living
	}
	var rest []*Alloc
	for _, key := range places {
		rest = append(rest, newest[key])
	}
	return rest
}

// place is JOB.GROUP[index].
func place(a *Alloc) string { return fmt.Sprintf("%s.%s[%d]", a.Job, a.Group, a.Index) }

func ambiguous(ref string, found []*Alloc) error {
	const shown = 5
	var names []string
	for i, a := range found {
		if i == shown {
			names = append(names, fmt.Sprintf("and %d more", len(found)-shown))
			break
		}
		names = append(names, fmt.Sprintf("%s (%s, %s)", a.ID, place(a), a.Status))
	}
	return &Error{Code: CodeAmbiguous, Message: fmt.Sprintf("%q fits %d allocs", ref, len(found)),
		Hint: "name one of " + strings.Join(names, ", ")}
}

// errNoTask says that a task of that name is not there, and which are.
func errNoTask(al *nodekeep.AllocStatus, task string) error {
	var names []string
	for i := range al.Alloc.Tasks {
		names = append(names, al.Alloc.Tasks[i].Name)
	}
	e := &Error{Code: CodeNoTask, Message: fmt.Sprintf("alloc %s has no task %q", al.Alloc.ID, task), Hint: "it has " + strings.Join(names, ", ")}
	switch {
	case al.Gone:
		return &Error{Code: CodeEnded, Message: fmt.Sprintf("alloc %s was collected: nothing of it is left, its logs neither", al.Alloc.ID)}
	case len(names) == 0:
		return &Error{Code: CodeNoTask, Message: fmt.Sprintf("alloc %s has no task that this node knows", al.Alloc.ID), Hint: "see nodekeep inspect"}
	case task == "":
		e.Message = fmt.Sprintf("alloc %s has several tasks", al.Alloc.ID)
		e.Hint = "name one of " + strings.Join(names, ", ")
	}
	return e
}
