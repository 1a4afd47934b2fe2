// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"os"
	"strings"
	"syscall"
)

const (
	magicV2 = 0x63677270
	magicV1 = 0x0027e0eb
)

type root struct {
	mode Mode
	dir  string
}

// candidates lists the directories to try, best first. Root may use the whole
// hierarchy; anybody else what is delegated to the cgroup he is in.
func candidates(given string) (l []root, reason string) {
	if given != "" {
		if m := modeOf(given); m != None {
			return []root{{m, given}}, ""
		}
		return nil, given + " is no directory of a cgroup v2 tree or the v1 freezer"
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err.Error()
	}
	own, _ := os.ReadFile("/proc/self/cgroup")
	var v1 []root
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		m, f := strings.Fields(before), strings.Fields(after)
		if len(m) < 5 || len(f) < 3 {
			continue
		}
		dir, sub := unescape(m[4]), unescape(m[3])
		switch {
		case f[0] == "cgroup2":
			mode := modeOf(dir)
			if mode == None {
				continue
			}
			if os.Geteuid() != 0 {
				dir += delegated(string(own), "", sub)
			}
			l = append(l, root{mode, dir})
		case f[0] == "cgroup" && hasWord(f[2], "freezer"):
			if os.Geteuid() != 0 {
				dir += delegated(string(own), "freezer", sub)
			}
			v1 = append(v1, root{Freezer, dir})
		}
	}
	return append(l, v1...), "no cgroup v2 tree and no v1 freezer is mounted"
}

// delegated returns our own cgroup as /proc/self/cgroup tells it, relative to a
// mount that shows the hierarchy from sub on.
func delegated(own, controller, sub string) string {
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (f[1] == controller || controller != "" && hasWord(f[1], controller)) {
			p := strings.TrimPrefix(f[2], strings.TrimSuffix(sub, "/"))
			return strings.TrimSuffix(p, "/")
		}
	}
	return ""
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func hasWord(list, word string) bool {
	return strings.Contains(","+list+",", ","+word+",")
}

// modeOf says what a directory is. A v2 tree that has none of the controllers a
// task could be limited by is the tracking half of a hybrid host.
func modeOf(dir string) Mode {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return None
	}
	switch int64(st.Type) {
	case magicV2:
		b, _ := os.ReadFile(dir + "/cgroup.controllers")
		for _, c := range strings.Fields(string(b)) {
			if c == "memory" || c == "cpu" || c == "pids" {
				return V2
			}
		}
		return Hybrid
	case magicV1:
		if _, err := os.Stat(dir + "/freezer.self_freezing"); err == nil || isV1Root(dir) {
			return Freezer
		}
	}
	return None
}

// isV1Root says whether dir is the top of a freezer hierarchy, which has no
// freezer files of its own.
func isV1Root(dir string) bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		m, f := strings.Fields(before), strings.Fields(after)
		if len(m) >= 5 && len(f) >= 3 && f[0] == "cgroup" && unescape(m[4]) == dir && hasWord(f[2], "freezer") {
			return true
		}
	}
	return false
}

// enable asks for the memory controller on the way down, for the sake of the
// OOM counter. That it is not to be had costs that counter and nothing else.
func (t *Tree) enable(root string) {
	if t.mode != V2 {
		return
	}
	for _, dir := range []string{root, t.slice, t.dir} {
		_ = write(dir+"/cgroup.subtree_control", "+memory")
	}
}
