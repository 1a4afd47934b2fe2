// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package nodekeep is the node half of a scheduler: hand an Agent the allocs
// that should run on this machine and it starts, watches, restarts, logs,
// reattaches, stops and cleans up their tasks.
//
//	agent, err := nodekeep.New(nodekeep.Config{DataDir: dir, Drivers: …})
//	go agent.Apply(ctx, nodekeep.Desired{Index: 1, Allocs: allocs})
//	err = agent.Run(ctx)   // until ctx ends; the tasks go on without the agent
//
// # What belongs to whom
//
//	DataDir/                      one agent at a time (state.ErrLocked)
//	├── state.db                  everything below, one file
//	├── alloc/<id>/               directories of the tasks (package allocdir)
//	└── private/                  tmpfs of the agent's own secrets, as root
//	RuntimeDir/<scope>/           sockets, FIFOs, journals (package supervisor); dies with the machine
//	RuntimeDir/.plugins/<id>/     socket and log of a driver's process (package driverplugin); likewise
//	<cgroups>/<slice>/<agent id>/ the tasks' cgroups
//
//	state.db
//	└── v1
//	    ├── agent                 identity, progress (how far the control plane was followed)
//	    │   └── gone/<id>         last status of a collected alloc that is still wanted:
//	    │                         it must not run a second time
//	    ├── alloc/<id>            alloc, status, place, hook.*       (package allocrunner)
//	    │   └── task-<name>       task, hook.*                       (package taskrunner)
//	    ├── users                 the tasks' dynamic users           (package hooks/core)
//	    ├── drivermanager/<prog>  how a driver's process is found    (package drivermanager)
//	    ├── events, outbox        what is to be told                 (package outbox)
//	    └── quarantine/<id>       records that could not be read, set aside; kept for people
//
// # The life of an agent
//
//	New            lock and open the state, make drivers, list their programs; nothing runs
//	Run            load all records ─▶ drivers start, or are found again, and beside that
//	               all allocs are restored side by side ─▶ Ready
//	Apply          the first one is the first contact: tasks that were lost while the
//	               agent was away start again only now, what nobody knows is removed
//	ctx ends       detach: state is flushed, connections closed, tasks and the processes
//	               of their drivers live on; what no task needs any more ends
//
// A record that cannot be read is set aside: whatever carries its id on this
// host is ended, the alloc is reported as failed, the others are not touched.
//
// There are no globals: two agents with two directories work in one process.
package nodekeep
