// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// allocs makes a root with built allocs.
func allocs(t testing.TB, ids ...string) (dirs []*Dir) {
	root := t.TempDir()
	for _, id := range ids {
		d, err := New(Config{Root: root, AllocID: id})
		require.NoError(t, err)
		require.NoError(t, d.Build(t.Context()))
		dirs = append(dirs, d)
	}
	return dirs
}

// furnish puts data of every kind into an alloc.
func furnish(t testing.TB, d *Dir) {
	write := func(name, text string, mode fs.FileMode) {
		name = filepath.Join(d.Path(), name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, mode))
		require.NoError(t, os.Chtimes(name, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	write("alloc/data/db/rows", strings.Repeat("row\n", 10_000), 0o640)
	write("alloc/data/readonly/x", "x", 0o444)
	write("web/local/run.sh", "#!/bin/sh\n", 0o755)
	write("web/local/"+strings.Repeat("long", 50), "", 0o600)
	write("web/secrets/token", "secret", 0o600)
	write("side/local/own", "side", 0o644)
	write("alloc/logs/web.stdout.0", "line\n", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(d.Path(), "web/local/empty"), 0o700))
	require.NoError(t, os.Symlink("../../../nowhere", filepath.Join(d.Path(), "web/local/link")))
	require.NoError(t, os.Chmod(filepath.Join(d.Path(), "alloc/data/readonly"), 0o555))
	t.Cleanup(func() { // so that a user who is not root can remove it
		for _, root := range []string{d.Path(), filepath.Dir(d.Path())} {
			_ = filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
				if err == nil && e.IsDir() {
					_ = os.Chmod(p, 0o755)
				}
				return nil
			})
		}
	})
}

// disk lists an alloc's data: names, modes, times of files, contents.
func disk(t testing.TB, d *Dir) (l []string) {
	for _, part := range []string{"alloc/data", "web/local", "side/local"} {
		top := filepath.Join(d.Path(), part)
		err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || p == top {
				return nil
			}
			require.NoError(t, err)
			fi, err := e.Info()
			require.NoError(t, err)
			rel, _ := filepath.Rel(d.Path(), p)
			line := fmt.Sprint(rel, " ", fi.Mode())
			switch {
			case fi.Mode().IsRegular():
				data, err := os.ReadFile(p)
				require.NoError(t, err)
				line += fmt.Sprint(" ", fi.ModTime().Unix(), " ", len(data))
			case fi.Mode()&fs.ModeSymlink != 0:
				target, err := os.Readlink(p)
				require.NoError(t, err)
				line += " -> " + target
			}
			l = append(l, line)
			return nil
		})
		require.NoError(t, err)
	}
	return l
}

// A disk arrives as it was, by renaming and through a stream, and only the disk.
func TestMoveDisk(t *testing.T) {
	for name, move := range map[string]func(t *testing.T, from, to *Dir, tasks ...string){
		"rename": func(t *testing.T, from, to *Dir, tasks ...string) {
			require.NoError(t, to.TakeOver(t.Context(), []*Dir{from}, tasks))
			require.NoError(t, to.TakeOver(t.Context(), []*Dir{from}, tasks), "again")
		},
		"stream": func(t *testing.T, from, to *Dir, tasks ...string) {
			var buf bytes.Buffer
			require.NoError(t, from.Send(t.Context(), &buf, []string{"web", "side", "web", "none"}))
			require.NoError(t, to.Receive(t.Context(), &buf, tasks, DiskLimits{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := allocs(t, "old", "new")
			furnish(t, d[0])
			want := slices.DeleteFunc(disk(t, d[0]), func(l string) bool { return strings.HasPrefix(l, "side/") })
			require.Len(t, want, 8)
			move(t, d[0], d[1], "web", "fresh")
			require.Equal(t, want, disk(t, d[1]))
			_, err := os.Stat(d[1].Task("web").Secrets)
			require.ErrorIs(t, err, fs.ErrNotExist)
			logs, err := os.ReadDir(d[1].Logs())
			require.NoError(t, err)
			require.Empty(t, logs)
			_, _, err = d[1].BuildTask(t.Context(), "web", TaskOptions{})
			require.NoError(t, err)
			require.Equal(t, want, disk(t, d[1]))
			require.NoError(t, d[1].Destroy(t.Context()))
		})
	}
}

// Data that is there already is not replaced, and a link that a task left in the
// place of a directory is not followed.
func TestTakeOverRefuses(t *testing.T) {
	d := allocs(t, "old", "new")
	furnish(t, d[0])
	require.NoError(t, os.WriteFile(filepath.Join(d[1].Path(), "alloc/data/mine"), nil, 0o600))
	require.ErrorIs(t, d[1].TakeOver(t.Context(), []*Dir{d[0]}, []string{"web"}), ErrOccupied)
	require.ErrorContains(t, d[1].TakeOver(t.Context(), []*Dir{d[0]}, []string{".."}), "reserved")
	other := allocs(t, "x")
	require.ErrorContains(t, d[1].TakeOver(t.Context(), []*Dir{other[0]}, nil), "different roots")

	d = allocs(t, "old", "new")
	victim := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(victim, "f"), []byte("f"), 0o600))
	data := filepath.Join(d[0].Path(), "alloc/data")
	require.NoError(t, os.Remove(data))
	require.NoError(t, os.Symlink(victim, data))
	require.NoError(t, d[1].TakeOver(t.Context(), []*Dir{d[0]}, nil))
	require.Empty(t, disk(t, d[1]))
	var buf bytes.Buffer
	require.NoError(t, d[0].Send(t.Context(), &buf, nil))
	require.NotContains(t, buf.String(), "victim")
	require.FileExists(t, filepath.Join(victim, "f"))
}

