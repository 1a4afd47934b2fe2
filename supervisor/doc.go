// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package supervisor is the helper process that forks tasks, reaps them, pumps
// their logs and remembers their exits, and the client an agent drives it with.
//
// One supervisor serves one scope (an alloc, a task or a whole node). A scope
// is a directory below the pool's, best on tmpfs:
//
//	lock       flock'ed by the supervisor for as long as it lives
//	sock       its socket, 0600: bound by the agent, inherited by the supervisor
//	journal    what was started and how it ended, append only
//	io/        the FIFO pairs of the scope's tasks: <task>.stdout, <task>.stderr
//	log        the supervisor's own stderr
//	ctr/       what creators need to know of their containers: ctr/<name>
//
// What a task's life looks like from both sides:
//
//	agent                     supervisor                     task
//	Logs(task)  ───────────▶  FIFO pair, readers, pumps
//	Start(spec) ───────────▶  B in the journal ── fork ────▶ runs, 3 descriptors
//	            ◀── pid, start time ── S                     writes into the FIFO
//	Wait(id)    ───────────▶  (held, no goroutine)
//	Exec(id)    ─connection▶  R ── fork, like the task ────▶ a command beside it, on
//	 of its own ◀── code ──   Q ◀── exits                    descriptors of the agent's
//	                          reaps, drains the FIFOs, X ◀── exits
//	            ◀── code ──
//	Destroy(id) ───────────▶  kills what is left, D
//	EndLogs, Release ──────▶  leaves nothing
//
// An agent that dies loses nothing: the supervisor is in a session of its own,
// holds no pipe of the agent's, and keeps results until Destroy. A supervisor
// that dies loses nothing either: the lock says so, the next one reads the
// journal and adopts every task whose pid, start time and boot id match. The
// tasks hold their FIFOs open for reading as well, so no write of theirs fails.
// One that hangs is as one that died: while something is asked of it, its silence
// is bounded, and then it is ended, by the lock it holds.
//
// A task that is to be isolated is made by a creator, a process that lives for as
// long as that takes (package internal/creator), and runs its program only once it
// is in the journal:
//
//	agent                     supervisor                     creator        the task
//	Start(Container) ──────▶  B, C ─ fork, the spec ───────▶ makes ───────▶ waits in exec.fifo
//	                          S, G ◀── pid, start time ───── ends
//	                          opens the FIFO ─────────────────────────────▶ runs
//	            ◀── pid ────  the program runs, or why it cannot
//
// Whatever dies in between, one of two things is found: no G, and then nothing of
// the task's ever ran, and all that bears its name is removed, in every hierarchy
// of cgroups; or G, and then the task is let go, by whoever comes next if need be.
// A creator holds the lock like a fork does, so that none is at work when the next
// supervisor looks.
//
// What cannot be kept: output that waits in a FIFO goes with the FIFO's last
// holder. So if agent and supervisor are both dead and then the task ends, with
// all it started, before either is back, up to 64 KiB a stream are lost that
// nobody had read yet; Status.OutputLost says when that may be so. And a task that
// ends between its fork and the journal's S, with the supervisor killed in that
// very moment, has left nothing that tells: asked again, Start runs it again. One
// that still runs is adopted.
//
// The program of a supervisor is the host's own, started again: the package's
// init looks for a private argv[0] and a cookie and never returns if it finds
// them. That is why this package and all it imports are the standard library
// only, and little of it: it runs before main in every program that links it.
//
// Only Linux has supervisors; NewPool says so elsewhere.
package supervisor

import "errors"

// Version is the protocol version this build speaks. Kinds and fields are only
// ever added, a reader skips tags it does not know, and a new field must be
// safe to ignore: an agent works with supervisors up to two versions older.
const Version = 1

var (
	// ErrNotFound says that the supervisor knows no task of that ID. It says
	// nothing about processes: what proves one is gone is Adopt.
	ErrNotFound = errors.New("supervisor: task not found")
	// ErrClosed says that the connection ended during the call and that the call
	// may or may not have been carried out; the task may well be alive. After
	// Pool.Close and Scope.Release every call returns it.
	ErrClosed = errors.New("supervisor: connection closed")
	// ErrForeignScope says that the scope belongs to another user. Nothing was
	// sent; the tasks are alive or not, this process cannot know.
	ErrForeignScope = errors.New("supervisor: scope belongs to another user")
	// ErrNotProved is the answer to Adopt when nothing carries the identity: the
	// process is gone, or its pid is another one's, and no record tells its exit.
	ErrNotProved = errors.New("supervisor: no process of that identity")
	// ErrBusy is the answer to Release while the scope holds tasks.
	ErrBusy = errors.New("supervisor: scope still holds tasks")
	// ErrExited is the answer to Exec when the task has ended.
	ErrExited = errors.New("supervisor: task has ended")
	// ErrNotAnswering says that a supervisor holds the scope, does not answer, and
	// could not be ended either: it hangs in the kernel, or what holds the lock is
	// none of ours. The text names it. Its tasks are alive or not.
	ErrNotAnswering = errors.New("supervisor: no answer")
	// ErrProgram says that a creator made a container and the task's program cannot be
	// run in it; the chain has the errno that package creator's ReadExec returned.
	ErrProgram = errors.New("supervisor: the task's program cannot be run")
	// ErrUnsupported says that the supervisor is older than the request.
	ErrUnsupported = errors.New("supervisor: too old for this request")
)
