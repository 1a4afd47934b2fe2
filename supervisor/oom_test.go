// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"os"
	"testing"

	"github.com/nodekeep/nodekeep/internal/cgroup"
)

// D12, FF-049: where the memory controller is, a task that is killed for want of
// memory is told from one that was killed, and the supervisor, which is not in the
// task's cgroup, lives.
func TestOOMIsSeen(t *testing.T) {
	dir := roots(t)["v2"]
	if dir == "" {
		t.Skip("no v2 tree with controllers")
	}
	path := dir + "/a.web.scope"
	if err := cgroup.Make(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"/memory.max", []byte("16777216"), 0o644); err != nil {
		t.Skip("the memory controller is not to be had here: ", err)
	}
	r := newRig(t)
	pid := r.pid()
	sp := r.sh("a", "exec dd if=/dev/zero of=/dev/null bs=64M count=1")
	sp.Cgroup = path
	r.start(sp)
	if st := r.wait("a"); st.Signal != 9 || !st.OOMKilled {
		t.Errorf("%+v", st)
	}
	if r.pid() != pid {
		t.Error("the supervisor was killed as well")
	}
	r.destroy("a")
}
