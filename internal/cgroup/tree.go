// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Mode is what a Tree lives in.
type Mode string

// The modes, best first.
const (
	V2      Mode = "v2"      // all controllers are in v2
	Hybrid  Mode = "hybrid"  // controllers are in v1, the v2 tree tracks
	Freezer Mode = "freezer" // v1, tracked by the freezer
	None    Mode = "none"    // no cgroups; Tree.Reason says why
)

// Config says which subtree is ours.
type Config struct {
	Slice   string // name of the directory that all agents share; default nodekeep.slice
	AgentID string // required; the same after a restart of the agent
	// Root is the directory to make the slice in; "" finds it. It decides the
	// mode too: a v2 directory, or one of the v1 freezer.
	Root string
	// Mine says whether a process is one of this agent's supervisors. It is asked
	// about processes that keep controllers from being enabled: what is the
	// agent's is moved, what is not stays. nil: only this process is moved.
	Mine func(pid int) bool
}

// Tree is one agent's subtree. It holds nothing open; all its methods may be
// called from any goroutine and block for as long as the kernel does, Remove
// and its kin up to ten seconds more.
type Tree struct {
	mode    Mode
	top     string   // what the slice is in
	managed bool     // see root
	slice   string   // directory
	dir     string   // slice/<agent id>
	beside  []string // the same in the other hierarchies, where drivers that set limits make scopes
	reason  string
	mine    func(pid int) bool
	enabled atomic.Bool // all wanted controllers are

	mu   sync.Mutex // one at a time enables
	lack string     // what is not enabled, and why
	home string     // where this process was before it went to the leaf
}

// leafName is where this process and the supervisors go if they are in the way.
// No scope is named so: those have a dot.
const leafName = "agent"

// Open finds a hierarchy, makes the agent's directory in it and enables what
// controllers there are. That there is no hierarchy is no error: the Tree is of
// mode None then. Nor is it one that controllers are missing: see Lacking. To be
// called before the first supervisor is started, so that it starts in the right
// place; calling it again, after a crash too, changes nothing that is right.
func Open(cfg Config) (*Tree, error) {
	if cfg.AgentID == "" {
		return nil, errors.New("cgroup: Config.AgentID is empty: it must name the agent")
	}
	if cfg.Slice == "" {
		cfg.Slice = "nodekeep.slice"
	}
	if strings.ContainsAny(cfg.Slice, "/\n") || cfg.Slice == "." || cfg.Slice == ".." {
		return nil, errors.New("cgroup: Config.Slice " + strconv.Quote(cfg.Slice) + " must be one directory name")
	}
	roots, reason := candidates(cfg)
	for _, r := range roots {
		t := &Tree{mode: r.mode, top: r.dir, managed: r.managed, slice: r.dir + "/" + cfg.Slice, mine: cfg.Mine}
		t.dir = t.slice + "/" + escape(cfg.AgentID, 200)
		err := os.MkdirAll(t.dir, 0o755)
		if err == nil {
			t.beside = slices.DeleteFunc(Everywhere(t.dir), func(dir string) bool { return dir == t.dir })
			t.enable()
			return t, nil
		}
		reason = err.Error()
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
			reason += ": run the agent as root, or in a cgroup that is delegated to its user and writable"
		}
	}
	return &Tree{mode: None, reason: reason}, nil
}

// Mode says which kind of hierarchy is used.
func (t *Tree) Mode() Mode { return t.mode }

// Reason says why the mode is None.
func (t *Tree) Reason() string { return t.reason }

// Controllers are those of cpu, memory, pids and cpuset that the scopes have; none
// where limits are to be set in v1 hierarchies.
func (t *Tree) Controllers() []string {
	if t.mode != V2 {
		return nil
	}
	return enabledIn(t.dir)
}

// Lacking says which controllers the scopes of a v2 tree do not have, why, and
// what follows; "" if they have all. What is missing is asked for again at every
// Make, as it may have been another process that was in the way.
func (t *Tree) Lacking() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lack == "" {
		return ""
	}
	return t.lack + ". Tasks are tracked and killed all the same, but not limited by these; without memory, kills for want of it are not seen"
}

// Dir is the agent's directory; "" in mode None.
func (t *Tree) Dir() string { return t.dir }

