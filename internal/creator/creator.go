// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package creator is what a supervisor and a creator say to each other. A creator
// is a short-lived process that makes one container, or one process in it, and
// ends; what it made becomes the supervisor's child, which is a subreaper.
//
//	supervisor                           creator                       init
//	B in the journal ─ fork ───────────▶ Argv0 create
//	WriteSpec ─────────── fd 3 ────────▶ ReadSpec
//	                                     makes cgroups, state, init ─▶ waits in open(exec.fifo)
//	ReadResult ◀── pid, start ─ fd 3 ─── Done
//	S in the journal, pid is known
//	closes fd 3 ───────────────────────▶ ends ──────────────────────▶ the supervisor's child
//	G in the journal
//	opens exec.fifo ───────────────────────────────────────────────▶ runs the program
//
// What a creator is given:
//
//	argv     Argv0, then Create or Exec; libcontainer starts its init as Argv0 "init"
//	env      two or three variables for the Go runtime, nothing else
//	cwd      /
//	0, 1, 2  stdin, stdout and stderr of the process to be made. With a terminal 0 is
//	         the socket to send it over (the console socket) and 1 and 2 are /dev/null
//	3        a stream socket: the spec comes in, the result goes out
//	4        the supervisor's lock, to be held and passed to nobody: while a creator
//	         lives no next supervisor begins
//	5        with Create: the write end of a pipe, for the process (close-on-exec there).
//	         Once the process was let go, ReadExec of the other end says whether the
//	         program runs. Without such a pipe a program that cannot be run ends with 127
//
// With Exec the creator waits for that itself, and fails.
//
// It leads a session and a mount namespace of its own. The spec is of the driver's
// making and opaque to the supervisor. All the creator makes bears the name that
// Name gives the task, so that it is found again from that alone: the directory
// <state root>/<name>, which the supervisor removes with all that is in it (what
// Exec has to know of the task may lie there too), and the task's own cgroup: that
// very path, with nothing added, below the mount point of every hierarchy. With Create the
// process must wait in it for its exec.fifo to be opened (libcontainer's Start);
// with Exec it runs (Run).
//
// The package is loaded before every start of a supervisor: standard library only,
// and little of it.
package creator

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	// Argv0 is the private name a creator and the init it makes are started by.
	Argv0 = "nodekeep-exec:5b1e77d2"
	// Create has a container made whose process waits.
	Create = "create"
	// Exec has a process run in a container that is there.
	Exec = "exec"
	// Init is what libcontainer's init has for argv[1].
	Init = "init"

	// SocketFD is the descriptor that spec and result go over.
	SocketFD = 3
	// ExecFD is the descriptor of the pipe that tells whether the program runs.
	ExecFD = 5
	// FIFO is the file in the state directory that holds the process back.
	FIFO = "exec.fifo"

	maxSpec   = 8 << 20
	maxResult = 64 << 10
)

// Asked says whether a command line is a creator's or its init's.
func Asked(args []string) bool { return len(args) >= 2 && args[0] == Argv0 }

// Name is the name of a task's container: letters, digits, "_", "-", "." and "+",
// not longer than 200 bytes, the same for the same ID and another one for another.
func Name(id string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(id))
	for i, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.' && i > 0:
			b = append(b, c)
		default:
			b = append(b, '+', hex[c>>4], hex[c&15])
		}
	}
	if len(b) > 200 {
		h := uint64(14695981039346656037) // FNV-1a
		for _, c := range []byte(id) {
			h = (h ^ uint64(c)) * 1099511628211
		}
		b = strconv.AppendUint(append(b[:180], "++"...), h, 16)
	}
	return string(b)
}

// Result is what a creator answers: a process, or why there is none.
type Result struct {
	PID   int
	Start uint64 // of the process, in clock ticks since boot: with the pid it names it
	Err   string
	Errno syscall.Errno // in the chain of the error, if one is
}

// WriteSpec sends a creator what to make.
func WriteSpec(w io.Writer, spec []byte) error { return send(w, spec) }

// ReadSpec is the creator's side.
func ReadSpec(r io.Reader) ([]byte, error) { return receive(r, maxSpec) }

// Done tells the supervisor of the process that was made, which must not have been
// waited for, and returns once it is known there, or the supervisor is gone. The
// creator then ends at once: until it does nobody learns how the process ends.
func Done(socket io.ReadWriter, pid int) error {
	start := startOf(pid)
	if start == 0 {
		return errors.New("creator: process " + strconv.Itoa(pid) + " is gone")
	}
	if err := send(socket, []byte("+"+strconv.Itoa(pid)+" "+strconv.FormatUint(start, 10))); err != nil {
		return err
	}
	_, _ = socket.Read(make([]byte, 1)) // its end
	return nil
}

// Fail tells the supervisor that nothing was made, and nothing is left that the
// creator could remove.
func Fail(socket io.Writer, err error) error {
	text := err.Error()
	if len(text) > maxResult/2 {
		text = text[:maxResult/2]
	}
	var errno syscall.Errno
	_ = errors.As(err, &errno)
	return send(socket, []byte("-"+strconv.Itoa(int(errno))+" "+text))
}

// ReadResult is the supervisor's side. An error says that the creator ended, or
// answered nonsense.
func ReadResult(r io.Reader) (Result, error) {
	b, err := receive(r, maxResult)
	if err != nil {
		return Result{}, err
	}
	return parse(string(b))
}

// ReadExec reads from the pipe at ExecFD and returns 0 once the program runs, or the
// process is gone; else why the program cannot be run. To be called when no other
// process holds the writing end; it blocks until the process was let go.
func ReadExec(r io.Reader) syscall.Errno {
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0
	}
	return syscall.Errno(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}

func parse(s string) (res Result, err error) {
	bad := errors.New("creator: the answer makes no sense: " + strconv.Quote(s[:min(len(s), 100)]))
	if s == "" {
		return res, bad
	}
	first, rest, ok := strings.Cut(s[1:], " ")
	n, err := strconv.Atoi(first)
	switch {
	case !ok || err != nil || n < 0:
		return res, bad
	case s[0] == '-' && rest != "" && n < 4096:
		return Result{Err: rest, Errno: syscall.Errno(n)}, nil
	case s[0] == '+' && n > 1:
		res.PID = n
		if res.Start, err = strconv.ParseUint(rest, 10, 64); err == nil && res.Start != 0 {
			return res, nil
		}
	}
	return Result{}, bad
}

func send(w io.Writer, b []byte) error {
	n := len(b)
	f := append(make([]byte, 0, 4+n), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	_, err := w.Write(append(f, b...))
	return err
}

func receive(r io.Reader, limit int) ([]byte, error) {
	var h [4]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	n := int(h[0])<<24 | int(h[1])<<16 | int(h[2])<<8 | int(h[3])
	if n > limit {
		return nil, errors.New("creator: a frame of " + strconv.Itoa(n) + " bytes")
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// startOf returns the start time of a process, also of a zombie; 0 if there is none.
func startOf(pid int) uint64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(f[19], 10, 64)
	return n
}
