// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package allocrunner runs one alloc: a set of tasks that share a directory and a
// fate. It orders their lives, ends them together and tells the client status.
// What a single task does is package taskrunner's.
//
//	         prerun hooks        tasks by lifecycle                    all dead
//	New, Run ───────────▶ prestart ─▶ mains ─▶ poststart ┈┈▶ poststop ─────────▶ postrun hooks ─▶ done
//	   │ error: all tasks fail  │        │ leader, sibling, mains, Kill, stop        ▲          (Run returns)
//	   └────────────────────────┴────────┴─▶ prekill hooks ─▶ shutdown delay ─▶      │
//	                                         leader ─▶ mains ─▶ sidecars ────────────┘
//
// How to use it: New, then Run in a goroutine of your own. Kill, or an Update
// whose desired status is stop, ends the alloc; cancelling Run's context only
// lets go of it: the tasks live on, and the next New on the same store finds them
// again. Destroy removes what an alloc that is over has left.
//
// What is promised:
//
//   - One goroutine, the one that calls Run, owns all state. At most one operation
//     (a chain of hooks, telling tasks) runs beside it. A pure function, plan,
//     decides; the loop asks it after every event and once before the first.
//   - A transition is on disk before anybody sees it. A commit that fails never
//     ends Run: nothing new is started, a stop is carried out from memory (without
//     its order, for what tasks do cannot be seen then).
//   - Gates: an ephemeral prestart task must have ended well, and a prestart
//     sidecar must run (or have ended well), before a main task starts, also when
//     it starts again. Poststart tasks follow once every main has started.
//     Poststop tasks follow when all others are dead, if any of them ever ran;
//     they outlive a stop, but not a Kill that names them nor a prerun that failed.
//     Beside the stages each task waits for what it depends on: a task that was
//     started, is healthy, or has completed.
//   - The end: when the leader ends, when any task but a poststop one fails, when
//     only sidecars are left, the others are killed, with that event first; if
//     several hold, the first of this list is told. Each rank of the drawing is
//     gone before the next is killed; one-shot prestart and poststart tasks go
//     with the mains. Tasks that have ended stay available to RestartRequest.All
//     until all are dead.
//   - The status is forced by a Kill; failed if a task is dead and failed; running
//     from the first start until all are dead; else pending or complete. It never
//     goes back, and a terminal one never changes. It may be terminal before all
//     tasks are dead (Snapshot.FinishedAt) and all is given back (Snapshot.Done).
//   - When the maximum run time has passed, counted from the alloc's creation,
//     everything is killed, poststop tasks too, and the alloc is complete.
//   - Health of a service that has a policy: see judge. It is settled once per
//     deployment, by the runner or by SetHealth.
//   - The alloc's shutdown delay is kept when a main task runs that services may
//     still send to; it goes on where it was after a restart of the agent.
//   - A restored alloc finds its gates as they were. Its prerun hooks run beside
//     the living tasks; what does not run waits for them.
//
// On disk, one node per alloc (the tasks' own nodes are taskrunner's):
//
//	v1/alloc/<id>/  alloc           the alloc as last accepted
//	                status          status, the decision to end, restarts not yet carried out
//	                health          the last verdict, or how far the search for one has come
//	                hook.<name>     what an alloc hook remembers
//	                shared.<key>    what an alloc hook hands to the tasks' hooks (Key)
//	                task-<name>/…
//
// A plain life costs three transactions of its own (received, running, ended), one
// less where the host has saved the alloc itself (Save), one more where postrun or
// prekill hooks exist, and one for each hook state that changed.
//
// # Who may ask for what
//
//	method      answers when             errors                          what comes of it
//	Update      the version is on disk   ErrStale, ReplaceError          update hooks, then the tasks'; a stop
//	                                                                     waits for no hook
//	Kill        the wish is on disk      ErrTerminal, ErrNotDurable      the drawing's lower line; a later one only
//	                                                                     makes it quicker and wider
//	Restart     the wish is on disk      ErrTerminal, ErrUnknownTask,    pretaskrestart hooks, kill order, a new
//	                                     taskrunner.ErrNotRunning        attempt each as the gates allow
//	Signal      the drivers have sent it the same, and the drivers'
//	Exec, Stats as taskrunner's          ErrTerminal, ErrUnknownTask
//	SetHealth   the verdict is on disk   ErrHealthSettled                told once per deployment
//	Destroy     nothing is left          ErrNotOver; what is left        repeat it until it returns nil
//	Snapshot,   at once                                                  what is on disk
//	Watch, Explain
//
// # What a host must do
//
//   - Call Run exactly once for each New, also for an alloc that has ended, and
//     Destroy when nobody wants to look at it any more. One runner at a time for an
//     alloc and a store.
//   - Name the same Store, Scope, Dir, hooks and drivers to the next runner: a hook
//     that is left out leaves what it holds.
//   - Hand in each version with a higher ModifyIndex than the last; a change that
//     needs a new alloc is a ReplaceError and changes nothing.
//   - Give Checks that outlive agents or answer CheckPending until they know better.
//   - Prove hooks of its own with allocrunnertest.HookTest.
package allocrunner