// What has arrived whole survives a crash at any later point; what has not, never
// shows.
func TestReceiveCrash(t *testing.T) {
	d := allocs(t, "old", "new")
	furnish(t, d[0])
	want := disk(t, d[0])
	var buf bytes.Buffer
	tasks := []string{"web", "side"}
	require.NoError(t, d[0].Send(t.Context(), &buf, tasks))

	for _, cut := range []int{0, 1, 511, 512, 5000, buf.Len() / 2, buf.Len() - 1536, buf.Len() - 1025} {
		err := d[1].Receive(t.Context(), bytes.NewReader(buf.Bytes()[:cut]), tasks, DiskLimits{})
		require.Error(t, err, cut)
		require.Empty(t, disk(t, d[1]), cut)
		require.Equal(t, []string{"data", "logs", "tmp"}, names(t, d[1].Shared()))
	}
	// A crash after the last byte, with one part in its place already.
	require.NoError(t, d[1].Receive(t.Context(), bytes.NewReader(buf.Bytes()), tasks, DiskLimits{}))
	require.NoError(t, os.Mkdir(filepath.Join(d[1].Shared(), arrived), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(d[1].Shared(), arrived, "web"), 0o700))
	require.NoError(t, os.Rename(d[1].Task("web").Local, filepath.Join(d[1].Shared(), arrived, "web/local")))
	done, err := d[1].Received(t.Context(), tasks)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, want, disk(t, d[1]))
	done, err = d[1].Received(t.Context(), tasks)
	require.NoError(t, err)
	require.False(t, done)

	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	require.ErrorIs(t, d[0].Send(ctx, io.Discard, tasks), gone)
	require.ErrorIs(t, d[1].Receive(ctx, &buf, tasks, DiskLimits{}), gone)
}

func names(t testing.TB, dir string) (l []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		l = append(l, e.Name())
	}
	return l
}

// archive makes one with the entries and the end mark.
func archive(t testing.TB, entries ...tar.Header) []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range append(entries, tar.Header{Typeflag: tar.TypeReg, Name: endMark}) {
		h.Mode, h.Uid, h.Gid = 0o755, os.Getuid(), os.Getgid()
		if h.Typeflag == tar.TypeReg && h.Name != endMark {
			h.Size = 4
		}
		require.NoError(t, tw.WriteHeader(&h))
		if h.Size > 0 {
			_, err := tw.Write([]byte("evil"))
			require.NoError(t, err)
		}
	}
	require.NoError(t, tw.Close())
	return buf.Bytes()
}

