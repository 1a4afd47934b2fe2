// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package container says what a container of the exec driver looks like, and makes
// it.
//
//	agent                    supervisor            creator (Main)             init (Main)
//	Probe ── Features
//	Build ── Spec ─────────▶ fork, Spec on fd 3 ─▶ root, libcontainer ──────▶ waits for exec.fifo
//	      └─ Applied         ◀── pid ────────────  ends                       shim: filter, program
//	Exec ──────────────────▶ fork, Exec on fd 3 ─▶ the same, beside the task
//
// What the two processes say to each other is in package internal/creator; this
// package adds what is in the specs. What Exec must know of a task lies in its
// state directory as spec.json.
//
// # What a task sees
//
//	/bin /lib /usr …      the host's, read-only; or the task's image
//	/etc                  a few files and directories of the host;
//	                      hosts, hostname and resolv.conf are the alloc's
//	/alloc /local /secrets  the task's own, to write
//	/tmp                  the task's own directory, or memory
//	/dev                  null, zero, full, random, urandom, tty, pts, shm, and what
//	                      was reserved
//	/proc /sys            of its own namespaces, dangerous parts masked or read-only
//	/sys/fs/cgroup        its own cgroup, read-only
//
// Nothing else is there: no other task, no file of the host that not everybody may
// read, no device. The root is read-only. It is assembled in a mount namespace that
// dies with the creator, so the host's mount table never changes.
//
// # What it does not keep apart
//
//   - Tasks in the host's network (none was asked for) share its loopback and its
//     abstract sockets with the host.
//   - Tasks that run as the same user, nobody by default, share the kernel's limits
//     per user (nproc). In the host's process namespace, which the operator has to
//     allow, they can trace each other.
//   - A task that runs as the host's root, which the operator has to allow too, can
//     leave setuid programs in its directories for users of the host.
//   - A task can write below its own image while that is mounted; what it then reads
//     through the overlay is not defined.
//   - What root writes to a root that is writable, and to /tmp with tmp_mb, is memory,
//     and counts as the task's.
package container
