// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// A task of another user reaches its own directories in a data directory that we
// made, and no other task's: what is looked up there as a command stays the
// task's own.
func TestTaskOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start tasks of other users")
	}
	b := newBox(t)
	b.serve()
	for dir := b.data; dir != "/"; dir = filepath.Dir(dir) { // the test's own directories
		st, err := os.Stat(dir)
		require.NoError(t, err)
		if dir != b.data && st.Mode().Perm()&0o011 == 0 {
			require.NoError(t, os.Chmod(dir, st.Mode().Perm()|0o011))
		}
	}
	path := filepath.Join(t.TempDir(), "two.hcl")
	require.NoError(t, os.WriteFile(path, []byte(`
job "two" {
  type = "batch"
  group "g" {
    task "root" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while [ ! -e $${NOMAD_ALLOC_DIR}/data/end ]; do sleep 0.05; done"]
      }
      env { MARK = "`+b.mark+`" }
    }
    task "main" {
      driver = "raw_exec"
      user   = "nobody"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          id -un; pwd
          echo mine > local/file && echo wrote mine
          for f in ../root/x ../root/local/sleep ../../x; do
            (echo evil > $f) 2>/dev/null && echo "wrote $f"
          done
          rm -f ../alloc/logs/root.* 2>/dev/null
          ls ../root/local >/dev/null 2>&1 && echo "read the other's"
          touch $${NOMAD_ALLOC_DIR}/data/end
          EOT
        ]
      }
      env { MARK = "`+b.mark+`" }
    }
  }
}`), 0o600))
	b.ok("apply", path)
	al := b.until("two", "complete", func(al api.Alloc) bool { return al.Status == "complete" || al.Status == "failed" })
	require.Equal(t, "nobody\n"+filepath.Join(b.data, "alloc", al.ID, "main")+"\nwrote mine\n", b.ok("logs", "two", "main"))
	require.Equal(t, "complete", string(al.Status))
}

// A state that is older than what runs, put back by hand, costs nothing: the task
// is found where its start would be made.
func TestOlderStateFindsWhatRuns(t *testing.T) {
	b := newBox(t)
	a := b.serve()
	require.Zero(t, a.kill(syscall.SIGTERM))
	state := filepath.Join(b.data, "state.db")
	old, err := os.ReadFile(state)
	require.NoError(t, err)
	a = b.serve()
	b.ok("apply", b.jobFile("kept", "batch", "echo up; while [ ! -e $DIR/end ]; do sleep 0.02; done; exit 0", once))
	was := b.until("kept", "running", func(al api.Alloc) bool { return al.Status == "running" })
	require.Zero(t, a.kill(syscall.SIGTERM))
	require.NoError(t, os.WriteFile(state, old, 0o600))
	b.serve()
	now := b.until("kept", "running", func(al api.Alloc) bool { return al.Status == "running" && al.Tasks[0].PID != 0 })
	require.Equal(t, was.Tasks[0].PID, now.Tasks[0].PID)
	require.Equal(t, []string{"Started"}, b.kinds("kept"))
	b.ok("stop", "kept")
}
