// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/logmon/internal/logdir"
)

const base = "web.stdout"

// files returns the contents of a log's files in the order of their indices.
func files(t testing.TB, dir string) (indices []int, contents []string) {
	t.Helper()
	des, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, de := range des {
		if n, ok := logdir.Index(de.Name(), base); ok {
			indices = append(indices, int(n))
		}
	}
	sort.Ints(indices)
	for _, n := range indices {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s.%d", base, n)))
		require.NoError(t, err)
		contents = append(contents, string(b))
	}
	return indices, contents
}

func log(t testing.TB, dir string) string {
	t.Helper()
	_, contents := files(t, dir)
	return strings.Join(contents, "")
}

func put(t testing.TB, r *Rotator, s string) {
	t.Helper()
	n, err := r.Write([]byte(s))
	require.NoError(t, err)
	require.Equal(t, len(s), n)
}

func TestSplit(t *testing.T) {
	const k = 1 << 10
	line := func(n int) string { return strings.Repeat("x", n-1) + "\n" }
	for _, tt := range []struct {
		name        string
		b           string
		size, limit int64
		bol         bool
		want        int
	}{
		{"far from the limit", "abc", 0, 1000 * k, true, 3},
		{"fits exactly", line(10), 90, 100, true, 10},
		{"whole lines fit", line(10) + line(10), 80, 100, true, 20},
		{"second line does not fit", line(10) + line(10), 85, 100, true, 10},
		{"a begun line that could grow too long", line(10) + "ab", 80, 100, true, 10},
		{"a begun line with a window of room", line(10) + "ab", 60, 100, true, 12},
		{"nothing fits, at a line's start", line(10), 95, 100, true, 0},
		{"nothing fits, in a line", "xx\n", 99, 100, false, 1},
		{"full", "x", 100, 100, false, 0},
		{"beyond, after limits shrank", "x", 500, 100, false, 0},
		{"giant line in an empty file", strings.Repeat("x", 150), 0, 100, true, 100},
		{"giant line after others", "ab\n" + strings.Repeat("x", 150), 0, 100, true, 100},
		{"giant line goes on", strings.Repeat("x", 30), 50, 100, false, 30},
		{"the end of a giant line", strings.Repeat("x", 30) + "\nab", 50, 100, false, 31},
		{"begun in the window", "ab", 90, 100, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, split([]byte(tt.b), tt.size, tt.limit, func(int64) bool { return tt.bol }))
		})
	}
}

// FuzzRotate: whatever is written in whatever pieces, the files put together
// are the stream, none is too large, and short lines are whole.
func FuzzRotate(f *testing.F) {
	f.Add([]byte("one\ntwo\nthree three three three three\n\n"), uint8(16), uint8(5))
	f.Add(bytes.Repeat([]byte("x"), 500), uint8(1), uint8(255))
	f.Fuzz(func(t *testing.T, stream []byte, limit, piece uint8) {
		if len(stream) > 2000 {
			return
		}
		dir := t.TempDir()
		size, step := int(limit)+1, int(piece)+1
		cfg := RotateConfig{Dir: dir, Base: base, MaxSize: int64(size), MaxFiles: 1 << 20}
		r := NewRotator(cfg)
		for i, rest := 0, stream; len(rest) > 0; i++ {
			put(t, r, string(rest[:min(step, len(rest))]))
			rest = rest[min(step, len(rest)):]
			if i%7 == 6 { // as after a crash
				require.NoError(t, r.Close())
				r = NewRotator(cfg)
			}
		}
		require.NoError(t, r.Close())
		indices, contents := files(t, dir)
		require.Equal(t, string(stream), strings.Join(contents, ""))
		window := size / 4
		for i, c := range contents {
			require.Equal(t, i, indices[i])
			require.LessOrEqual(t, len(c), size)
			if i == len(contents)-1 || strings.HasSuffix(c, "\n") {
				continue
			}
			begun := c[strings.LastIndexByte(c, '\n')+1:]
			rest := strings.Join(contents[i+1:], "")
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest) - 1
			}
			require.Greater(t, len(begun)+end+1, window, "a short line was split")
		}
	})
}

