// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package taskrunner

import (
	"context"
	"time"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
)

// Hook extends one task's life. S is its persisted state, stored as JSON; nil
// callbacks are skipped.
//
//	              when                                        ctx ends with
//	Prestart      before every start, in order                kill, detach
//	Poststart     after a start or a successful reattach      kill, detach, the task's exit
//	Update        the alloc changed while the task runs       kill, detach, 30 s
//	Prekill       before the stop signal of a kill, restart   10 s, for all hooks together
//	Exited        after every exit                            10 s
//	Stop          when the task will not run again, reversed  30 s
//
// Rules:
//
//   - At least once: an agent that dies repeats the callback. What a hook acquires
//     it acquires by a key that survives (alloc and task), so that doing it again
//     is the same as doing it once.
//   - S is a copy, loaded before the callback and saved after it, failed or not,
//     if it changed. Request.Checkpoint saves in the middle.
//   - Prestart returns all outputs each time, also when the work is done already.
//     An error marked driver.Recoverable follows the restart policy, any other
//     fails the task. Errors of other callbacks are told as events only.
//   - After a restart of the agent Prestart runs with Request.Restored for a task
//     that still runs: it must not disturb it, and its errors do not harm it.
//   - Stop runs at least once, last, also if Prestart never ran. It works from S.
//   - Callbacks of one task never run at the same time. One that panics has
//     failed. One that is not back 1 s after its ctx ended is abandoned: what it
//     did to S is dropped, and no other callback but Stop is called until it has
//     returned and a new attempt begins.
type Hook[S any] struct {
	Name  string // unique within a task
	Stage Stage  // where in the order
	// Timeout replaces the bounds above; it does not bound Prestart and Poststart.
	Timeout time.Duration
	// Version and Migrate are those of state.Slot; 0 is 1.
	Version int
	Migrate func(from int, data []byte) (S, error)
	// Needs names the keys of alloc hooks that it reads (allocrunner.Key): New
	// fails where nobody publishes one of them.
	Needs []string

	Prestart  func(context.Context, *Request, *S) (Contribution, error)
	Poststart func(context.Context, *Request, *S) error
	Update    func(context.Context, *Request, *S) error
	Prekill   func(context.Context, *Request, *S) error
	Exited    func(context.Context, *Request, *S) error
	Stop      func(context.Context, *Request, *S) error
}

// AnyHook is *Hook[S] for every S, and nothing else.
type AnyHook interface{ bind() *bound }

// HookFunc makes the hook for one task, or nil if it has no use for it. It is
// called once, in New; an in-place update does not call it again.
type HookFunc func(*spec.Alloc, *spec.Task) (AnyHook, error)

// Stage places a hook among the others. Values between the named ones are free.
type Stage int

// The stages in order. The zero value is StageHost.
const (
	StageValidate Stage = 10 * (iota - 11)
	StageDirs
	StageLogs
	StageUsers
	StageMounts
	StageIdentity
	StageTokens
	StageDevices
	StagePayload
	StageArtifact
	StageTemplate
	StageHost // hooks of the host
	StageServices
	StageChecks
	StageStats
)

// Contribution is what a hook adds to the task it prepares. Later hooks win.
type Contribution struct {
	Env      map[string]string // as they are, never expanded
	Template map[string]string // likewise, from rendered files: above all other variables
	Mounts   []driver.Mount
	Devices  []driver.Device
	Stdio    *driver.Stdio   // nil leaves it
	Network  *driver.Network // nil leaves it
	DNS      *driver.DNS     // nil leaves it
	User     string          // "" leaves the task's own
}
