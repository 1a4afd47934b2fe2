// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Create makes the FIFO. One that exists is fs.ErrExist and left as it is; any
// other failure leaves none.
func Create(path string, o Owner) error {
	perm := o.perm()
	if err := syscall.Mkfifo(path, uint32(perm)); err != nil {
		return &fs.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	f, err := openFIFO(path, syscall.O_RDWR)
	if err == nil {
		var st fs.FileInfo
		if st, err = f.Stat(); err == nil && st.Mode().Perm() != perm {
			err = f.Chmod(perm)
		}
		if err == nil {
			err = chown(f, st, o.UID, o.GID)
		}
		_ = f.Close()
	}
	if err != nil {
		_ = os.Remove(path)
	}
	return err
}

// OpenReader opens the reading end of a FIFO at once, whether or not anybody
// writes. A read that finds nothing waits in the runtime's poller; without any
// writer it is io.EOF, and goes on when one comes. Close ends a waiting read.
func OpenReader(path string) (io.ReadCloser, error) {
	f, err := openFIFO(path, syscall.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenWriter opens the writing end of a FIFO at once, whether or not anybody
// reads. It is a reader of its own, so that a reader that dies raises no
// SIGPIPE: with 64 KiB in the FIFO a write waits for the next reader. Close
// ends a waiting write.
func OpenWriter(path string) (io.WriteCloser, error) {
	f, err := openFIFO(path, syscall.O_RDWR)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func openFIFO(path string, mode int) (*os.File, error) {
	for {
		// Opening a FIFO has no effect; of anything else it might, so look first.
		// What is opened is looked at again: the name may have changed hands.
		if st, err := os.Lstat(path); err != nil {
			return nil, err
		} else if st.Mode().Type() != fs.ModeNamedPipe {
			return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotFIFO}
		}
		fd, err := syscall.Open(path, mode|syscall.O_NONBLOCK|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		st, err := f.Stat()
		if err == nil && st.Mode().Type() != fs.ModeNamedPipe {
			err = &fs.PathError{Op: "open", Path: path, Err: ErrNotFIFO}
		}
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
	}
}