// FF-080: JSON lines are whole in every file; one larger than a file is split
// and lost by nobody.
func TestLinesStayWhole(t *testing.T) {
	dir := t.TempDir()
	r := NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 1 << 20, MaxFiles: 100})
	var whole strings.Builder
	for i := range 5000 {
		l := fmt.Sprintf("{%d %s}\n", i, strings.Repeat("x", 1000+i%50))
		if i == 2500 {
			l = "{" + strings.Repeat("g", 3<<20) + "}\n"
		}
		whole.WriteString(l)
	}
	// In the pieces a pump would read.
	for rest := whole.String(); rest != ""; {
		n := min(len(rest), 40_000)
		put(t, r, rest[:n])
		rest = rest[n:]
	}
	require.NoError(t, r.Close())
	_, contents := files(t, dir)
	require.Equal(t, whole.String(), strings.Join(contents, ""))
	broken := 0
	for _, c := range contents[:len(contents)-1] {
		require.LessOrEqual(t, len(c), 1<<20)
		require.Greater(t, len(c), 1<<20-2*lineWindow)
		if c[0] != '{' {
			broken++
		}
	}
	require.LessOrEqual(t, broken, 4) // the giant's
}

func TestFilesAppearAndGo(t *testing.T) {
	dir := t.TempDir()
	r := NewRotator(RotateConfig{Dir: dir, Base: base, MaxSize: 8, MaxFiles: 3, Mode: 0o600})
	require.Empty(t, log(t, dir))
	_, err := r.Write(nil)
	require.NoError(t, err)
	indices, _ := files(t, dir)
	require.Empty(t, indices) // made at the first byte
	for i := range 12 {
		put(t, r, fmt.Sprintf("line %02d\n", i))
	}
	indices, contents := files(t, dir)
	require.Equal(t, []int{9, 10, 11}, indices)
	require.Equal(t, []string{"line 09\n", "line 10\n", "line 11\n"}, contents)
	st, err := os.Stat(filepath.Join(dir, base+".11"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())

	// New limits hold from now on.
	r.SetLimits(16, 1)
	put(t, r, "line 12\n")
	indices, _ = files(t, dir)
	require.Equal(t, []int{9, 10, 11}, indices)
	put(t, r, "line 13\n")
	indices, contents = files(t, dir)
	require.Equal(t, []int{12}, indices)
	require.Equal(t, []string{"line 13\n"}, contents)

	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, err = r.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestContinues(t *testing.T) {
	dir := t.TempDir()
	cfg := RotateConfig{Dir: dir, Base: base, MaxSize: 64, MaxFiles: 2}
	for i := 7; i <= 10; i++ {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", base, i)), []byte(fmt.Sprintf("old %d;", i)), 0o600))
	}
	r := NewRotator(cfg)
	put(t, r, "new\n")
	indices, contents := files(t, dir)
	require.Equal(t, []int{9, 10}, indices) // the highest number, not the highest name
	require.Equal(t, "old 10;new\n", contents[1])
	require.NoError(t, r.Close())

	// A full one is not touched.
	full := strings.Repeat("f", 64)
	require.NoError(t, os.WriteFile(filepath.Join(dir, base+".11"), []byte(full), 0o600))
	r = NewRotator(cfg)
	put(t, r, "next\n")
	require.NoError(t, r.Close())
	indices, contents = files(t, dir)
	require.Equal(t, []int{11, 12}, indices)
	require.Equal(t, []string{full, "next\n"}, contents)
}

// The directory comes and goes: nothing blocks, the loss is told.
func TestDirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	r := NewRotator(RotateConfig{Dir: dir, Base: base})
	n, err := r.Write([]byte("lost\n"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "output is being lost")
	require.Equal(t, 5, n)
	n, err = r.Write([]byte("lost\n")) // told once
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.NoError(t, os.Mkdir(dir, 0o755))
	r.flush()
	require.Equal(t, "[nodekeep: 10 bytes of output lost]\n", log(t, dir))
	put(t, r, "there\n")
	require.Equal(t, "[nodekeep: 10 bytes of output lost]\nthere\n", log(t, dir))
	require.NoError(t, r.Close())

	gone := NewRotator(RotateConfig{Dir: filepath.Join(dir, "no"), Base: base})
	_, err = gone.Write([]byte("x"))
	require.Error(t, err)
	require.Error(t, gone.Close()) // the last chance to tell
}
