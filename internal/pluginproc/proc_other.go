// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package pluginproc

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

func ownSession() *syscall.SysProcAttr { return nil }

// identify cannot tell one process from a later one of the same number here.
func identify(int) (start uint64, boot string, err error) { return 0, "", nil }

// stranger is what find never returns here.
type stranger struct{ *child }

func (stranger) kill() error { return errors.ErrUnsupported }

// find refuses: without an identity that a kernel vouches for, a stored number
// may be anyone's by now. The agent launches the plugin anew.
func find(rec Record, _ <-chan struct{}) (*stranger, error) {
	return nil, fmt.Errorf("%w: pid %d cannot be told from a later process on this system", ErrStale, rec.Pid)
}

// free does nothing: the file grows until the plugin ends.
func free(*os.File, int64) {}
