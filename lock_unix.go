// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package nodekeep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockRuntime locks dir for the agent of dataDir until the file is closed, also by
// the end of the process. An agent that was just killed may hold it a moment
// longer than its state.
func lockRuntime(dir, dataDir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("nodekeep: runtime directory: %w", err)
	}
	name := filepath.Join(dir, runtimeLock)
	for end := time.Now().Add(runtimeLockWait); ; time.Sleep(20 * time.Millisecond) {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("nodekeep: runtime directory: %w", err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		var st syscall.Stat_t
		if err == nil && syscall.Fstat(int(f.Fd()), &st) == nil && st.Nlink > 0 {
			if f.Truncate(0) == nil { // only for messages; a full disk does not matter
				_, _ = f.WriteAt([]byte(dataDir), 0)
			}
			return f, nil
		}
		_ = f.Close()
		switch {
		case err == nil: // removed by an agent that was leaving
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, fmt.Errorf("nodekeep: lock %s: %w", name, err)
		case time.Now().After(end):
			owner, _ := os.ReadFile(name)
			return nil, &RuntimeDirError{Dir: dir, DataDir: dataDir, Owner: string(owner)}
		}
	}
}
