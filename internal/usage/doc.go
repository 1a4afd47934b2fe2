// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package usage measures what the processes of a task use, from the best that
// the kernel tells about them:
//
//	            v2 cgroup            v1 cgroups             processes
//	cpu         cpu.stat          ▶  cpuacct, cpu        ▶  /proc/<pid>/stat
//	memory      memory.*          ▶  memory              ▶  /proc/<pid>/status
//	io          io.stat           ▶  blkio               ▶  /proc/<pid>/io
//	threads     pids.current      ▶  pids                ▶  /proc/<pid>/stat
//	pressure    *.pressure        ▶  –                   ▶  –
//
// Each row is looked at by itself, from left to right: on a hybrid host the v2
// tree knows the processor time and the pressure, while memory is summed up over
// the processes. A v1 directory counts where it has the same path below its mount
// as the task's cgroup. What nothing tells is left out of Measured.
//
// Sums over processes count a page once for each process that has it, and lose
// what a process used after the last sample before its end unless its parent is
// of the task too. They never go backwards.
package usage
