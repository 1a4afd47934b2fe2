// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// firstRelease is the commit whose supervisor and agent version 1 began with.
const firstRelease = "74ddbf959b7016860bebbb1362d7f5d09d8e0b3a"

// oldBuild builds the first release from the history of this repository: its
// supervisor and its tests. Both are in directories of their own, so that neither
// is found by the other.
func oldBuild(t *testing.T) (supervisor, tests, source string) {
	t.Helper()
	if os.Getenv("NODEKEEP_OLD") == "" {
		t.Skip("builds an old version; set NODEKEEP_OLD=1")
	}
	if err := exec.Command("git", "cat-file", "-e", firstRelease+"^{commit}").Run(); err != nil {
		t.Skip("the history is not here; the recorded sessions were replayed: ", err)
	}
	dir := t.TempDir()
	source = filepath.Join(dir, "src")
	supervisor, tests = filepath.Join(dir, "old", "supervisor"), filepath.Join(dir, "tests", "old.test")
	run(t, ".", "sh", "-c", `mkdir -p "$1" && git -C "$(git rev-parse --show-toplevel)" archive `+firstRelease+` | tar x -C "$1"`, "sh", source)
	run(t, source, "go", "build", "-o", supervisor, "./cmd/nodekeep-supervisor")
	run(t, source, "go", "test", "-c", "-o", tests, "./supervisor")
	return supervisor, tests, source
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// The first release's agent, with all of its tests, drives today's supervisor.
func TestOldAgent(t *testing.T) {
	_, tests, source := oldBuild(t)
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	run(t, root, "go", "build", "-o", filepath.Join(filepath.Dir(tests), argv0), "./cmd/nodekeep-supervisor") // found beside it
	// Its imports and its idling are no matter here, where its program is is
	// meant to be another, and what it has ended is adopted by now.
	run(t, filepath.Join(source, "supervisor"), tests, "-test.timeout=5m", "-test.skip=^(TestImports|TestIdle|TestProgram|TestUnfinishedStartIsFoundByItsMark)$")
}

// Today's agent drives the first release's supervisor. Each takes over what the
// other was killed with: an upgrade, and the way back.
func TestOldSupervisor(t *testing.T) {
	old, _, _ := oldBuild(t)
	for name, programs := range map[string][2]string{"upgrade": {old, ""}, "rollback": {"", old}, "old": {old, old}} {
		t.Run(name, func(t *testing.T) {
			r := newRigAt(t, base(t), PoolConfig{Exe: programs[0]})
			st := r.start(r.sh("a", "trap 'echo got; exit 7' USR1; echo up; while :; do sleep 0.01; done"))
			r.waitLog("a.stdout", "up")
			r.start(r.sh("b", "trap '' TERM; echo up; while :; do sleep 0.01; done"))
			r.waitLog("b.stdout", "up")
			pid := r.pid()
			r.p.cfg.Exe = programs[1]
			r.agent()
			r.killSupervisor()
			if now := r.pid(); now == pid || !strings.Contains(program0(t, now), programs[1]) {
				t.Errorf("pid %d runs %s", now, program0(t, now))
			}
			for _, id := range []string{"a", "b"} {
				if st, err := r.Lookup(t.Context(), id); err != nil || !st.Adopted || st.Exited {
					t.Errorf("%s: %+v %v", id, st, err)
				}
			}
			if _, err := r.Adopt(t.Context(), Identity{ID: "a", PID: st.PID, Start: st.Start, BootID: st.BootID}); err != nil {
				t.Error(err)
			}
			if err := r.Signal(t.Context(), "a", 10); err != nil {
				t.Error(err)
			}
			if st := r.wait("a"); st.Code != 7 && !strings.HasPrefix(st.Err, notSeen) {
				t.Errorf("%+v", st)
			}
			r.waitLog("a.stdout", "got")
			if err := r.Stop(t.Context(), "b", 15, 0); err != nil {
				t.Error(err)
			}
			r.wait("b")
			r.destroy("a")
			r.destroy("b")
			r.start(r.sh("c", "exit 3"))
			if st := r.wait("c"); st.Code != 3 {
				t.Errorf("%+v", st)
			}
			r.destroy("c")
		})
	}
}

// program0 is the file a process runs.
func program0(t *testing.T, pid int) string {
	t.Helper()
	to, err := os.Readlink("/proc/" + itoa(pid) + "/exe")
	if err != nil {
		t.Fatal(err)
	}
	return to
}
