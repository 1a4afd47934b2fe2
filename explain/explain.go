// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package explain is the answer to "why is it not running?": what an alloc and
// its tasks wait for, what failed last and what will happen next, as data and, at
// the edge, as text. The runners fill it from what they decide by, so it cannot
// say anything else than they do.
//
//	Alloc
//	├── Waiting   [Reason]      the alloc's own: hooks, shutdown delay, health
//	├── Failed    Reason
//	├── Next      [Reason]
//	└── Tasks
//	    └── web
//	        ├── Waiting   [Reason ─▶ Because [Reason ─▶ …]]
//	        ├── Failed    Reason
//	        └── Next      [Reason]
package explain

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Kind says what a Reason is about. Kinds are stable; texts are not.
type Kind string

// The kinds, and what Subject and Attrs of each hold.
const (
	Hook       Kind = "hook"        // a callback is at work: hook; callback
	Driver     Kind = "driver"      // a driver is at work: driver; step
	Disk       Kind = "disk"        // the state cannot be written; tried again at Until
	Busy       Kind = "busy"        // its runner does not answer
	Step       Kind = "step"        // the runner is between two things: its name
	Backoff    Kind = "backoff"     // the restart policy's pause, until Until
	Retry      Kind = "retry"       // what failed is tried again at Until: its name; error
	Contact    Kind = "contact"     // the control plane has not spoken yet
	Gate       Kind = "gate"        // its alloc does not let it start yet
	Prerun     Kind = "prerun"      // the alloc's prerun hooks are not done
	Prekill    Kind = "prekill"     // the alloc's prekill hooks are not done
	Task       Kind = "task"        // another task must first be so: task; condition
	Check      Kind = "check"       // a check must pass: check; task, state, output
	Healthy    Kind = "min_healthy" // it must run on like this until Until
	Deadline   Kind = "deadline"    // it is unhealthy if it is not healthy by Until
	Delay      Kind = "delay"       // the shutdown delay, until Until
	Grace      Kind = "grace"       // the stop signal was sent; SIGKILL at Until
	Exit       Kind = "exit"        // it runs, since Since, until it exits
	Alloc      Kind = "alloc"       // it is kept until its alloc is over
	Ending     Kind = "ending"      // the alloc is being ended: cause; reason
	Restarting Kind = "restart"     // a restart that was asked for; reason
	MaxRun     Kind = "max_run"     // it is ended at Until
	Failure    Kind = "failure"     // something went wrong, at Since: what; error
	Start      Kind = "start"       // it is started, at Until if that is known; attempt
	Stop       Kind = "stop"        // it is stopped; reason
	Cleanup    Kind = "cleanup"     // what is left of it is given back
	IfExited   Kind = "if_exited"   // what would follow an exit; exit_code, oom_killed, action, delay, reason
	Nothing    Kind = "nothing"     // nothing will happen any more; reason
)

// Reason is one thing to know.
type Reason struct {
	Kind    Kind              `json:"kind"`
	Subject string            `json:"subject,omitempty"`
	Since   time.Time         `json:"since,omitzero"`
	Until   time.Time         `json:"until,omitzero"`
	Attrs   map[string]string `json:"attrs,omitempty"`
	Message string            `json:"message,omitempty"` // made by Render
	Because []Reason          `json:"because,omitempty"` // why that is so
}

// Of makes a Reason with attributes, given as pairs; those that are "" are left out.
func Of(k Kind, subject string, attrs ...string) Reason {
	r := Reason{Kind: k, Subject: subject}
	for i := 0; i+1 < len(attrs); i += 2 {
		if attrs[i+1] == "" {
			continue
		}
		if r.Attrs == nil {
			r.Attrs = map[string]string{}
		}
		r.Attrs[attrs[i]] = attrs[i+1]
	}
	return r
}

// From is r with its beginning.
func (r Reason) From(t time.Time) Reason { r.Since = t; return r }

// To is r with its end.
func (r Reason) To(t time.Time) Reason { r.Until = t; return r }

// TaskReasons is what there is to know of one task.
type TaskReasons struct {
	Name    string   `json:"name"`
	State   string   `json:"state"` // pending, running or dead
	Phase   string   `json:"phase"`
	Waiting []Reason `json:"waiting"`
	Failed  *Reason  `json:"failed"` // what went wrong last, as far as it is remembered
	Next    []Reason `json:"next"`
}

