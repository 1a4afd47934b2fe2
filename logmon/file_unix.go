// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build unix

package logmon

import (
	"io/fs"
	"os"
	"syscall"
)

// chown changes the owner where it is another one; uid and gid 0 ask for none.
func chown(f *os.File, fi fs.FileInfo, uid, gid int) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || (uid == 0 && gid == 0) || (int(st.Uid) == uid && int(st.Gid) == gid) {
		return nil
	}
	return f.Chown(uid, gid)
}
