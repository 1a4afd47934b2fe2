// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"encoding/json"
	"time"
)

// UnmarshalJSON decodes an alloc as any version of this package wrote it, or a
// host by hand. Fields it does not know are passed over; fields that are missing
// stay zero, which is their default (WithDefaults). A restart policy is where
// zero would mean something else, so its missing fields are filled in here, by
// the alloc's job type: 0 attempts are none only if it says so.
func (a *Alloc) UnmarshalJSON(data []byte) error {
	var w allocWire
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*a = Alloc(w.plainAlloc)
	if w.Tasks == nil {
		return nil
	}
	a.Tasks = make([]Task, len(w.Tasks))
	for i := range w.Tasks {
		a.Tasks[i] = Task(w.Tasks[i].plainTask)
		if r := w.Tasks[i].Restart; r != nil {
			p := r.policy(DefaultRestart(a.JobType))
			a.Tasks[i].Restart = &p
		}
	}
	return nil
}

// A field of the wire types hides the one of the same JSON name they embed.
type (
	plainAlloc Alloc
	plainTask  Task

	allocWire struct {
		plainAlloc
		Tasks []taskWire `json:"tasks"`
	}
	taskWire struct {
		plainTask
		Restart *restartWire `json:"restart"`
	}
	restartWire struct {
		Attempts *int           `json:"attempts"`
		Interval *time.Duration `json:"interval"`
		Delay    *time.Duration `json:"delay"`
		Mode     *RestartMode   `json:"mode"`

		DelayFunction DelayFunction `json:"delay_function"`
		MaxDelay      time.Duration `json:"max_delay"`
		ResetAfter    time.Duration `json:"reset_after"`
		OnExit        []ExitRule    `json:"on_exit"`
	}
)

// policy is p with what w says in its place.
func (w *restartWire) policy(p RestartPolicy) RestartPolicy {
	over(&p.Attempts, w.Attempts)
	over(&p.Interval, w.Interval)
	over(&p.Delay, w.Delay)
	over(&p.Mode, w.Mode)
	p.DelayFunction, p.MaxDelay, p.ResetAfter, p.OnExit = w.DelayFunction, w.MaxDelay, w.ResetAfter, w.OnExit
	return p
}

func over[T any](v, w *T) {
	if w != nil {
		*v = *w
	}
}