// AllocReasons is what there is to know of one alloc.
type AllocReasons struct {
	ID          string        `json:"id"`
	Job         string        `json:"job"`
	Group       string        `json:"group"`
	Index       int           `json:"index"`
	Status      string        `json:"status"`
	Desired     string        `json:"desired"`
	Description string        `json:"description"`
	Waiting     []Reason      `json:"waiting"`
	Failed      *Reason       `json:"failed"`
	Next        []Reason      `json:"next"`
	Tasks       []TaskReasons `json:"tasks"`
}

// Link puts below each reason that names a task what that one waits for.
func (a *AllocReasons) Link() {
	for i := range a.Tasks {
		a.link(a.Tasks[i].Waiting, []string{a.Tasks[i].Name})
	}
	a.link(a.Waiting, nil)
}

func (a *AllocReasons) link(list []Reason, above []string) {
	for i, r := range list {
		if r.Kind != Task || len(r.Because) > 0 || slices.Contains(above, r.Subject) {
			continue
		}
		j := slices.IndexFunc(a.Tasks, func(t TaskReasons) bool { return t.Name == r.Subject })
		if j < 0 {
			continue
		}
		list[i].Because = slices.Clone(a.Tasks[j].Waiting)
		for k := range list[i].Because {
			list[i].Because[k].Because = nil
		}
		a.link(list[i].Because, append(slices.Clone(above), r.Subject))
	}
}

// Only keeps one task; false if there is none of that name.
func (a *AllocReasons) Only(task string) bool {
	a.Tasks = slices.DeleteFunc(a.Tasks, func(t TaskReasons) bool { return t.Name != task })
	return len(a.Tasks) > 0
}

// Render fills in the messages and makes absent lists empty ones.
func (a *AllocReasons) Render(now time.Time) {
	render(&a.Waiting, now)
	render(&a.Next, now)
	renderOne(a.Failed, now)
	if a.Tasks == nil {
		a.Tasks = []TaskReasons{}
	}
	for i := range a.Tasks {
		t := &a.Tasks[i]
		render(&t.Waiting, now)
		render(&t.Next, now)
		renderOne(t.Failed, now)
	}
}

func render(list *[]Reason, now time.Time) {
	if *list == nil {
		*list = []Reason{}
	}
	for i := range *list {
		renderOne(&(*list)[i], now)
	}
}

func renderOne(r *Reason, now time.Time) {
	if r == nil {
		return
	}
	r.Message = r.Text(now)
	for i := range r.Because {
		renderOne(&r.Because[i], now)
	}
}

// Write writes a as text: a tree. clean makes what comes from jobs and programs
// fit for a terminal; nil leaves it.
func (a *AllocReasons) Write(w io.Writer, now time.Time, clean func(string) string) error {
	if clean == nil {
		clean = func(s string) string { return s }
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s.%s[%d]: %s", clean(a.ID), clean(a.Job), clean(a.Group), a.Index, a.Status)
	if a.Desired != "" && a.Desired != "run" && a.Status != "complete" && a.Status != "failed" {
		fmt.Fprintf(&b, " (%s wanted)", clean(a.Desired))
	}
	if a.Description != "" {
		fmt.Fprintf(&b, ": %s", clean(a.Description))
	}
	b.WriteByte('\n')
	section(&b, "  ", a.Waiting, a.Failed, a.Next, now, clean)
	for _, t := range a.Tasks {
		fmt.Fprintf(&b, "  task %s: %s", clean(t.Name), t.State)
		if t.Phase != t.State {
			fmt.Fprintf(&b, " (%s)", t.Phase)
		}
		b.WriteByte('\n')
		section(&b, "    ", t.Waiting, t.Failed, t.Next, now, clean)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func section(b *strings.Builder, indent string, waiting []Reason, failed *Reason, next []Reason, now time.Time, clean func(string) string) {
	head := func(name string, list []Reason) {
		for _, r := range list {
			fmt.Fprintf(b, "%s%-8s %s\n", indent, name, clean(r.Text(now)))
			because(b, indent+strings.Repeat(" ", 9), r.Because, now, clean)
			name = ""
		}
	}
	head("waits", waiting)
	if failed != nil {
		head("failed", []Reason{*failed})
	}
	head("next", next)
}

func because(b *strings.Builder, indent string, list []Reason, now time.Time, clean func(string) string) {
	for _, r := range list {
		fmt.Fprintf(b, "%s└ %s\n", indent, clean(r.Text(now)))
		because(b, indent+"  ", r.Because, now, clean)
	}
}

// attrs in the order of their names, for kinds that nobody has words for.
func (r Reason) attrs() string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(r.Attrs)) {
		out = append(out, k+" "+r.Attrs[k])
	}
	return strings.Join(out, ", ")
}
