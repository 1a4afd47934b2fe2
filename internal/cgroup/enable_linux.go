// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// wanted are the controllers a task may be limited, or counted, by.
// Memory comes first, for the kernel refuses it where a process sits.
var wanted = []string{"memory", "cpu", "pids", "cpuset"}

// enable hands the wanted controllers down to the scopes: each has to be enabled
// in every directory above them. No process may sit there, so who of us is in the
// way goes to the leaf first, and where somebody else sits nothing is tried: the
// kernel would refuse memory, but take the others, which can be had for threads
// too, and then nothing could be started in the scopes. What is enabled is left
// alone; what cannot be is in lack, with why.
func (t *Tree) enable() {
	if t.mode != V2 || t.enabled.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lack = ""
	if t.managed {
		t.lacks(wanted, "a service manager starts the agent in "+t.top+
			" and could not do it again beside running tasks, as no process may be started where controllers are enabled")
		return
	}
	have := controllersOf(t.top)
	if missing := without(wanted, have); len(missing) > 0 {
		t.lacks(missing, t.top+" has not been given them")
	}
	have = without(wanted, without(wanted, have))
	for _, dir := range []string{t.top, t.slice, t.dir} {
		refused := t.enableIn(dir, without(have, enabledIn(dir)))
		for why, l := range refused {
			have = without(have, l)
			t.lacks(l, why)
		}
	}
	t.enabled.Store(t.lack == "")
}

// enableIn enables controllers for dir's children and returns what is refused, by
// the reason.
func (t *Tree) enableIn(dir string, l []string) map[string][]string {
	refused := map[string][]string{}
	if len(l) == 0 {
		return nil
	}
	if t.stepAside(dir); isInner(dir) && len(procsOf(dir)) > 0 {
		refused[t.refusal(dir, syscall.EBUSY)] = l
		return refused
	}
	for _, c := range l {
		if err := write(dir+"/cgroup.subtree_control", "+"+c); err != nil {
			why := t.refusal(dir, err)
			refused[why] = append(refused[why], c)
		}
	}
	return refused
}

// isInner says whether dir is not the top of the hierarchy, which may hold
// processes all the same.
func isInner(dir string) bool {
	_, err := os.Stat(dir + "/cgroup.type")
	return err == nil
}

// lacks notes what is not to be had.
func (t *Tree) lacks(l []string, why string) {
	if t.lack != "" {
		t.lack += "; "
	}
	t.lack += strings.Join(l, ", ") + ": " + why
}

func (t *Tree) refusal(dir string, err error) string {
	switch err {
	case syscall.EBUSY:
		return "processes that are not this agent's sit in " + dir + ":" + pidList(procsOf(dir)) +
			"; start the agent in a cgroup of its own"
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return "no right to enable them in " + dir + " (" + err.Error() + ")"
	}
	return "cannot be enabled in " + dir + ": " + err.Error()
}

// stepAside moves this process and the agent's supervisors out of dir into the
// leaf. Idempotent; what is forked later starts in the leaf.
func (t *Tree) stepAside(dir string) {
	if !isInner(dir) {
		return
	}
	leaf := t.dir + "/" + leafName
	for _, pid := range procsOf(dir) {
		self := pid == os.Getpid()
		if !self && (t.mine == nil || pid <= 1 || !t.mine(pid)) {
			continue
		}
		if err := syscall.Mkdir(leaf, 0o755); err != nil && err != syscall.EEXIST {
			return
		}
		if write(leaf+"/cgroup.procs", itoa(pid)) == nil && self {
			t.home = dir
		}
	}
}

// goHome undoes what stepAside and enable did, if nobody else needs it: it is
// called when no scope is left. Of a hierarchy's own top nothing is undone.
func (t *Tree) goHome() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.home == "" && slices.Contains(procsOf(t.dir+"/"+leafName), os.Getpid()) {
		t.home = t.top // an earlier life of this program, or its parent, went
	}
	if t.home == "" {
		return
	}
	for _, dir := range []string{t.dir, t.slice, t.top} {
		for _, c := range enabledIn(dir) {
			if write(dir+"/cgroup.subtree_control", "-"+c) != nil {
				return // another agent's tasks use it
			}
		}
		t.enabled.Store(false)
		if dir == t.home {
			break
		}
	}
	if write(t.home+"/cgroup.procs", itoa(os.Getpid())) == nil {
		t.home = ""
	}
}

// controllersOf returns the wanted controllers that may be enabled in dir.
func controllersOf(dir string) []string { return among(dir + "/cgroup.controllers") }

// enabledIn returns those that dir's children have.
func enabledIn(dir string) []string { return among(dir + "/cgroup.subtree_control") }

func among(file string) (l []string) {
	b, _ := os.ReadFile(file)
	for _, c := range strings.Fields(string(b)) {
		if slices.Contains(wanted, c) {
			l = append(l, c)
		}
	}
	return l
}

// without returns the elements of l that are not in out.
func without(l, out []string) (rest []string) {
	for _, c := range l {
		if !slices.Contains(out, c) {
			rest = append(rest, c)
		}
	}
	return rest
}
