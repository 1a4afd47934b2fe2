// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package seccomp makes the filter of system calls that tasks run under by default.
//
// A call is looked at as it comes:
//
//	of another architecture than ours     the process is killed
//	a number beyond the table             ENOSYS: programs take the older way
//	on the list, without its capability   EPERM
//	one that depends on its arguments     see arguments
//	any other                             allowed
//
// The table ends at the last call that was looked at when the list was made, so
// what a newer kernel brings is refused until somebody has. What is refused is what
// reaches beyond the task's namespaces, or parts of the kernel that a program has
// no everyday use for and that had faults: mounting, namespaces, keys, modules,
// clocks, bpf, tracing of performance, io_uring, userfaultfd, opening by handle.
// Most of it needs a capability that a task does not have anyhow, and is let
// through for one that was given it.
package seccomp
