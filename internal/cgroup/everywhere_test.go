// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package cgroup

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// A task's cgroup has the same path in all hierarchies, each named once.
func TestEverywhere(t *testing.T) {
	eachTree(t, func(t *testing.T, tree *Tree) {
		path := tree.Path("alloc", "web")
		l := Everywhere(path)
		below := Below(path)
		if !slices.Contains(l, path) || !strings.HasSuffix(path, below) || below[0] != '/' {
			t.Errorf("%q, below %q", l, below)
		}
		for i, p := range l {
			if !strings.HasSuffix(p, below) || slices.Contains(l[:i], p) {
				t.Errorf("%q", l)
			}
			if st, err := os.Stat(strings.TrimSuffix(p, below)); err != nil || !st.IsDir() {
				t.Errorf("%s: %v", p, err)
			}
		}
		for _, p := range l { // as a driver that sets limits does
			if err := os.MkdirAll(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		names, err := tree.List()
		if err != nil || len(names) != 1 || names[0] != path {
			t.Errorf("%q %v", names, err)
		}
		if err := tree.Remove(path); err != nil {
			t.Fatal(err)
		}
		for _, p := range l {
			if _, err := os.Stat(p); err == nil {
				t.Errorf("%s is left", p)
			}
		}
		_ = os.MkdirAll(l[len(l)-1], 0o755)
		if l, err := tree.List(); err != nil || len(l) != 1 {
			t.Errorf("what is left elsewhere is not found: %q %v", l, err)
		}
		if err := tree.RemoveAlloc("alloc"); err != nil {
			t.Fatal(err)
		}
	})
	if l := Everywhere("/tmp/x"); !slices.Equal(l, []string{"/tmp/x"}) || Everywhere("") != nil || Below("/tmp/x") != "" {
		t.Errorf("%q", l)
	}
}

// What is frozen in one hierarchy is killed by what it is in of the others.
func TestKillEach(t *testing.T) {
	trees := trees(t)
	tree := trees[string(Freezer)]
	if tree == nil || len(trees) < 2 {
		t.Skip("one hierarchy only")
	}
	path := tree.Path("alloc", "web")
	l := Everywhere(path)
	pid := run(t, path, "exec sleep 60")
	for _, p := range l {
		_ = os.MkdirAll(p, 0o755)
		_ = write(p+"/cgroup.procs", itoa(pid))
	}
	freeze(path, true)
	eventually(t, "frozen", func() bool {
		b, _ := os.ReadFile(path + "/freezer.state")
		return string(b) == "FROZEN\n"
	})
	KillEach(l)
	eventually(t, "the end", func() bool { return dead(pid) })
	if err := RemoveEach(l); err != nil {
		t.Fatal(err)
	}
}

func TestWarm(t *testing.T) {
	before, _ := os.ReadFile("/proc/self/cgroup")
	Warm()
	if after, _ := os.ReadFile("/proc/self/cgroup"); string(after) != string(before) {
		t.Errorf("moved from %s to %s", before, after)
	}
}
