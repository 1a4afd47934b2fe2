// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
)

// mount is one mounted hierarchy.
type mount struct {
	dir    string
	device string // of the hierarchy; what it shows comes next
	root   string
	rank   int // the freezer 0, the v2 tree 1, others 2
	v2     bool
	words  string // controllers of v1
}

func mounts() (l []mount) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, " - cgroup") {
			continue
		}
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		m, f := strings.Fields(before), strings.Fields(after)
		if len(m) < 5 || len(f) < 3 || f[0] != "cgroup" && f[0] != "cgroup2" {
			continue
		}
		h := mount{dir: unescape(m[4]), device: m[2], root: m[3], rank: 2, v2: f[0] == "cgroup2", words: f[2]}
		switch {
		case h.v2:
			h.rank = 1
		case hasWord(h.words, "freezer"):
			h.rank = 0
		}
		l = append(l, h)
	}
	return l
}

// Everywhere returns where a cgroup is, or would be, in every hierarchy of this
// host: at the same path below each mount point. The freezer of v1 comes first,
// for what is frozen there dies only once it is thawed; of a host with v2 alone
// there is one. "" and what is in no hierarchy is only itself.
func Everywhere(path string) []string {
	if path == "" {
		return nil
	}
	all := mounts()
	own := mountOf(all, path)
	if own == nil {
		return []string{path}
	}
	below := path[len(own.dir):]
	slices.SortStableFunc(all, func(a, b mount) int { return a.rank - b.rank })
	seen := map[string]bool{}
	var l []string
	for _, m := range all {
		if m.device == own.device && m.dir != own.dir || seen[m.device] {
			continue // mounted twice
		}
		seen[m.device] = true
		l = append(l, m.dir+below)
	}
	return l
}

// Below returns the path that a cgroup has below the mount point of its hierarchy,
// with a leading slash; "" for what is in none.
func Below(path string) string {
	if m := mountOf(mounts(), path); m != nil {
		return path[len(m.dir):]
	}
	return ""
}

func mountOf(all []mount, path string) (own *mount) {
	for i := range all {
		if m := &all[i]; strings.HasPrefix(path, m.dir+"/") && (own == nil || len(m.dir) > len(own.dir)) {
			own = m
		}
	}
	return own
}

// KillEach sends SIGKILL to everything in paths and below, which Everywhere
// returned, also if it is frozen. It does not wait for the end.
func KillEach(paths []string) {
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			Kill(p)
		}
	}
}

// RemoveEach is Remove for the paths that Everywhere returned. All are tried.
func RemoveEach(paths []string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, Remove(p))
	}
	return errors.Join(errs...)
}

// Warm has the kernel get over, beside what else goes on, what the first move of a
// process in the hierarchies of v1 has to wait for: some 10 ms, after which moves
// are quick for a while. It moves this process to where it is.
func Warm() {
	own, _ := os.ReadFile("/proc/self/cgroup")
	for _, m := range mounts() {
		// The freezer is left alone: a thread may be in a task's for a fork.
		if m.v2 || m.rank == 0 {
			continue
		}
		for line := range strings.Lines(string(own)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) != 3 || f[1] != m.words && !hasWord(m.words, f[1]) {
				continue
			}
			at, ok := strings.CutPrefix(f[2], strings.TrimSuffix(m.root, "/"))
			if ok && write(strings.TrimSuffix(m.dir+at, "/")+"/cgroup.procs", itoa(syscall.Getpid())) == nil {
				return
			}
		}
	}
}