// Path returns where a task's cgroup is or would be: the same for the same
// names whenever it is asked, another one for other names. "" in mode None.
func (t *Tree) Path(alloc, task string) string {
	if t.mode == None {
		return ""
	}
	return t.dir + "/" + escape(alloc, 100) + "." + escape(task, 120) + scope
}

const scope = ".scope"

// escape makes a file name of any text: bytes other than letters, digits, "_"
// and "-" become %XX, so that "." can separate. What would be longer than limit
// ends in a hash of the whole.
func escape(s string, limit int) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	if len(b) <= limit {
		return string(b)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return string(b[:limit-18]) + "%~" + strconv.FormatUint(1<<63|h.Sum64()>>1, 16)
}

// owns says whether path is something below our directory.
func (t *Tree) owns(path string) error {
	rest, ok := strings.CutPrefix(path, t.dir+"/")
	if t.mode == None || !ok || rest == "" || strings.Contains("/"+rest+"/", "/../") {
		return &fs.PathError{Op: "cgroup", Path: path, Err: errors.New("is not below " + t.dir)}
	}
	return nil
}

// Make makes path, which comes from Path, anew: what an earlier life left in it
// is killed first, because a v2 cgroup that was killed once kills whatever is
// forked into it later. "" is a no-op.
func (t *Tree) Make(path string) error {
	if path == "" {
		return nil
	}
	if err := t.owns(path); err != nil {
		return err
	}
	if err := Make(path); err != nil {
		return err
	}
	t.enable()
	return nil
}

// Remove kills everything in path and below and removes it. It is idempotent
// and may run twice at once. "" is a no-op.
func (t *Tree) Remove(path string) error {
	if path == "" {
		return nil
	}
	if err := t.owns(path); err != nil {
		return err
	}
	return t.remove(path[len(t.dir):])
}

// remove removes what is at that path below our directory, in all hierarchies.
func (t *Tree) remove(below string) error {
	errs := []error{nil}
	for _, dir := range t.beside { // the freezer first, if it is one of them
		errs = append(errs, Remove(dir+below))
	}
	errs[0] = Remove(t.dir + below)
	return errors.Join(errs...)
}

// List returns the paths of the scopes that are there, sorted; those too of which
// something is left in another hierarchy alone.
func (t *Tree) List() ([]string, error) {
	if t.mode == None {
		return nil, nil
	}
	l := t.scopes()
	for i := range l {
		l[i] = t.dir + "/" + l[i]
	}
	return l, nil
}

// RemoveAlloc kills and removes every scope of one alloc, whatever its tasks
// were named. All are tried; the errors are joined.
func (t *Tree) RemoveAlloc(alloc string) error {
	return t.removeIf(func(name string) bool { return strings.HasPrefix(name, escape(alloc, 100)+".") })
}

// RemoveAll kills and removes every scope and the agent's directory, and the
// slice if no other agent uses it. For an agent that goes for good. Where its
// leaf is still needed, by a process in it or because another agent's tasks need
// the controllers, leaf and directory stay, empty in the end.
func (t *Tree) RemoveAll() error {
	if err := t.removeIf(func(string) bool { return true }); err != nil || t.mode == None {
		return err
	}
	t.goHome()
	leaf := t.dir + "/" + leafName
	if rmdir(leaf) != nil {
		return nil // somebody is in it
	}
	for _, dir := range append([]string{t.dir}, t.beside...) {
		if err := Remove(dir); err != nil {
			return err
		}
		_ = rmdir(dir[:strings.LastIndexByte(dir, '/')]) // others may be in it
	}
	return nil
}

func (t *Tree) removeIf(match func(name string) bool) error {
	if t.mode == None {
		return nil
	}
	var errs []error
	for _, name := range t.scopes() {
		if match(name) {
			errs = append(errs, t.remove("/"+name))
		}
	}
	return errors.Join(errs...)
}

// scopes lists what is in the agent's directory, of any hierarchy, and not its leaf.
func (t *Tree) scopes() []string {
	l := children(t.dir)
	for _, dir := range t.beside {
		l = append(l, children(dir)...)
	}
	slices.Sort(l)
	return slices.DeleteFunc(slices.Compact(l), func(name string) bool { return name == leafName })
}
