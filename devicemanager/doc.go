// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package devicemanager holds a node's device plugins, those in this process and
// those that are programs of their own, and gives devices to tasks.
//
//	Launcher ──List──▶ program ──┐ one goroutine each
//	                             ▼
//	         Launch ───▶ ┌─────────┐ ──▶ fingerprints ──▶ Devices, Watch
//	           ▲         │ running │ ──▶ Stats
//	           │         └─────────┘ ◀── Reserve(ids)
//	           └─ pause ◀────┘ process ends: its devices are unhealthy meanwhile
//
//	Reserve(task) ── choose, hold ──▶ ask the plugins ──▶ store ──▶ what the task needs
//	Release(task) ── forget in the store ──▶ free
//
//	v1 / devicemanager / <alloc> / task-<name> / reservation
//
// A device has one task at most. It is held in memory from the moment it is chosen
// and on disk, with all that the plugin said of it, before Reserve returns; so no
// crash gives it to two. It is free when Release has been called for its task,
// however often that task was started in between, or when Retain finds that nobody
// knows the alloc any more.
//
// A task whose plugin is silent (just starting, between two lives, or without an
// answer) waits for it, half a minute at most, and then fails recoverably. One that
// runs already is told what it has without asking anybody.
//
// Plugins keep nothing between calls. So the end of Run ends their processes, and
// what an agent left that was killed is ended by the next one's Run.
package devicemanager
