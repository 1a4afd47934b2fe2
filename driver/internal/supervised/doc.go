// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package supervised is what drivers have in common whose tasks belong to
// supervisors: all of a task's life but its start.
//
//	driver          here                              supervisor
//	Start ────────▶ Keep, Handle
//	                Recover, Wait, Stop, Signal, … ─▶ of the task's scope
//	Exec ─────────▶ Run: streams, the command ──────▶ forks it, or has it made
//	                Destroy ────────────────────────▶ and what it does not know is
//	                                                  ended by what the caller proves
//
// A driver embeds a Tasks, which implements what of driver.Driver and its kin is
// the same for all.
package supervised
