// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// killed is what a Rotator of the next test dies of.
type killed struct{}

// rotateUntil writes numbered lines and dies before the nth step of a rotation.
// All a Rotator does is system calls, so being dropped is all a kill does to it.
func rotateUntil(t *testing.T, dir string, step, line int) {
	r := NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 32, MaxFiles: 3})
	defer func() { require.Equal(t, killed{}, recover()) }()
	r.step = func(string) {
		if step--; step == 0 {
			panic(killed{})
		}
	}
	for ; ; line++ {
		put(t, r, fmt.Sprintf("line %03d\n", line))
	}
}

// FF-083: killed before every step of a rotation and started again, the
// collector has lost, changed and doubled no byte that was on file, and goes on
// at the highest index. (TestKilledCollector does it to a process.)
func TestKilledInRotation(t *testing.T) {
	for round := 1; round <= 14; round++ {
		dir := t.TempDir()
		next, was := 0, map[int]string{}
		for life := range 4 {
			rotateUntil(t, dir, round+life, next)
			indices, contents := files(t, dir)
			require.LessOrEqual(t, len(indices), 3)
			is := map[int]string{}
			for i, n := range indices {
				require.Equal(t, indices[0]+i, n)
				require.True(t, strings.HasPrefix(contents[i], was[n]), "file %d was %q, is %q", n, was[n], contents[i])
				is[n] = contents[i]
			}
			for n := range was { // gone are only the oldest
				_, kept := is[n]
				require.True(t, kept || n < indices[0])
			}
			// What came is numbered without gap or repetition.
			for i, l := range strings.SplitAfter(strings.Join(contents, ""), "\n") {
				var n int
				if _, err := fmt.Sscanf(l, "line %03d\n", &n); l != "" {
					require.NoError(t, err, "%q", l)
					require.True(t, i == 0 || n == next, "%d after %d", n, next-1)
					next = n + 1
				}
			}
			was = is
		}
	}
}

// What a task plants under the names of its log is passed over.
func TestPlanted(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("v"), 0o600))
	name := func(n int) string { return filepath.Join(dir, fmt.Sprintf("%s.%d", base, n)) }
	require.NoError(t, os.Symlink(victim, name(0)))
	require.NoError(t, syscall.Mkfifo(name(1), 0o600))
	require.NoError(t, os.Mkdir(name(2), 0o755))
	r := NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 16})
	put(t, r, "a\n")
	require.NoError(t, r.Close())
	b, err := os.ReadFile(name(3))
	require.NoError(t, err)
	require.Equal(t, "a\n", string(b))

	require.NoError(t, os.Link(victim, name(4)))
	r = NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 16})
	put(t, r, "b\n")
	require.NoError(t, os.Symlink(victim, name(6)))
	put(t, r, strings.Repeat("c", 15)+"\n")
	require.NoError(t, r.Close())
	b, err = os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "v", string(b))
	b, err = os.ReadFile(name(7))
	require.NoError(t, err)
	require.Contains(t, string(b), "c\n")

	// As many as there is patience for: an error, not a loop.
	for i := 8; i < 8+collisions; i++ {
		require.NoError(t, os.Symlink(victim, name(i)))
	}
	r = NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 16})
	require.NoError(t, os.Remove(name(7)))
	require.NoError(t, os.WriteFile(name(7), make([]byte, 16), 0o600))
	_, err = r.Write([]byte("d\n"))
	require.ErrorIs(t, err, fs.ErrExist)

	// A directory that is a link is none.
	link := filepath.Join(t.TempDir(), "logs")
	require.NoError(t, os.Symlink(dir, link))
	_, err = NewRotator(RotateConfig{Dir: link, Base: base}).Write([]byte("x"))
	require.ErrorContains(t, err, "is a link")
}

func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	r := NewRotator(RotateConfig{Dir: dir, Base: base, UID: 65534, GID: 65533})
	put(t, r, "x")
	require.NoError(t, r.Close())
	st, err := os.Stat(filepath.Join(dir, base+".0"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), st.Mode().Perm())
	require.EqualValues(t, 65534, st.Sys().(*syscall.Stat_t).Uid)
	require.EqualValues(t, 65533, st.Sys().(*syscall.Stat_t).Gid)
}

// tmpfs mounts a file system of that size.
func tmpfs(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("only root may mount")
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// FF-088: a full disk blocks nobody, is reported once, and what was lost is
// told in the log when there is room again.
func TestDiskFull(t *testing.T) {
	dir := tmpfs(t, "2m")
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, Create(fifo, Owner{}))
	rd, err := OpenReader(fifo)
	require.NoError(t, err)
	warnings := make(chan string, 1000)
	rot := NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 1 << 20, MaxFiles: 10})
	p := NewPump(rd, rot, func(s string) { warnings <- s })
	done := make(chan struct{})
	go func() { p.Run(); close(done) }()

	const total = 20 << 20
	w := start(t, command("write", fifo, fmt.Sprint(total), "4096"))
	w.expect(t, "ready")
	w.tell(t)
	w.expect(t, "written") // it was not blocked
	require.NoError(t, w.in.Close())
	require.NoError(t, w.Wait()) // and no signal ended it
	drain(p)
	require.Len(t, warnings, 1)
	require.Contains(t, <-warnings, "no space left")
	size := 0
	indices, contents := files(t, dir)
	for _, c := range contents {
		size += len(c)
	}
	require.Less(t, size, 3<<20)
	require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprintf("%s.%d", base, indices[0]))))
	drain(p) // tells what was lost without waiting for the next byte
	require.Regexp(t, `\n?\[nodekeep: \d+ bytes of output lost\]\n$`, log(t, dir))

	out, err := OpenWriter(fifo)
	require.NoError(t, err)
	_, err = out.Write([]byte("again\n"))
	require.NoError(t, err)
	require.NoError(t, out.Close())
	drain(p)
	text := log(t, dir)
	require.True(t, strings.HasSuffix(text, "lost]\nagain\n"))
	var lost int
	for _, l := range strings.Split(text, "\n") {
		var n int
		if _, err := fmt.Sscanf(l, "[nodekeep: %d bytes of output lost]", &n); err == nil {
			lost += n
		}
	}
	// Every byte is on file, was removed with the file, or is counted.
	require.Equal(t, total, size-notes(strings.Join(contents, ""))+lost)
	p.Close()
	<-done
	require.Empty(t, warnings)
}

// notes returns how many bytes of a log are notes about lost output.
func notes(text string) (n int) {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "[nodekeep: ") {
			n += len(l)
		}
	}
	return n
}

// A disk that fails again and again within a few bytes is one trouble.
func TestDiskFlaps(t *testing.T) {
	dir := tmpfs(t, "64k")
	r := NewRotator(RotateConfig{Dir: dir, Base: base})
	var errs int
	for range 100 {
		r.retry = time.Time{} // as if the time had passed
		if _, err := r.Write(make([]byte, 3000)); err != nil {
			errs++
		}
	}
	require.Equal(t, 1, errs)
	require.Error(t, r.Close())
}

// drain waits for Drain.
func drain(p *Pump) {
	c := make(chan struct{})
	p.Drain(func() { close(c) })
	<-c
}
