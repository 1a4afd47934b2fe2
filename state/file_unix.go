// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package state

import (
	"errors"
	"os"
	"strconv"
	"syscall"
)

// tryLock opens and locks the file, or fails with errBusy. The lock ends with
// the descriptor, so also when the process is killed.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errBusy
	}
	var st syscall.Stat_t
	if err == nil && (syscall.Fstat(int(f.Fd()), &st) != nil || st.Nlink == 0) {
		err = errBusy // removed by a first start that failed just now: try the new one
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// Only for the message to others; a full disk does not matter here.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	return f, nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
