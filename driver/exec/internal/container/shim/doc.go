// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package shim makes the small program that stands between a container that is
// ready and the task's own program. It loads the seccomp filter, says why the
// program cannot be run if it cannot, and with Init stays as PID 1.
//
// It is a static ELF file of about two pages, made anew for each start and held in
// memory (a memfd), because nothing else could be run there: the root may be any
// image, so that neither this program (which may need the host's C library) nor a
// file of the host can be relied on; and code that runs with the task's user must
// not be a file the task could reach.
//
//	0x000  ELF header, two program headers
//	0x100  the code: program_<arch>.s, as go build assembled it into this very program
//	0x800  struct sock_fprog, then what the code needs to know (see data)
//	0x840  the filter
//
// The code is written for the Go assembler and is never run in place: its bytes are
// copied out of the text of the running program, up to a mark. It uses no stack of
// Go's, no symbol and no register that Go keeps.
//
// As the file can be run and not be read by its user, the kernel keeps the process
// from being traced or its memory from being opened: no other process of the task
// can take it over before the filter is loaded. (A task that runs as root with
// CAP_DAC_OVERRIDE can read anything; for those the moment stays, some
// microseconds long.)
package shim

// Program is what one shim does.
type Program struct {
	Filter   []byte // of struct sock_filter; none loads no filter
	Paths    int    // how many of its arguments are places to look for the program
	Init     bool   // fork, forward signals and reap, and end as the program ends
	Self     int    // the descriptor of the shim's own file, closed in the program
	ErrorsTo int    // the descriptor of a pipe that gets the errno, closed in the program; -1 is none
}

// NoFilter in the errno that the pipe gets says that not the program was refused by
// the kernel but the filter.
const NoFilter = 0x10000
