// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package allocdir

import "os"

// openSub opens a directory in r.
func openSub(r *os.Root, name string) (*os.Root, error) { return r.OpenRoot(name) }
