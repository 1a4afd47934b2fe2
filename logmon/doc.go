// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package logmon brings what a task writes to rotating files. It runs inside
// the supervisor and imports little: it is loaded before every supervisor
// start.
//
//	task ──write──▶ FIFO ──Pump──▶ Rotator ──▶ <dir>/<base>.0   oldest
//	(fd 1 or 2,     64 KiB in       drops and   <dir>/<base>.1
//	 O_RDWR)        the kernel,     counts on   <dir>/<base>.2   newest, appended to
//	                256 when busy   a full disk
//
// Rules a caller can rely on:
//
//   - A FIFO is made by Create and opened by OpenReader and OpenWriter, in any
//     order. No open blocks, none follows a link, and what is not a FIFO is
//     refused. One that an earlier run left is opened like a new one.
//   - No byte that reached the FIFO is lost while the disk takes it, also if the
//     collector is killed: on Linux bytes go from FIFO to file inside the kernel,
//     so each is in the one or in the other. The task then blocks when the FIFO is
//     full, until the next collector opens it. Drain says when all that was
//     written before is on file.
//   - The highest index is the newest file. A file is made at the first byte,
//     never grows beyond its size, and is never written over or shortened: after
//     a crash the newest one is continued.
//   - A line of up to 32 KiB (a quarter of the file size, if that is less) is
//     never split over two files. Longer ones are split where the file is full.
//   - A disk that takes no more bytes never blocks the task: output is dropped,
//     and its amount is told in the log when it can be written again.
//   - While nothing is written there is no wake-up and no buffer.
//   - The directory may be writable by the task: what it plants there under the
//     names of log files (links, FIFOs, other files' names) is passed over.
//
// Only Linux and Windows have FIFOs here (Windows: named pipes, see Create
// there); elsewhere the calls say that they are not supported.
package logmon
