// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// An isolated service lives through a kill of its node, with its commands, and ends
// without a trace; kept beside the data is the program that made it.
func TestIsolatedService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("as root")
	}
	b := newBox(t)
	a := b.serve()
	if !strings.Contains(b.ok("plugins"), "exec") {
		t.Skip("no containers here: ", b.ok("node"))
	}
	b.ok("apply", b.driverJob("exec", "svc", "service", "trap 'exit 0' TERM; while :; do sleep 0.05; done", ""), "--wait", "running")
	pid := b.ps()["svc"].Tasks[0].PID
	a.kill(syscall.SIGKILL)
	b.serve()
	require.Equal(t, pid, b.ps()["svc"].Tasks[0].PID)
	r := b.feed("", "exec", "svc", "main", "--", "sh", "-c", "id -u; echo $$ >/local/self; ls /proc | grep -c '^[0-9]'; exit 6")
	require.Equal(t, 6, r.code, r)
	require.Regexp(t, `^65534\n[3-9]\n$`, r.out)
	require.Equal(t, result{"24 80\r\n", "", 0}, b.feed("", "exec", "-t", "svc", "main", "--", "stty", "size"))
	kept, err := filepath.Glob(b.data + "/bin/*")
	require.NoError(t, err)
	require.Len(t, kept, 1)
	b.ok("stop", "svc")
	_, err = os.Stat("/proc/" + strconv.Itoa(pid))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The job that comes with the program.
func TestIsolatedJob(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("as root")
	}
	b := newBox(t)
	r := b.nk("run", "--runtime-dir", b.run, "jobs/isolated.hcl")
	require.Equal(t, 0, r.code, r)
	require.Regexp(t, `I am nobody on \S+, process 1\n`, r.out)
	require.Contains(t, r.out, "Read-only file system")
}
