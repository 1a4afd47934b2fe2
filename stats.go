// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package nodekeep

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/nodekeep/nodekeep/allocrunner"
	"github.com/nodekeep/nodekeep/driver"
)

// TaskUsage is what a task of an alloc used at one time.
type TaskUsage struct {
	AllocID string `json:"alloc"`
	Task    string `json:"task"`
	driver.Usage
}

// Stats yields what a task of an alloc uses, or each of its tasks if task is "",
// at the interval (0 is a second), until ctx ends or the tasks are dead. An error
// is the last that is yielded. Nothing is measured while nobody reads; see
// taskrunner.TaskRunner.Stats for what interrupts it. Of several tasks one whose
// driver cannot tell is left out.
func (a *Agent) Stats(ctx context.Context, id, task string, interval time.Duration) iter.Seq2[TaskUsage, error] {
	return func(yield func(TaskUsage, error) bool) {
		e, err := a.entry(id)
		if err == nil && e.runner == nil {
			err = fmt.Errorf("%w: %s", allocrunner.ErrTerminal, e.fixed.Description)
		}
		if err != nil {
			yield(TaskUsage{}, err)
			return
		}
		tasks := []string{task}
		if task == "" {
			tasks = nil
			for _, t := range e.status().Alloc.Tasks {
				tasks = append(tasks, t.Name)
			}
		}
		if len(tasks) == 1 {
			e.stats(ctx, tasks[0], interval, yield)
			return
		}
		e.statsOf(ctx, tasks, interval, yield)
	}
}

// stats yields the samples of one task and keeps the latest.
func (e *entry) stats(ctx context.Context, task string, interval time.Duration, yield func(TaskUsage, error) bool) {
	samples, err := e.runner.Stats(ctx, task, interval)
	if err != nil {
		yield(TaskUsage{}, err)
		return
	}
	for u, err := range samples {
		s := TaskUsage{AllocID: e.id, Task: task, Usage: u}
		if err == nil {
			e.usage.Store(task, s)
		}
		if !yield(s, err) {
			return
		}
	}
}

// statsOf yields the samples of several tasks as they come.
func (e *entry) statsOf(ctx context.Context, tasks []string, interval time.Duration, yield func(TaskUsage, error) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	type item struct {
		s   TaskUsage
		err error
	}
	ch, done := make(chan item), make(chan error, len(tasks))
	for _, t := range tasks {
		readers.Go(func() {
			var last error
			e.stats(ctx, t, interval, func(s TaskUsage, err error) bool {
				if last = err; err != nil {
					return false
				}
				select {
				case ch <- item{s, nil}:
					return true
				case <-ctx.Done():
					return false
				}
			})
			done <- last
		})
	}
	failed := 0
	var err error
	for range tasks {
	samples:
		for {
			select {
			case i := <-ch:
				if !yield(i.s, i.err) {
					return
				}
			case last := <-done:
				if last != nil {
					failed++
					err = last
				}
				break samples
			}
		}
	}
	if failed == len(tasks) {
		yield(TaskUsage{}, err)
	}
}

// LastStats returns the latest sample that somebody read of a task; false if
// nobody has. It may be old: see its Time.
func (a *Agent) LastStats(id, task string) (TaskUsage, bool) {
	e, err := a.entry(id)
	if err != nil {
		return TaskUsage{}, false
	}
	s, ok := e.usage.Load(task)
	if !ok {
		return TaskUsage{}, false
	}
	return s.(TaskUsage), true
}
