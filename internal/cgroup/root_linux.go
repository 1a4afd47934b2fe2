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

// root is a directory that the slice may be made in.
type root struct {
	mode Mode
	dir  string
	// managed says that whoever gave us the directory starts processes in it, and
	// that it must stay fit for that.
	managed bool
}

// candidates lists the directories to try, best first. Root may use the whole
// hierarchy, where he has the right to; anybody else, and he where he has not,
// what is delegated to the cgroup he is in.
func candidates(cfg Config) (l []root, reason string) {
	if cfg.Root != "" {
		if m := modeOf(cfg.Root); m != None {
			return []root{{mode: m, dir: cfg.Root}}, ""
		}
		return nil, cfg.Root + " is no directory of a cgroup v2 tree or the v1 freezer"
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
			if mode := modeOf(dir); mode != None {
				l = append(l, within(root{mode: mode, dir: dir}, withoutLeaf(delegated(string(own), "", sub), cfg))...)
			}
		case f[0] == "cgroup" && hasWord(f[2], "freezer"):
			v1 = append(v1, within(root{mode: Freezer, dir: dir}, delegated(string(own), "freezer", sub))...)
		}
	}
	return append(l, v1...), "no cgroup v2 tree and no v1 freezer is mounted"
}

// within is what of one mounted hierarchy is to be tried by a process whose
// cgroup is own.
func within(top root, own string) (l []root) {
	if os.Geteuid() == 0 {
		l = append(l, top)
	}
	if own != "" || len(l) == 0 {
		top.dir += own
		top.managed = own != "" && top.mode == V2 && delegatedByManager(top.dir)
		l = append(l, top)
	}
	return l
}

// withoutLeaf returns the cgroup that an agent's leaf was made for: a program
// that runs itself anew finds itself in the leaf.
func withoutLeaf(own string, cfg Config) string {
	inner := "/" + cfg.Slice + "/" + escape(cfg.AgentID, 200)
	return strings.TrimSuffix(own, inner+"/"+leafName)
}

// delegatedByManager says whether a service manager has marked the directory as
// given to the unit whose processes it starts there.
func delegatedByManager(dir string) bool {
	var b [8]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := syscall.Getxattr(dir, name, b[:]); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
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
// task could be limited by, beside hierarchies of v1, is the tracking half of a
// hybrid host.
func modeOf(dir string) Mode {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return None
	}
	switch int64(st.Type) {
	case magicV2:
		if len(controllersOf(dir)) > 0 || !hasV1() {
			return V2
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

// hasV1 says whether the host has a v1 hierarchy with a controller.
func hasV1() bool {
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 && f[1] != "" && !strings.HasPrefix(f[1], "name=") {
			return true
		}
	}
	return false
}