// FF-034: nothing outside is made or changed, and nothing of the archive stays.
func TestReceiveHostile(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("good"), 0o600))
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	local := dir("web/local/")
	for name, c := range map[string]struct {
		entries []tar.Header
		says    string
	}{
		"dots":                   {[]tar.Header{local, file("web/local/../../../x")}, "no plain relative path"},
		"dots first":             {[]tar.Header{file("../../x")}, "no plain relative path"},
		"absolute":               {[]tar.Header{file(victim)}, "no plain relative path"},
		"empty element":          {[]tar.Header{local, file("web/local//x")}, "no plain relative path"},
		"link, then file":        {[]tar.Header{local, link("web/local/l", victim), file("web/local/l")}, "comes twice"},
		"file, then link":        {[]tar.Header{local, file("web/local/l"), link("web/local/l", victim)}, "comes twice"},
		"directory twice":        {[]tar.Header{local, dir("web/local/d"), dir("web/local/d")}, "comes twice"},
		"below a link":           {[]tar.Header{local, link("web/local/d", outside), file("web/local/d/victim")}, "no directory of the archive"},
		"link, directory, file":  {[]tar.Header{local, link("web/local/d", outside), dir("web/local/d"), file("web/local/d/victim")}, "comes twice"},
		"below a file":           {[]tar.Header{local, file("web/local/f"), file("web/local/f/x")}, "no directory of the archive"},
		"below nothing":          {[]tar.Header{local, file("web/local/a/x")}, "no directory of the archive"},
		"top is a link":          {[]tar.Header{link("web/local", outside)}, "is a symbolic link, not a directory"},
		"top is a file":          {[]tar.Header{file("alloc/data")}, "is a file, not a directory"},
		"hard link":              {[]tar.Header{local, {Typeflag: tar.TypeLink, Name: "web/local/h", Linkname: victim}}, "is a hard link"},
		"device":                 {[]tar.Header{local, {Typeflag: tar.TypeBlock, Name: "web/local/b", Devmajor: 8}}, "of kind"},
		"FIFO":                   {[]tar.Header{local, {Typeflag: tar.TypeFifo, Name: "web/local/p"}}, "of kind"},
		"secrets":                {[]tar.Header{dir("web/secrets")}, "neither below"},
		"logs":                   {[]tar.Header{dir("alloc/logs")}, "neither below"},
		"task named as reserved": {[]tar.Header{dir("ALLOC/local")}, "neither below"},
		"top alone":              {[]tar.Header{dir("web")}, "neither below"},
		"link to nothing":        {[]tar.Header{local, link("web/local/l", "")}, "link to nothing"},
		"long name":              {[]tar.Header{local, file("web/local/" + strings.Repeat("x/", 3000) + "x")}, "more than 4096 bytes"},
		"too many":               {append([]tar.Header{local}, slices.Repeat([]tar.Header{file("web/local/f")}, 12)...), ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := allocs(t, "new")[0]
			require.NoError(t, os.WriteFile(filepath.Join(d.Shared(), "tmp/mine"), nil, 0o600))
			err := d.Receive(t.Context(), bytes.NewReader(archive(t, c.entries...)), []string{"web"}, DiskLimits{Entries: 10})
			var refused *ArchiveError
			require.ErrorAs(t, err, &refused)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, disk(t, d))
			require.Equal(t, []string{"data", "logs", "tmp"}, names(t, d.Shared()))
			require.Equal(t, []string{"alloc"}, names(t, d.Path()))
			require.Equal(t, []string{"victim"}, names(t, outside))
			data, err := os.ReadFile(victim)
			require.NoError(t, err)
			require.Equal(t, "good", string(data))
		})
	}
}

// An archive is as large as it is allowed to be, and no larger.
func TestReceiveLimits(t *testing.T) {
	data := archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "alloc/data"},
		tar.Header{Typeflag: tar.TypeReg, Name: "alloc/data/a"}, tar.Header{Typeflag: tar.TypeReg, Name: "alloc/data/b"})
	for lim, says := range map[DiskLimits]string{
		{Bytes: 7}:             "more than 7 bytes",
		{Entries: 2}:           "more than 2 entries",
		{Bytes: 8, Entries: 3}: "",
	} {
		d := allocs(t, "new")[0]
		err := d.Receive(t.Context(), bytes.NewReader(data), nil, lim)
		if says == "" {
			require.NoError(t, err)
			require.Equal(t, []string{"a", "b"}, names(t, filepath.Join(d.Shared(), "data")))
			continue
		}
		require.ErrorContains(t, err, says)
	}
}

// Rights above the owner's do not travel.
func TestReceiveModes(t *testing.T) {
	d := allocs(t, "old", "new")
	f := filepath.Join(d[0].Path(), "alloc/data/su")
	require.NoError(t, os.WriteFile(f, nil, 0o700))
	require.NoError(t, os.Chmod(f, 0o755|fs.ModeSetuid|fs.ModeSetgid))
	var buf bytes.Buffer
	require.NoError(t, d[0].Send(t.Context(), &buf, nil))
	require.NoError(t, d[1].Receive(t.Context(), &buf, nil, DiskLimits{}))
	fi, err := os.Stat(filepath.Join(d[1].Path(), "alloc/data/su"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), fi.Mode())
}

