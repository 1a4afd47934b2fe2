// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/state"
	"github.com/nodekeep/nodekeep/state/statetest"
)

var root = state.Path{"v1", "agent"}

func put(s state.Store, key, val string) error {
	return s.Update(func(tx state.Tx) error { return tx.Put(root, key, []byte(val)) })
}

func get(t *testing.T, s state.Store, key string) (val string) {
	t.Helper()
	if err := s.View(func(tx state.Tx) error { val = string(tx.Get(root, key)); return nil }); err != nil {
		t.Fatal(err)
	}
	return val
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestOpenAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "state.db")
	for i := range 3 {
		s := openAt(t, path)
		if got := get(t, s, "k"); i > 0 && got != fmt.Sprint(i-1) {
			t.Errorf("got %q at %d", got, i)
		}
		if err := errors.Join(put(s, "k", fmt.Sprint(i)), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if got := files(t, dir); len(got) != 2 || got[0] != "state.db" || got[1] != "state.db.lock" {
		t.Errorf("left %q", got)
	}
	if runtime.GOOS == "windows" {
		return
	}
	for name, want := range map[string]os.FileMode{"": 0o700, "state.db": 0o600, "state.db.lock": 0o600} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v %v", name, fi.Mode(), err)
		}
	}
	// A file that is open to others is closed to them.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	var warned []string
	s, err := state.Open(state.OpenConfig{Path: path, Warn: func(msg string, _ ...any) { warned = append(warned, msg) }})
	if err != nil {
		t.Fatal(err)
	}
	if fi, _ := os.Stat(path); fi.Mode().Perm() != 0o600 || len(warned) != 1 {
		t.Error(fi.Mode(), warned)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenBadConfig(t *testing.T) {
	_, err := state.Open(state.OpenConfig{Timeout: -1})
	if err == nil || !strings.Contains(err.Error(), "Path") || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("not all faults: %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "file", "state.db"), dir} {
		s, err := state.Open(state.OpenConfig{Path: path})
		if err == nil || s != nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := files(t, dir); len(got) != 1 {
		t.Errorf("left %q", got)
	}
}

// FF-013: a second agent does not hang, says why, and does no harm.
func TestSecondAgent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	first := openAt(t, path)
	if err := put(first, "k", "v"); err != nil {
		t.Fatal(err)
	}
	refused := func(err error, after time.Duration) {
		t.Helper()
		if !errors.Is(err, state.ErrLocked) || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "another agent") || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
			t.Errorf("got %v", err)
		}
		if after > 12*time.Second { // 6 s, and what a busy machine adds
			t.Errorf("after %s", after)
		}
	}
	_, err := state.Open(state.OpenConfig{Path: path, Timeout: time.Millisecond})
	refused(err, 0)
	begun := time.Now()
	out, err := child(t, "open", path).CombinedOutput()
	if err == nil {
		t.Errorf("the other process got it: %s", out)
	}
	refused(fmt.Errorf("%w%s", state.ErrLocked, out), time.Since(begun))

	if err := put(first, "k", "w"); err != nil || get(t, first, "k") != "w" {
		t.Errorf("the first one was harmed: %v", err)
	}
	// One that waits gets it when the first closes.
	got := make(chan error, 1)
	go func() {
		s, err := state.Open(state.OpenConfig{Path: path})
		if err == nil {
			err = s.Close()
		}
		got <- err
	}()
	if err := errors.Join(first.Close(), <-got); err != nil {
		t.Error(err)
	}
	if out, err := child(t, "open", path).CombinedOutput(); err != nil {
		t.Errorf("after the first closed: %v %s", err, out)
	}
}

// Killed at any instant, what was answered is there, and the file opens.
func TestKill(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	path := filepath.Join(t.TempDir(), "state.db")
	last := 0
	for range rounds {
		cmd := child(t, "write", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, stop := bufio.NewScanner(out), rand.IntN(60)
		for i := 0; lines.Scan(); i++ {
			if last, err = strconv.Atoi(lines.Text()); err != nil {
				t.Errorf("child says %q", lines.Text())
			}
			if i == stop {
				_ = cmd.Process.Kill() // what it said before is still read
			}
		}
		_ = cmd.Wait()
		s := openAt(t, path)
		n, _ := strconv.Atoi(get(t, s, "n"))
		if n < last || n > last+1 {
			t.Errorf("answered %d, found %d", last, n)
		}
		last = n
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// child runs this test binary as another process.
func child(t *testing.T, role, path string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMain$")
	cmd.Env = append(os.Environ(), "STATE_TEST_ROLE="+role, "STATE_TEST_PATH="+path, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func TestMain(m *testing.M) {
	path := os.Getenv("STATE_TEST_PATH")
	switch os.Getenv("STATE_TEST_ROLE") {
	case "":
		os.Exit(m.Run())
	case "open":
		s, err := state.Open(state.OpenConfig{Path: path})
		if err == nil {
			err = s.Close()
		}
		exit(err)
	case "write":
		exit(writeForEver(path))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// writeForEver counts in the store and says each number once it is written.
// What lies around it is of many sizes, so that pages split, merge and are freed.
func writeForEver(path string) error {
	s, err := state.Open(state.OpenConfig{Path: path})
	if err != nil {
		return err
	}
	for {
		var n int
		err := s.Update(func(tx state.Tx) error {
			n, _ = strconv.Atoi(string(tx.Get(root, "n")))
			n++
			p := state.Path{"v1", "alloc", fmt.Sprint(n % 50)}
			err := tx.DeleteTree(p)
			if n%3 > 0 {
				err = errors.Join(err, tx.Put(p, "x", bytes.Repeat([]byte{'x'}, n*37%5000)))
			}
			return errors.Join(err, tx.Put(root, "n", []byte(strconv.Itoa(n))))
		})
		if err != nil {
			return err
		}
		fmt.Println(n)
	}
}

// Group commit: alone each update is a commit at once, together they share.
func TestGroups(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "state.db"))
	commits := s.(state.Stats).Commits
	for i := range 5 {
		if err := put(s, "k", fmt.Sprint(i)); err != nil || commits() != int64(i+1) {
			t.Fatal(err, commits())
		}
	}
	// All that call while one transaction runs share the next.
	const callers = 200
	before, entered, leave := commits(), make(chan struct{}), make(chan struct{})
	done := make(chan error, callers+1)
	go func() {
		done <- s.Update(func(tx state.Tx) error { close(entered); <-leave; return tx.Put(root, "first", nil) })
	}()
	<-entered
	for i := range callers {
		go func() { done <- put(s, fmt.Sprint("c", i), "v") }()
	}
	waitFor(t, func() bool { return blockedIn("state.(*bolt).Update") >= callers+1 })
	close(leave)
	for range callers + 1 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := commits() - before; n != 2 {
		t.Errorf("%d commits", n)
	}
	if out, err := statetest.Dump(s); err != nil || len(out) != callers+2+2 {
		t.Error(len(out), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// blockedIn counts the goroutines with a function on their stack.
func blockedIn(name string) int {
	buf := make([]byte, 8<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), name)
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
		runtime.Gosched()
	}
}

// An update that changes nothing leaves the file alone.
func TestNothingChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := openAt(t, path)
	if err := put(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := put(s, "k", "v"); err != nil {
			t.Fatal(err)
		}
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi2, err := os.Stat(path); err != nil || !fi2.ModTime().Equal(fi.ModTime()) || !bytes.Equal(old, now) {
		t.Errorf("file was written: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
