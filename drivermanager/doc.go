// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package drivermanager holds a node's drivers: those in this process and those
// that are programs of their own, side by side and alike for whoever uses them.
//
//	Launcher ──List──▶ program ──┐ one goroutine each
//	                             ▼
//	  record? ──Reattach──▶ ┌─────────┐ ──▶ fingerprints ──▶ Status, Watch
//	    │ stale             │ running │ ──▶ events ────────▶ Subscribe
//	    └─────▶ Launch ───▶ └─────────┘ ──▶ Driver(name)
//	              ▲              │ process ends: its tasks are recovered
//	              └── pause ◀────┘ by the next one before anybody sees it
//
// What Driver returns stays valid: it follows the program through its deaths. A
// Wait goes on, other calls wait for the next process, for a bounded time, and a
// task that a program had when it died is made known to the next one first. A
// driver that is not there yet is waited for; only one that no program is, is
// unknown.
//
// The end of Run leaves the programs running, for the next agent to reattach to.
// What it needs for that is in Records, and is trusted only as far as process,
// program and configuration are the same.
package drivermanager
