// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package supervised

import (
	"fmt"
	"syscall"

	"github.com/nodekeep/nodekeep/driver"
)

func signalByName(name string) (syscall.Signal, error) {
	return 0, fmt.Errorf("%w %q: there are no signals on this system", driver.ErrUnknownSignal, name)
}
