// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginproc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

func testLogger(b *bytes.Buffer) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: b, DisableTime: true})
}

// Each line gets the level it asks for.
func TestLines(t *testing.T) {
	for in, want := range map[string]string{
		`{"@level":"warn","@message":"hot","@module":"m","@timestamp":"now","@caller":"x.go:1","n":5,"deep":{"a":[1]}}`: "[WARN]  hot: @module=m timestamp=now deep=\"{\\\"a\\\":[1]}\" n=5",
		`{"@level":"loud","@message":"x"}`:     `[DEBUG] {"@level":"loud","@message":"x"}`,
		`{"no":"level"}`:                       `[DEBUG] {"no":"level"}`,
		`{broken`:                              `[DEBUG] {broken`,
		`[INFO] old style`:                     `[INFO]  [INFO] old style`,
		`[ERROR] x`:                            `[ERROR] [ERROR] x`,
		`[TRACE] x`:                            `[TRACE] [TRACE] x`,
		`[DEBUG] x`:                            `[DEBUG] [DEBUG] x`,
		`[WARN] x`:                             `[WARN]  [WARN] x`,
		`plain`:                                `[DEBUG] plain`,
		"":                                     "",
		"panic: oh\n\ngoroutine 1 [running]:":  "[ERROR] panic: oh\n[ERROR]\n[ERROR] goroutine 1 [running]:",
		"fatal error: x\nmore\n[INFO] and yet": "[ERROR] fatal error: x\n[ERROR] more\n[INFO]  [INFO] and yet",
		"\xff\xfe":                             "[DEBUG] \uFFFD",
	} {
		var out bytes.Buffer
		l := lines{log: testLogger(&out)}
		for line := range strings.SplitSeq(in, "\n") {
			l.line([]byte(line), false)
		}
		got := strings.ReplaceAll(strings.TrimSuffix(out.String(), "\n"), "[ERROR] \n", "[ERROR]\n")
		require.Equal(t, want, got, in)
	}
}

// Whatever a plugin writes is read once, whoever reads; what was read is freed.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	file, err := os.OpenFile(filepath.Join(dir, stderrName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	write := func(s string) {
		_, err := file.WriteString(s)
		require.NoError(t, err)
	}
	read := func() string {
		var out bytes.Buffer
		f, err := follow(dir, testLogger(&out))
		require.NoError(t, err)
		f.close(true)
		f.close(true)
		return out.String()
	}
	write("one\ntwo\nthr")
	require.Equal(t, "[DEBUG] one\n[DEBUG] two\n", read(), "half a line is not one")
	write("ee\n")
	require.Equal(t, "[DEBUG] three\n", read())
	long := strings.Repeat("x", 3*maxLine)
	write(long + "\nshort\n")
	got := read()
	require.Equal(t, 3*maxLine, strings.Count(got, "x"))
	require.True(t, strings.HasSuffix(got, "[DEBUG] short\n"))

	line := strings.Repeat("y", 999) + "\n"
	write(strings.Repeat(line, 2000))
	require.Equal(t, 2000, strings.Count(read(), "y\n"))
	st, err := file.Stat()
	require.NoError(t, err)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		require.Less(t, sys.Blocks*512, int64(cutAt), "what was read is freed")
	}
	write(strings.Repeat(line, 2*maxBehind/1000))
	got = read()
	require.Contains(t, got, "logs faster than anyone reads")
	require.Less(t, len(got), 2*cutAt)
	write("last\n")
	require.Equal(t, "[DEBUG] last\n", read())

	require.NoError(t, os.WriteFile(filepath.Join(dir, posName), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), 0o600))
	require.NotPanics(t, func() { read() }, "a position that cannot be")
	_, err = follow(t.TempDir(), testLogger(&bytes.Buffer{}))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A process that has another's number is never touched.
func TestIdentity(t *testing.T) {
	own := os.Getpid()
	start, boot, err := identify(own)
	require.NoError(t, err)
	for _, rec := range []Record{{}, {Pid: -1}, {Pid: own}, {Pid: own, Start: start + 1, BootID: boot}, {Pid: own, Start: start, BootID: "other"}, {Pid: 1 << 30, Start: 1, BootID: boot}} {
		_, err := find(rec, nil)
		require.ErrorIs(t, err, ErrStale, "%+v", rec)
		rec.Dir = filepath.Join(t.TempDir(), "d")
		require.NoError(t, os.Mkdir(rec.Dir, 0o700))
		require.NoError(t, Remove(rec), "which would have ended us")
		require.NoDirExists(t, rec.Dir)
		_, err = Reattach(t.Context(), rec, nil)
		require.ErrorIs(t, err, ErrStale)
	}
}

func TestSweep(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, Sweep(filepath.Join(root, "none"), nil))
	for i, content := range []string{"", "{", `{"Pid":1}`, `{"Pid":1}`} {
		dir := filepath.Join(root, fmt.Sprint(i))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, processName), []byte(content), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "other"), 0o700))
	require.NoError(t, Sweep(root, []Record{{Dir: filepath.Join(root, "3")}}))
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, left, 2)
	require.Equal(t, "3", left[0].Name())
	require.Equal(t, "other", left[1].Name())
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"@level":"info","@message":"x","a":{"b":[1,2,{"c":null}]}}`))
	f.Add([]byte("panic: x\ny\n\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		l := lines{log: testLogger(&out)}
		for i, line := range bytes.Split(b, []byte("\n")) {
			l.line(line, i%7 == 3)
		}
	})
}
