// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"os"
	"syscall"
)

// openSub opens a directory in r. Root.OpenRoot would wait for ever on a FIFO that
// a task puts in its place, so the directory is opened as nothing else first.
func openSub(r *os.Root, name string) (*os.Root, error) {
	f, err := r.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.OpenRoot(procPath(int(f.Fd())))
}
