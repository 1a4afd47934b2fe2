// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package tail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/logmon"
)

const base = "web.stdout"

// write makes the files of a log: contents in order, indices from first.
func write(t testing.TB, dir string, first int, contents ...string) {
	t.Helper()
	for i, c := range contents {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", base, first+i)), []byte(c), 0o644))
	}
}

func all(t testing.TB, cfg Config) string {
	t.Helper()
	r, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

// want reads exactly what is expected from a reader that follows.
func want(t testing.TB, r *Reader, text string) {
	t.Helper()
	b := make([]byte, len(text))
	_, err := io.ReadFull(r, b)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 8, "one\ntwo\n", "three\n", "", "four\nfi", "ve\nsix")
	// What is none of the log's files is not looked at.
	write(t, dir, 100)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.stdout.x"), []byte("no"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.stdout.013"), []byte("no"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.stderr.9"), []byte("no"), 0o644))
	whole := "one\ntwo\nthree\nfour\nfive\nsix"
	for _, tt := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"whole", Config{}, whole},
		{"offset", Config{Offset: 4}, whole[4:]},
		{"offset at a file's end", Config{Offset: 8}, whole[8:]},
		{"offset in a later file", Config{Offset: 15}, whole[15:]},
		{"offset at the end", Config{Offset: int64(len(whole))}, ""},
		{"offset beyond", Config{Offset: 1000}, ""},
		{"from end 0", Config{FromEnd: true}, ""},
		{"from end", Config{FromEnd: true, Offset: 3}, "six"},
		{"from end over files", Config{FromEnd: true, Offset: 12}, whole[len(whole)-12:]},
		{"from end beyond", Config{FromEnd: true, Offset: 1000}, whole},
		{"last line without end", Config{Lines: 1}, "six"},
		{"line over two files", Config{Lines: 2}, "five\nsix"},
		{"four lines", Config{Lines: 4}, "three\nfour\nfive\nsix"},
		{"all lines", Config{Lines: 6}, whole},
		{"more lines than there are", Config{Lines: 7}, whole},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Dir, tt.cfg.Base = dir, base
			require.Equal(t, tt.want, all(t, tt.cfg))
			tt.cfg.Follow = true
			r, err := Open(within(t), tt.cfg)
			require.NoError(t, err)
			defer r.Close()
			want(t, r, tt.want)
		})
	}
}

func TestValidate(t *testing.T) {
	for text, cfg := range map[string]Config{
		"Dir is empty":           {Base: base},
		"not a file name":        {Dir: "x", Base: "a/b"},
		"Offset -1 is negative":  {Dir: "x", Base: base, Offset: -1},
		"Lines -2 is negative":   {Dir: "x", Base: base, Lines: -2},
		"excludes Offset":        {Dir: "x", Base: base, Lines: 2, Offset: 1},
		"Lines excludes Offset ": {Dir: "x", Base: base, Lines: 2, FromEnd: true},
	} {
		_, err := Open(t.Context(), cfg)
		require.ErrorContains(t, err, text)
	}
	_, err := Open(t.Context(), Config{Dir: filepath.Join(t.TempDir(), "no"), Base: base})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// FF-082: twelve files, read thirty times, are the same bytes in numeric order.
func TestOrder(t *testing.T) {
	dir := t.TempDir()
	var whole string
	for i := range 12 {
		c := strings.Repeat(fmt.Sprintf("file %d\n", i), 10+i)
		write(t, dir, i, c)
		whole += c
	}
	for i := range 30 {
		require.Equal(t, whole, all(t, Config{Dir: dir, Base: base}))
		off := 17 * i
		require.Equal(t, whole[len(whole)-off:], all(t, Config{Dir: dir, Base: base, FromEnd: true, Offset: int64(off)}))
	}
}

// FF-082: a file that is removed during a read is a clean gap.
func TestRemovedDuringRead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, "aaaa", "bbbb", "cccc", "dddd")
	for _, follow := range []bool{false, true} {
		r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: follow})
		require.NoError(t, err)
		want(t, r, "aa")
		for i := range 3 { // also the one being read
			require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprintf("%s.%d", base, i))))
		}
		want(t, r, "aadddd")
		require.EqualValues(t, 2, r.Skipped())
		require.NoError(t, r.Close())
		write(t, dir, 0, "aaaa", "bbbb", "cccc")
	}
	// All gone is the end.
	r, err := Open(within(t), Config{Dir: dir, Base: base})
	require.NoError(t, err)
	defer r.Close()
	for i := range 4 {
		require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprintf("%s.%d", base, i))))
	}
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "aaaa", string(b))
}

