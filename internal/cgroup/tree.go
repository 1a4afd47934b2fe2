// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"errors"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"
	"strings"
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
}

// Tree is one agent's subtree. It holds nothing open; all its methods may be
// called from any goroutine and block for as long as the kernel does, Remove
// and its kin up to ten seconds more.
type Tree struct {
	mode   Mode
	slice  string // directory
	dir    string // slice/<agent id>
	reason string
}

// Open finds a hierarchy and makes the agent's directory in it. That there is
// none is no error: the Tree is of mode None then.
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
	roots, reason := candidates(cfg.Root)
	for _, r := range roots {
		t := &Tree{mode: r.mode, slice: r.dir + "/" + cfg.Slice}
		t.dir = t.slice + "/" + escape(cfg.AgentID, 200)
		err := os.MkdirAll(t.dir, 0o755)
		if err == nil {
			t.enable(r.dir)
			return t, nil
		}
		reason = err.Error()
	}
	return &Tree{mode: None, reason: reason}, nil
}

// Mode says which kind of hierarchy is used.
func (t *Tree) Mode() Mode { return t.mode }

// Reason says why the mode is None.
func (t *Tree) Reason() string { return t.reason }

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
	return Make(path)
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
	return Remove(path)
}

// List returns the paths of the scopes that are there, sorted.
func (t *Tree) List() ([]string, error) {
	if t.mode == None {
		return nil, nil
	}
	l := children(t.dir)
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
// slice if no other agent uses it. For an agent that goes for good.
func (t *Tree) RemoveAll() error {
	if err := t.removeIf(func(string) bool { return true }); err != nil || t.mode == None {
		return err
	}
	if err := Remove(t.dir); err != nil {
		return err
	}
	_ = rmdir(t.slice) // others may be in it
	return nil
}

func (t *Tree) removeIf(match func(name string) bool) error {
	if t.mode == None {
		return nil
	}
	var errs []error
	for _, name := range children(t.dir) {
		if match(name) {
			errs = append(errs, Remove(t.dir+"/"+name))
		}
	}
	return errors.Join(errs...)
}
