// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/supervisor"
)

// Tasks are those of one driver that this agent has started or recovered, until
// Destroy. Its methods may be called from any goroutine.
type Tasks struct {
	driver   string // in handles
	prefix   string // of errors
	isolated bool   // creators make them
	pool     *supervisor.Pool

	mu    sync.Mutex
	tasks map[string]Record
}

// New makes the tasks of a driver, which are plain processes or, isolated, made by
// creators. prefix begins its errors; pool is nil where there are no supervisors.
func New(driver, prefix string, isolated bool, pool *supervisor.Pool) *Tasks {
	return &Tasks{driver: driver, prefix: prefix, isolated: isolated, pool: pool, tasks: map[string]Record{}}
}

// Record is the state of a handle: enough to find the process again, or to end it.
type Record struct {
	PID      int    `json:"pid"`
	Start    uint64 `json:"start"` // clock ticks since boot
	BootID   string `json:"boot_id"`
	Scope    string `json:"scope"`
	Cgroup   string `json:"cgroup,omitempty"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	ExitDir  string `json:"exit_dir,omitempty"`
	Isolated bool   `json:"isolated,omitempty"` // a creator made it: it has a cgroup in every hierarchy

	Attrs map[string]string `json:"attrs,omitempty"` // the driver's own
}

const recordVersion = 1

// Of returns the record of what was started.
func Of(scope string, sp supervisor.Spec, st supervisor.Status) Record {
	return Record{PID: st.PID, Start: st.Start, BootID: st.BootID, Scope: scope, Cgroup: sp.Cgroup,
		Stdout: sp.Stdout, Stderr: sp.Stderr, ExitDir: sp.ExitDir, Isolated: sp.Container != nil}
}

func (r Record) identity(id string) supervisor.Identity {
	return supervisor.Identity{ID: id, PID: r.PID, Start: r.Start, BootID: r.BootID,
		Cgroup: r.Cgroup, Stdout: r.Stdout, Stderr: r.Stderr, ExitDir: r.ExitDir, Isolated: r.Isolated}
}

// groups are the directories of the task's cgroup.
func (r Record) groups() []string {
	if r.Isolated {
		return cgroup.Everywhere(r.Cgroup)
	}
	return []string{r.Cgroup}
}

// Supported says why there is nothing to do here without supervisors.
func (t *Tasks) Supported() error {
	if t.pool == nil {
		return fmt.Errorf("%s: needs a supervisor pool, which only Linux has", t.prefix)
	}
	return nil
}

// Scope is the supervisor of a scope.
func (t *Tasks) Scope(name string) *supervisor.Scope { return t.pool.Scope(name) }

// Keep makes a task known.
func (t *Tasks) Keep(id string, r Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tasks[id] = r
}

func (t *Tasks) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.tasks, id)
}

// Task returns a task that is known, or driver.ErrTaskNotFound.
func (t *Tasks) Task(id string) (Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.tasks[id]
	if !ok {
		return r, fmt.Errorf("%w: %q", driver.ErrTaskNotFound, id)
	}
	return r, nil
}

// Handle is what to find a task again by.
func (t *Tasks) Handle(id string, r Record) (*driver.Handle, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("%s: handle: %w", t.prefix, err)
	}
	return &driver.Handle{Driver: t.driver, TaskID: id, Version: recordVersion, PID: r.PID, State: raw}, nil
}

// Parse reads a handle. What it returns names one process beyond doubt.
func (t *Tasks) Parse(h *driver.Handle) (Record, error) {
	var r Record
	if h == nil || h.Driver != t.driver || h.Version > recordVersion {
		return r, fmt.Errorf("%s: handle %+v is not ours (%s, version at most %d)", t.prefix, h, t.driver, recordVersion)
	}
	if err := json.Unmarshal(h.State, &r); err != nil {
		return r, fmt.Errorf("%s: handle of task %q: %w", t.prefix, h.TaskID, err)
	}
	if r.PID <= 0 || r.Start == 0 || r.BootID == "" || r.Scope == "" {
		return r, fmt.Errorf("%s: handle of task %q lacks pid, start, boot_id or scope: %s", t.prefix, h.TaskID, h.State)
	}
	return r, nil
}

// Translate makes the supervisor's errors the contract's.
func Translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, supervisor.ErrNotFound), errors.Is(err, supervisor.ErrNotProved):
		return fmt.Errorf("%w: %w", driver.ErrTaskNotFound, err)
	case errors.Is(err, supervisor.ErrForeignScope):
		return fmt.Errorf("%w: %w", driver.ErrForeignScope, err)
	case errors.Is(err, supervisor.ErrClosed), errors.Is(err, supervisor.ErrNotAnswering):
		return driver.Recoverable(fmt.Errorf("%w: %w", driver.ErrUnavailable, err))
	}
	return err
}

// passing are the errors that may go away by themselves.
var passing = []error{syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC,
	syscall.EBUSY, syscall.EIO, syscall.EINTR, syscall.ETXTBSY}

// StartError tells what the task's author did (final) from what passes by itself.
// what is what was started.
func (t *Tasks) StartError(what string, err error) error {
	if c := Translate(err); errors.Is(c, driver.ErrForeignScope) || driver.IsRecoverable(c) {
		return c
	}
	cause := err
	err = fmt.Errorf("%s: start %s: %w", t.prefix, what, err)
	if slices.ContainsFunc(passing, func(e error) bool { return errors.Is(cause, e) }) {
		return driver.Recoverable(err)
	}
	return err
}