// Following a writer that rotates all the time yields its bytes, each once.
func TestFollowRotation(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: true}) // no file yet
	require.NoError(t, err)
	defer r.Close()
	var whole bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&whole, "line %d\n", i)
	}
	sent := make(chan error, 1)
	go func() {
		w := logmon.NewRotator(logmon.RotateConfig{Dir: dir, Base: base, MaxSize: 400, MaxFiles: 1 << 20})
		for _, l := range bytes.SplitAfter(whole.Bytes(), []byte("\n")) {
			if _, err := w.Write(l); err != nil {
				sent <- err
				return
			}
		}
		sent <- w.Close()
	}()
	want(t, r, whole.String())
	require.NoError(t, <-sent)
	require.Zero(t, r.Skipped())
}

// A reader that is slower than the writer sees gaps but never disorder.
func TestFollowSlower(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: true})
	require.NoError(t, err)
	defer r.Close()
	w := logmon.NewRotator(logmon.RotateConfig{Dir: dir, Base: base, MaxSize: 100, MaxFiles: 2})
	last, seen := -1, 0
	b := make([]byte, 64)
	var text string
	for i := range 1000 {
		_, err := fmt.Fprintf(w, "%07d\n", i)
		require.NoError(t, err)
		if i%50 != 49 {
			continue
		}
		n, err := r.Read(b)
		require.NoError(t, err)
		text += string(b[:n])
	}
	require.NoError(t, w.Close())
	for !strings.HasSuffix(text, "0000999\n") {
		n, err := r.Read(b)
		require.NoError(t, err)
		text += string(b[:n])
	}
	for l := range strings.Lines(text) {
		var n int
		_, err := fmt.Sscanf(l, "%07d\n", &n)
		require.NoError(t, err)
		require.Greater(t, n, last)
		last = n
		seen++
	}
	require.Less(t, seen, 1000)
	require.Positive(t, r.Skipped())
}

// Without Follow a reader ends where the log ended at Open.
func TestEndIsFixed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, "a\n", "b\n")
	r, err := Open(t.Context(), Config{Dir: dir, Base: base})
	require.NoError(t, err)
	defer r.Close()
	write(t, dir, 1, "b\nmore\n", "c\n")
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "a\nb\n", string(b))
}

func TestEmpty(t *testing.T) {
	dir := t.TempDir()
	require.Empty(t, all(t, Config{Dir: dir, Base: base}))
	require.Empty(t, all(t, Config{Dir: dir, Base: base, Lines: 3}))
	write(t, dir, 0, "")
	require.Empty(t, all(t, Config{Dir: dir, Base: base, Lines: 3}))
}

func TestWaitEnds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, "x")
	why := errors.New("enough")
	for name, tt := range map[string]struct {
		end  func(r *Reader, cancel context.CancelCauseFunc)
		want error
	}{
		"context": {func(_ *Reader, cancel context.CancelCauseFunc) { cancel(why) }, why},
		"close":   {func(r *Reader, _ context.CancelCauseFunc) { _ = r.Close() }, os.ErrClosed},
		"removed": {func(*Reader, context.CancelCauseFunc) { _ = os.RemoveAll(dir) }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.MkdirAll(dir, 0o755))
			write(t, dir, 0, "x")
			ctx, cancel := context.WithCancelCause(within(t))
			defer cancel(nil)
			r, err := Open(ctx, Config{Dir: dir, Base: base, Follow: true})
			require.NoError(t, err)
			defer r.Close()
			want(t, r, "x")
			got := make(chan error, 1)
			go func() {
				_, err := r.Read(make([]byte, 1))
				got <- err
			}()
			tt.end(r, cancel)
			require.ErrorIs(t, <-got, tt.want)
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, tt.want)
			require.NoError(t, r.Close())
			require.NoError(t, r.Close())
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := Open(ctx, Config{Dir: dir, Base: base})
	require.ErrorIs(t, err, why)
}

func TestEmptiedFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, "old text")
	r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: true})
	require.NoError(t, err)
	defer r.Close()
	want(t, r, "old text")
	require.NoError(t, os.Truncate(filepath.Join(dir, base+".0"), 0))
	got := make(chan string, 1)
	go func() {
		b := make([]byte, 3)
		_, _ = io.ReadFull(r, b)
		got <- string(b)
	}()
	w := logmon.NewRotator(logmon.RotateConfig{Dir: dir, Base: base})
	_, err = w.Write([]byte("new"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Equal(t, "new", <-got)
}

// FuzzPlaces compares every way to begin with the same on one string.
func FuzzPlaces(f *testing.F) {
	f.Add([]byte("one\ntwo\nthree"), uint8(3), int64(4), 2)
	f.Add([]byte("\n\n\n"), uint8(1), int64(1), 1)
	f.Fuzz(func(t *testing.T, text []byte, size uint8, off int64, n int) {
		if off < 0 || n <= 0 || len(text) > 4000 {
			return
		}
		dir := t.TempDir()
		for i, rest := 0, text; len(rest) > 0 && i < 300; i++ {
			k := min(int(size)+1, len(rest))
			if i == 299 {
				k = len(rest)
			}
			write(t, dir, i, string(rest[:k]))
			rest = rest[k:]
		}
		s, o := string(text), int(min(off, int64(len(text))))
		require.Equal(t, s[o:], all(t, Config{Dir: dir, Base: base, Offset: off}))
		require.Equal(t, s[len(s)-o:], all(t, Config{Dir: dir, Base: base, Offset: off, FromEnd: true}))
		lines := strings.SplitAfter(s, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		tail := strings.Join(lines[max(0, len(lines)-n):], "")
		require.Equal(t, tail, all(t, Config{Dir: dir, Base: base, Lines: n}))
	})
}

// What was written before Finish is read, across files, and then it ends: also
// for a reader that waits.
// A reader that goes on at the place of another neither misses nor repeats a byte,
// whatever was rotated meanwhile; what was removed is told.
func TestFromPlace(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 8, "one\ntwo\n", "three\n", "", "four\nfi", "ve\nsix")
	whole := "one\ntwo\nthree\nfour\nfive\nsix"
	r, err := Open(within(t), Config{Dir: dir, Base: base})
	require.NoError(t, err)
	defer r.Close()
	require.Equal(t, Place{8, 0}, r.Place())
	for i := range whole {
		at := r.Place()
		require.Equal(t, whole[i:], all(t, Config{Dir: dir, Base: base, From: &at}), "%d %v", i, at)
		want(t, r, whole[i:i+1])
	}
	end := r.Place()
	require.Equal(t, Place{12, 6}, end)
	require.Empty(t, all(t, Config{Dir: dir, Base: base, From: &end}))

	f, err := Open(within(t), Config{Dir: dir, Base: base, From: &end, Follow: true})
	require.NoError(t, err)
	defer f.Close()
	write(t, dir, 12, "ve\nsix\nse", "ven\n")
	want(t, f, "\nse")
	want(t, f, "ven\n")
	require.Equal(t, Place{13, 4}, f.Place())
	for _, n := range []int{8, 9, 10} {
		require.NoError(t, os.Remove(filepath.Join(dir, fmt.Sprintf("%s.%d", base, n))))
	}
	for name, tt := range map[string]struct {
		at      Place
		want    string
		skipped int64
	}{
		"in a file that was removed":     {Place{9, 2}, "four\nfive\nsix\nseven\n", 2},
		"of another log":                 {Place{15, 2}, "four\nfive\nsix\nseven\n", 0},
		"the file that comes next":       {Place{14, 0}, "", 0},
		"beyond the end of the last one": {Place{13, 99}, "", 0},
	} {
		g, err := Open(within(t), Config{Dir: dir, Base: base, From: &tt.at})
		require.NoError(t, err, name)
		b, err := io.ReadAll(g)
		require.NoError(t, err, name)
		require.Equal(t, tt.want, string(b), name)
		require.Equal(t, tt.skipped, g.Skipped(), name)
		require.NoError(t, g.Close())
	}
	empty, err := Open(within(t), Config{Dir: t.TempDir(), Base: base, From: &Place{3, 3}, Follow: true})
	require.NoError(t, err)
	require.Equal(t, Place{}, empty.Place())
	require.NoError(t, empty.Close())
	require.ErrorContains(t, Config{Dir: dir, Base: base, From: &Place{-1, 0}}.Validate(), "no place")
	require.ErrorContains(t, Config{Dir: dir, Base: base, From: &Place{}, Lines: 1}.Validate(), "From excludes")
}

func TestFinish(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 0, "one\n")
	r, err := Open(within(t), Config{Dir: dir, Base: base, Follow: true})
	require.NoError(t, err)
	defer r.Close()
	want(t, r, "one\n")
	rest := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		rest <- string(b)
	}()
	write(t, dir, 1, "two\n", "three\n")
	r.Finish()
	r.Finish()
	require.Equal(t, "two\nthree\n", <-rest)
}
