// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package supervised

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver"
)

// streams are both ends of what connects us with a command: three pipes, or one
// terminal. Ours are in the runtime's poller, the command's block.
type streams struct {
	prefix  string // of errors
	console int    // the socket that the terminal comes over; -1 is none
	child   [3]int
	in      *os.File // nil: the command reads /dev/null
	tty     *os.File // nil: pipes
	outs    []*outlet
	once    sync.Once // closes ours
}

// outlet is one output of the command.
type outlet struct {
	prefix string // of errors
	from   *os.File
	to     io.Writer
}

// ctrlD is what a terminal takes for the end of the input.
const ctrlD = 4

// leftover is how much is read of a command that has ended: more than pipe or
// terminal hold. Something in the background may go on writing for ever.
const leftover = 1 << 20

// openStreams makes them. With console a terminal is not made but received, by
// connect.
func openStreams(prefix string, req driver.ExecRequest, console bool) (*streams, error) {
	s := &streams{prefix: prefix, console: -1, child: [3]int{-1, -1, -1}}
	var err error
	if req.TTY && console {
		err = s.openConsole()
	} else {
		err = s.open(req)
	}
	if err != nil {
		s.closeChild()
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *streams) open(req driver.ExecRequest) (err error) {
	if req.TTY {
		if s.tty, s.child[0], err = openTerminal(req.Size); err != nil {
			return err
		}
		s.show(req)
		for i := 1; i < 3 && err == nil; i++ {
			s.child[i], err = unix.FcntlInt(uintptr(s.child[0]), unix.F_DUPFD_CLOEXEC, 3)
		}
		return err
	}
	if req.Stdin == nil {
		s.child[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	} else {
		s.child[0], s.in, err = pipe(false)
	}
	for i, to := range []io.Writer{req.Stdout, req.Stderr} {
		switch {
		case err != nil:
		case to == nil:
			s.child[i+1], err = unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		default:
			var from *os.File
			if s.child[i+1], from, err = pipe(true); err == nil {
				s.outs = append(s.outs, &outlet{s.prefix, from, to})
			}
		}
	}
	return err
}

// show connects us with the terminal.
func (s *streams) show(req driver.ExecRequest) {
	to := req.Stdout
	if to == nil {
		to = io.Discard
	}
	s.in, s.outs = s.tty, []*outlet{{s.prefix, s.tty, to}}
}

func (s *streams) openConsole() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	s.console, s.child[0] = pair[0], pair[1]
	for i := 1; i < 3; i++ {
		if s.child[i], err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	return nil
}

// connect takes the terminal that was sent before the command ran.
func (s *streams) connect(req driver.ExecRequest) error {
	if s.console < 0 {
		return nil
	}
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(s.console, buf, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return os.NewSyscallError("recvmsg", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return errors.Join(errors.New("none was sent"), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return errors.Join(errors.New("none was sent"), err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		return err
	}
	s.tty = os.NewFile(uintptr(fds[0]), "terminal")
	s.show(req)
	return nil
}

// pipe returns the command's end and ours, which we read or write.
func pipe(read bool) (theirs int, ours *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, os.NewSyscallError("pipe2", err)
	}
	own := 1
	if read {
		own = 0
	}
	if err := unix.SetNonblock(p[own], true); err != nil {
		_, _ = unix.Close(p[0]), unix.Close(p[1])
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	return p[1-own], os.NewFile(uintptr(p[own]), "pipe"), nil
}

// openTerminal makes a terminal and returns our side and the command's.
func openTerminal(size driver.TerminalSize) (ours *os.File, theirs int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("terminal: /dev/ptmx: %w", err)
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	if err == nil {
		err = setSize(ours, size)
	}
	if err == nil { // by descriptor: its name may mean something else in this mount namespace
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if theirs = int(n); e == 0 {
			return ours, theirs, nil
		}
		err = e
	}
	_ = ours.Close()
	return nil, -1, fmt.Errorf("terminal: %w", err)
}

func setSize(tty *os.File, size driver.TerminalSize) error {
	w := unix.Winsize{Row: size.Rows, Col: size.Cols}
	if w.Row == 0 {
		w.Row = 24
	}
	if w.Col == 0 {
		w.Col = 80
	}
	rc, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &w) })
	return errors.Join(cerr, err)
}

// closeChild closes the command's ends, which are its own by now.
func (s *streams) closeChild() {
	for i, fd := range s.child {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		s.child[i] = -1
	}
}

// close closes our ends. Idempotent.
func (s *streams) close() {
	s.once.Do(func() {
		if s.console >= 0 {
			_ = unix.Close(s.console)
		}
		if s.in != nil {
			_ = s.in.Close()
		}
		for _, o := range s.outs {
			_ = o.from.Close() // of a terminal it is the same
		}
	})
}

// endInput passes on that there is no more to read.
func (s *streams) endInput() {
	if s.tty != nil {
		_, _ = s.tty.Write([]byte{ctrlD})
		return
	}
	_ = s.in.Close()
}

// resize sets later sizes until the command has ended.
func (s *streams) resize(sizes <-chan driver.TerminalSize, ended <-chan struct{}) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			if s.tty != nil {
				_ = setSize(s.tty, size) // of a terminal that was closed there is none
			}
		case <-ended:
			return
		}
	}
}

// copy hands on the output until it ends or finish is called; then what the
// command has left in it, without waiting for what it left in the background.
// An output that fails is told, and what follows is dropped.
func (o *outlet) copy(fail context.CancelCauseFunc) {
	buf := make([]byte, 32<<10)
	broken := false
	put := func(n int) {
		if n <= 0 || broken {
			return
		}
		if _, err := o.to.Write(buf[:n]); err != nil {
			broken = true
			fail(fmt.Errorf("%s: output of a command: %w", o.prefix, err))
		}
	}
	for {
		n, err := o.from.Read(buf)
		put(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil { // EOF, or EIO of a terminal that nobody has open
			return
		}
	}
	if o.from.SetReadDeadline(time.Time{}) != nil {
		return
	}
	rc, err := o.from.SyscallConn()
	if err != nil {
		return
	}
	for left := leftover; left > 0; {
		n := 0
		err := rc.Read(func(fd uintptr) bool {
			for n, err = syscall.Read(int(fd), buf); err == syscall.EINTR; {
				n, err = syscall.Read(int(fd), buf)
			}
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		put(n)
		left -= n
	}
}

// finish says that the command has ended.
func (o *outlet) finish() { _ = o.from.SetReadDeadline(time.Unix(1, 0)) }
