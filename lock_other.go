// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package nodekeep

import (
	"errors"
	"fmt"
	"os"
)

func lockRuntime(dir, _ string) (*os.File, error) {
	return nil, fmt.Errorf("nodekeep: lock %s: %w", dir, errors.ErrUnsupported)
}
