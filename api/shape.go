// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package api

import (
	"time"

	"github.com/nodekeep/nodekeep"
	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/nodekeep/nodekeep/taskrunner"
)

// Alloc is an alloc as "ps" shows it. The names of the fields are a contract:
// some may be added, none is renamed or dropped.
type Alloc struct {
	ID          string             `json:"id"`
	Job         string             `json:"job"`
	Group       string             `json:"group"`
	Index       int                `json:"index"`
	Status      allocrunner.Status `json:"status"`
	Desired     spec.DesiredStatus `json:"desired"`
	Description string             `json:"description"`
	Healthy     *bool              `json:"healthy"`             // in its deployment; null: not known, or not watched
	Unhealthy   string             `json:"unhealthy,omitempty"` // why it is not healthy
	Tasks       []Task             `json:"tasks"`

	Name       string     `json:"name"`
	Namespace  string     `json:"namespace"`
	Type       string     `json:"type"`
	CreatedAt  time.Time  `json:"created_at"`
	FinishedAt *time.Time `json:"finished_at"`       // null until every task is dead
	Done       bool       `json:"done"`              // over and cleaned up: nothing of it runs, and nothing will
	Degraded   bool       `json:"degraded"`          // its state could not be written; being retried
	Gone       bool       `json:"gone,omitempty"`    // collected: only this is left
	Problem    string     `json:"problem,omitempty"` // why its record could not be read
}

// Finished says that nothing of the alloc runs and nothing will.
func (a *Alloc) Finished() bool { return a.Done || a.Gone }

// Task is one task of an Alloc.
type Task struct {
	Name       string     `json:"name"`
	State      string     `json:"state"` // pending, running or dead
	Phase      string     `json:"phase"`
	Failed     bool       `json:"failed"`
	PID        int        `json:"pid"` // of the main process as the host sees it; 0 when there is none
	Restarts   int        `json:"restarts"`
	StartedAt  *time.Time `json:"started_at"`  // of the latest attempt; null before the first
	FinishedAt *time.Time `json:"finished_at"` // null until it is dead
	ExitCode   *int       `json:"exit_code"`   // of the latest exit; null before the first
	Signal     int        `json:"signal"`      // that ended it; 0 for none
	OOMKilled  bool       `json:"oom_killed"`

	Attempt   int                `json:"attempt"`
	Reason    string             `json:"reason,omitempty"`    // why it is as it is, where there is something to say
	Lifecycle spec.LifecycleHook `json:"lifecycle,omitempty"` // prestart, poststart, poststop; a main task has none
	Sidecar   bool               `json:"sidecar,omitempty"`
}

// Event is one event, in the words of "events --json".
type Event struct {
	Token   uint64            `json:"token,omitzero"`   // none within an Inspection
	Cursor  string            `json:"cursor,omitempty"` // the token with the run of the agent that wrote it
	Time    time.Time         `json:"time"`
	Alloc   string            `json:"alloc"`
	Task    string            `json:"task"`
	Kind    string            `json:"kind"`
	Attrs   map[string]string `json:"attrs"`
	Message string            `json:"message"`
}

// Inspection is everything the node knows of one alloc.
type Inspection struct {
	Alloc
	Dir    string             `json:"dir"`    // on the host; empty once it is gone
	Events map[string][]Event `json:"events"` // the latest of each task, without tokens
	Spec   *spec.Alloc        `json:"spec"`   // with the tasks' environment, in clear
}

func shape(st *nodekeep.AllocStatus) Alloc {
	al := st.Alloc
	a := Alloc{
		ID: al.ID, Job: al.JobID, Group: al.Group, Index: al.Index,
		Status: st.Status, Desired: al.DesiredStatus, Description: plain(st.Description),
		Name: al.Name, Namespace: al.Namespace, Type: string(al.JobType),
		CreatedAt: al.CreateTime.UTC(), FinishedAt: instant(st.FinishedAt), Done: st.Done,
		Degraded: !st.Durable && !st.Gone && st.Quarantined == "", Gone: st.Gone, Problem: st.Quarantined,
		Tasks: make([]Task, 0, len(al.Tasks)),
	}
	if a.Desired == "" {
		a.Desired = spec.DesiredRun
	}
	if h := st.Health; h != nil && h.Deployment == al.DeploymentID {
		if a.Healthy = &h.Healthy; !h.Healthy {
			a.Unhealthy = plain(h.Reason)
		}
	}
	for i := range al.Tasks {
		t := &al.Tasks[i]
		a.Tasks = append(a.Tasks, shapeTask(t, st.Tasks[t.Name]))
	}
	return a
}

func shapeTask(task *spec.Task, s taskrunner.Snapshot) Task {
	t := Task{
		Name: task.Name, Lifecycle: task.Hook(), Sidecar: task.IsSidecar(), State: string(s.State()), Phase: string(s.Phase), Failed: s.Failed,
		Restarts: s.Restarts, StartedAt: instant(s.StartedAt), FinishedAt: instant(s.FinishedAt),
		Attempt: s.Attempt, Reason: plain(s.Reason),
	}
	if t.Phase == "" { // not looked at yet, or the record could not be read
		t.Phase = string(taskrunner.Pending)
	}
	if s.Handle != nil && (s.Phase == taskrunner.Running || s.Phase == taskrunner.Stopping) {
		t.PID = s.Handle.PID
	}
	if s.Exit != nil {
		code := s.Exit.Code
		t.ExitCode, t.Signal, t.OOMKilled = &code, s.Exit.Signal, s.Exit.OOMKilled
	}
	return t
}

// instant is t in UTC, nil for none.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func shapeEvent(alloc, task string, token uint64, e taskrunner.Event) Event {
	ev := Event{Token: token, Time: e.Time.UTC(), Alloc: alloc, Task: task, Kind: string(e.Kind), Attrs: e.Attrs, Message: plain(e.Text())}
	if ev.Attrs == nil {
		ev.Attrs = map[string]string{}
	}
	return ev
}

func (s *server) inspection(st *nodekeep.AllocStatus) Inspection {
	in := Inspection{Alloc: shape(st), Spec: st.Alloc, Events: map[string][]Event{}}
	if d, ok := s.Agent.Dir(st.Alloc.ID); ok {
		in.Dir = d.Path()
	}
	for name, snap := range st.Tasks {
		list := make([]Event, 0, len(snap.Events))
		for _, e := range snap.Events {
			list = append(list, shapeEvent(st.Alloc.ID, name, 0, e))
		}
		in.Events[name] = list
	}
	return in
}
