// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package taskrunner runs one task from its first hook to its last, whatever
// happens to the agent in between.
//
//	           prestart    driver      intent      Start      Wait         hooks,
//	           hooks       prepared    on disk     returned   returned     Destroy
//	pending ──▶ ready ──────▶ starting ──▶ running ──────────▶ exited ──▶ done ──▶ dead
//	   ▲                          │           │ kill, restart   │  ▲               stop hooks
//	   │        start failed      │           └──▶ stopping ────┘  │
//	   └──────────────────────────┴──────── restart policy ────────┘
//
// How to use it: New, then Run in a goroutine of your own. Kill ends the task,
// cancelling Run's context only lets go of it: the workload lives on, and the
// next New on the same store finds it again.
//
// What is promised:
//
//   - One goroutine, the one that calls Run, owns all state. At most one operation
//     (a chain of hooks, a call of the driver) runs beside it.
//   - A transition is on disk before anybody sees it, in one transaction with its
//     events and with what Config.Record adds. The two steps that only repeat
//     themselves after a crash (pending to ready, exited to pending or done) are
//     not written on their own.
//   - A commit that fails never ends Run: it is repeated until it succeeds, nothing
//     new is started meanwhile, and a kill is carried out from memory.
//   - Every step can be repeated: the driver's task IDs are <alloc>/<task>/<attempt>.
//   - Never two lives at once, never a start after an accepted kill, stop hooks at
//     least once after the last exit.
//
// # The phases
//
//	phase     meaning                                  on disk           a crash here
//	pending   not started, or between attempts         as the attempt    prestart hooks again, backoff goes on
//	                                                   before ended
//	ready     prestart hooks done                      –                 as pending
//	starting  the driver may have been asked           before the start  IdempotentStart: the same start again;
//	                                                                     else destroyed, and the next attempt
//	running   the driver has it                        with its handle   found again: no event, nothing touched
//	stopping  the stop signal is on its way            before it is sent sent again, what is left of the grace
//	exited    it has ended; hooks, Destroy             with the result   exited hooks again
//	done      it will not run again                    with the result   stop hooks again
//	dead      stop hooks done                          last of all       –
//
// # Who may ask for what
//
//	method     answers when            errors                       what comes of it
//	Kill       the wish is on disk     ErrNotDurable: also done     prekill hooks, shutdown delay, stop signal,
//	                                                                grace, SIGKILL; never a start again
//	Restart    the wish is on disk     ErrNotRunning                as a kill without delay, then a new attempt;
//	                                                                free of the policy unless Counted
//	Signal     the driver has sent it  ErrNotRunning, the driver's  an exit it causes is one like any other
//	Update     the loop has it         another alloc's              update hooks; a restart uses it
//	Emit       the event is on disk    ErrNotDurable
//	Exec       the command has ended   ErrNotRunning, the driver's  nothing is asked of the loop
//	Stats      yields samples          driver.ErrNotImplemented     nothing is measured while nobody reads
//	Explain    at once                                              what it waits for, what failed, what is next
//	Snapshot   at once                                              what is on disk, but for Durable
//	Watch      yields snapshots                                     a slow reader skips, and sees the last
//
// Where Run has returned all that needs the loop is ErrClosed, but for a Kill of
// what is dead already.
//
// # What a host must do
//
//   - Call Run exactly once for each New, also for an alloc that is over: that is how
//     left-overs go. One runner at a time for a task and a store.
//   - Give the same Store, Scope, Cgroups and drivers to the next runner of the task;
//     what it loads names them.
//   - Close FirstContact once its control plane has spoken (nil where it has none): a
//     task that was lost meanwhile waits for it.
//   - Give hooks that acquire things by a key of alloc and task, so that taking and
//     giving can be repeated: taskrunnertest.HookTest proves it.
//   - Make drivers keep the driver package's contract: drivertest.Suite proves it.
//   - Take no lock in Observe, Record and Trace that its calls of the runner hold.
package taskrunner
