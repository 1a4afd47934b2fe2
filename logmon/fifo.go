// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"io/fs"
)

// ErrNotFIFO says that the path names something else than a FIFO, such as a
// file or a link that a task put there.
var ErrNotFIFO = errors.New("logmon: not a FIFO")

// Owner says who may use a FIFO.
type Owner struct {
	UID, GID int         // 0 is whoever creates it
	Mode     fs.FileMode // permission bits whatever the umask; default 0600
}

func (o Owner) perm() fs.FileMode {
	if o.Mode == 0 {
		return 0o600
	}
	return o.Mode.Perm()
}