// A file is put below local whole, over what is there, and never elsewhere.
func TestPutFile(t *testing.T) {
	d := allocs(t, "a")[0]
	_, _, err := d.BuildTask(t.Context(), "web", TaskOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Destroy(context.WithoutCancel(t.Context()))) }()
	local, outside := d.Task("web").Local, t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(local, "out")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "victim"), filepath.Join(local, "link")))
	put := func(name, text string) error {
		return d.PutFile(t.Context(), "web", name, []byte(text), 0o640, TaskOptions{})
	}
	for _, name := range []string{"f", "a/b/c", "f", "link"} {
		require.NoError(t, put(name, "text of "+name))
		fi, err := os.Lstat(filepath.Join(local, name))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o640), fi.Mode(), "a file also where a link was")
		data, err := os.ReadFile(filepath.Join(local, name))
		require.NoError(t, err)
		require.Equal(t, "text of "+name, string(data))
	}
	for _, name := range []string{"", ".", "..", "../f", "/etc/f", "a/../../f", "out/f", "f/below", "a//b"} {
		require.Error(t, put(name, "x"), name)
	}
	require.Empty(t, names(t, outside))
	require.Equal(t, []string{"a", "f", "link", "out"}, names(t, local))
	require.ErrorContains(t, d.PutFile(t.Context(), "..", "f", nil, 0o600, TaskOptions{}), "reserved")
}

// Each part comes from the nearest that has it, also when it was interrupted.
func TestTakeOverLine(t *testing.T) {
	d := allocs(t, "oldest", "old", "new")
	put := func(d *Dir, name string) {
		name = filepath.Join(d.Path(), name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(d.Path()), 0o600))
	}
	put(d[0], "alloc/data/stale")
	put(d[0], "web/local/f")
	put(d[1], "alloc/data/f")
	for range 2 {
		require.NoError(t, d[2].TakeOver(t.Context(), []*Dir{d[1], d[0]}, []string{"web"}))
		require.Equal(t, []string{"f"}, names(t, d[2].Shared()+"/data"))
		require.Equal(t, []string{"f"}, names(t, d[2].Task("web").Local))
	}
}

// Whatever a file may be called arrives; a tree that is too deep does not go, and
// takes no descriptors.
func TestSendNames(t *testing.T) {
	d := allocs(t, "old", "new")
	data := filepath.Join(d[0].Shared(), "data")
	for _, name := range []string{`a\b`, "\xff\xfe", "new\nline", " ", "-", "...", "ü"} {
		require.NoError(t, os.WriteFile(filepath.Join(data, name), nil, 0o600))
	}
	var buf bytes.Buffer
	require.NoError(t, d[0].Send(t.Context(), &buf, nil))
	require.NoError(t, d[1].Receive(t.Context(), &buf, nil, DiskLimits{}))
	require.Equal(t, names(t, data), names(t, filepath.Join(d[1].Shared(), "data")))

	require.NoError(t, os.MkdirAll(filepath.Join(data, strings.Repeat("d/", maxDiskDepth+2)), 0o700))
	require.ErrorContains(t, d[0].Send(t.Context(), io.Discard, nil), "directories deep")
}

// What the task's user puts in the place of local is not followed.
func TestPutFileLink(t *testing.T) {
	d := allocs(t, "a")[0]
	outside, sibling := t.TempDir(), d.Task("other").Local
	require.NoError(t, os.MkdirAll(sibling, 0o755))
	require.NoError(t, os.MkdirAll(d.Task("web").Dir, 0o755))
	for _, target := range []string{outside, sibling, "../other/local", "/"} {
		require.NoError(t, os.Symlink(target, d.Task("web").Local))
		require.ErrorIs(t, d.PutFile(t.Context(), "web", "f", nil, 0o600, TaskOptions{}), ErrNotDir)
		require.NoError(t, os.Remove(d.Task("web").Local))
	}
	require.Empty(t, names(t, outside))
	require.Empty(t, names(t, sibling))
}

// FuzzReceive: whatever comes, nothing but the disk changes, and an error leaves
// that as it was.
func FuzzReceive(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeDir, Name: "web/local"}, tar.Header{Typeflag: tar.TypeReg, Name: "web/local/f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeDir, Name: "alloc/data"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "alloc/data/l", Linkname: "/"}, tar.Header{Typeflag: tar.TypeReg, Name: "alloc/data/l/f"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := allocs(t, "new", "other")
		err := d[0].Receive(t.Context(), bytes.NewReader(data), []string{"web"}, DiskLimits{Bytes: 1 << 20, Entries: 100})
		if err != nil {
			require.Empty(t, disk(t, d[0]))
		}
		require.Equal(t, []string{"data", "logs", "tmp"}, names(t, d[0].Shared()))
		require.Empty(t, disk(t, d[1]))
		require.Equal(t, []string{"new", "other"}, names(t, filepath.Dir(d[0].Path())))
	})
}
