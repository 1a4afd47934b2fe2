// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package proctest finds the processes of a test by what it put in their
// environment. Only tests use it.
package proctest

import (
	"bytes"
	"os"
	"strconv"
	"time"
)

// Marked returns the ids of all living processes with the variable kv, "NAME=value",
// in their environment, this one left out. Zombies have none.
func Marked(kv string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if bytes.Contains(append([]byte{0}, Environ(pid)...), []byte("\x00"+kv+"\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Environ returns the environment of a process, empty if it is gone. A process in
// exec has none for a moment: that moment is waited for.
func Environ(pid int) []byte {
	dir := "/proc/" + strconv.Itoa(pid)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for looks := 0; ; looks++ {
		env, err := os.ReadFile(dir + "/environ")
		if len(env) > 0 || err != nil || looks == 100 {
			return env
		}
		<-tick.C
		if _, err := os.Readlink(dir + "/exe"); err != nil { // a zombie, or the kernel's own
			return nil
		}
	}
}
