// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// newDir makes the directory of an alloc below a root of the test's own. It is
// destroyed, mounts and all, when the test ends.
func newDir(t testing.TB, cfg Config) *Dir {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = filepath.Join(t.TempDir(), "alloc")
	}
	if cfg.AllocID == "" {
		cfg.AllocID = "a1"
	}
	d, err := New(cfg)
	require.NoError(t, err)
	// t's own context has ended by then.
	t.Cleanup(func() { require.NoError(t, d.Destroy(context.Background())) })
	return d
}

func buildTask(t testing.TB, d *Dir, name string) (TaskDir, Report) {
	t.Helper()
	require.NoError(t, d.Build(t.Context()))
	td, rep, err := d.BuildTask(t.Context(), name, TaskOptions{})
	require.NoError(t, err)
	return td, rep
}

func TestConfigTellsAllFaults(t *testing.T) {
	_, err := New(Config{AllocID: "../x"})
	require.ErrorContains(t, err, "Config.Root")
	require.ErrorContains(t, err, "Config.AllocID")
	for _, bad := range []string{"", ".", "..", "a/b", `a\b`, "a\x00b", "alloc", "ALLOC", strings.Repeat("x", 129)} {
		_, err := New(Config{Root: t.TempDir(), AllocID: bad})
		require.Error(t, err, "%q", bad)
		d := newDir(t, Config{})
		_, _, err = d.BuildTask(t.Context(), bad, TaskOptions{})
		require.Error(t, err, "%q", bad)
	}
}

func TestPaths(t *testing.T) {
	d, err := New(Config{Root: "rel", AllocID: "a1", Private: "priv"})
	require.NoError(t, err)
	wd, err := os.Getwd()
	require.NoError(t, err)
	base := filepath.Join(wd, "rel", "a1")
	require.Equal(t, base, d.Path())
	require.Equal(t, TaskDir{
		Dir:     filepath.Join(base, "web"),
		Local:   filepath.Join(base, "web", "local"),
		Secrets: filepath.Join(base, "web", "secrets"),
		Private: filepath.Join(wd, "priv", "a1", "web"),
		Tmp:     filepath.Join(base, "web", "tmp"),
		Shared:  filepath.Join(base, "alloc"),
		Logs:    filepath.Join(base, "alloc", "logs"),
	}, d.Task("web"))
}

func TestBuildIsRepeatable(t *testing.T) {
	d := newDir(t, Config{})
	td, rep := buildTask(t, d, "web")
	require.True(t, rep.Created)
	keep := filepath.Join(td.Local, "keep")
	require.NoError(t, os.WriteFile(keep, []byte("x"), 0o600))
	token := filepath.Join(td.Secrets, "token")
	require.NoError(t, os.WriteFile(token, []byte("x"), 0o600))

	again, rep := buildTask(t, d, "web")
	require.Equal(t, td, again)
	require.False(t, rep.Created)
	require.False(t, rep.Mounted)
	require.FileExists(t, keep)
	require.FileExists(t, token)
}

// FF-018: the row in the state is there, the directory is gone, or a part of it.
func TestWhatIsMissingIsRebuilt(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	for _, gone := range []string{td.Local, td.Tmp, d.Logs(), d.Shared()} {
		require.NoError(t, os.RemoveAll(gone))
		buildTask(t, d, "web")
		require.DirExists(t, gone)
	}
	require.NoError(t, d.Destroy(t.Context()))
	// Also when nobody asked for the shared part again.
	td, rep, err := d.BuildTask(t.Context(), "web", TaskOptions{})
	require.NoError(t, err)
	require.True(t, rep.Created)
	for _, dir := range []string{td.Local, td.Secrets, td.Private, td.Tmp, td.Logs} {
		require.DirExists(t, dir)
	}
}

// FF-018: the directory is there, the row is gone.
func TestListFindsLeftovers(t *testing.T) {
	root := filepath.Join(t.TempDir(), "allocs")
	ids, err := List(root)
	require.NoError(t, err)
	require.Empty(t, ids)
	for _, id := range []string{"b", "a"} {
		buildTask(t, newDir(t, Config{Root: root, AllocID: id}), "web")
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	ids, err = List(root)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, ids)

	left, err := New(Config{Root: root, AllocID: "a"})
	require.NoError(t, err)
	require.NoError(t, left.Destroy(t.Context()))
	ids, err = List(root)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, ids)
}

func TestDestroyIsRepeatable(t *testing.T) {
	private := filepath.Join(t.TempDir(), "private")
	d := newDir(t, Config{Private: private})
	require.NoError(t, d.Destroy(t.Context()), "nothing is there")
	td, _ := buildTask(t, d, "web")
	require.NoError(t, os.MkdirAll(filepath.Join(td.Local, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(td.Private, "token"), nil, 0o600))
	for range 2 {
		require.NoError(t, d.Destroy(t.Context()))
		require.NoDirExists(t, d.Path())
		require.NoDirExists(t, filepath.Dir(td.Private))
	}
}

func TestEndedContext(t *testing.T) {
	d := newDir(t, Config{})
	buildTask(t, d, "web")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, d.Build(ctx), context.Canceled)
	_, _, err := d.BuildTask(ctx, "web", TaskOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, d.Destroy(ctx), context.Canceled)
	require.DirExists(t, d.Path())
}

// Something else in the place of a directory is told, never followed or removed.
func TestWrongThingInTheWay(t *testing.T) {
	victim := t.TempDir()
	require.NoError(t, os.Chmod(victim, 0o500))
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	for _, dir := range []string{td.Local, td.Tmp} {
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.Symlink(victim, dir))
		_, _, err := d.BuildTask(t.Context(), "web", TaskOptions{})
		require.ErrorIs(t, err, ErrNotDir)
		require.ErrorContains(t, err, dir)
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
		_, _, err = d.BuildTask(t.Context(), "web", TaskOptions{})
		require.ErrorIs(t, err, ErrNotDir)
		require.NoError(t, os.Remove(dir))
	}
	fi, err := os.Stat(victim)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o500), fi.Mode().Perm())
}

func TestReading(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	put := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	link := func(target, path string) { require.NoError(t, os.Symlink(target, path)) }
	outside := filepath.Join(t.TempDir(), "outside")
	put(outside, "outside")
	put(filepath.Join(td.Secrets, "token"), "hush")
	put(filepath.Join(td.Private, "token"), "hush")
	put(filepath.Join(td.Local, "releases", "5", "conf"), "five")
	put(filepath.Join(d.Logs(), "web.stdout.0"), "log")
	put(filepath.Join(d.Shared(), "secrets", "s"), "the alloc's own, not secret")
	put(filepath.Join(td.Local, "secrets", "s"), "not secret either")
	link("releases/5", filepath.Join(td.Local, "current"))
	link("../secrets/token", filepath.Join(td.Local, "steal"))
	link("../secrets", filepath.Join(td.Local, "vault"))
	link("vault", filepath.Join(td.Local, "vault2"))
	link(outside, filepath.Join(td.Local, "abs"))
	link("../../../outside", filepath.Join(td.Local, "up"))
	link("loop", filepath.Join(td.Local, "loop"))
	link("gone", filepath.Join(td.Local, "dangling"))
	link("../../alloc/logs/web.stdout.0", filepath.Join(td.Local, "log"))

	for name, want := range map[string]string{
		"web/local/releases/5/conf":          "five",
		"/web/local/current/conf":            "five",
		"web/./local//current/../5/conf":     "five",
		"web/local/current/../../log":        "log",
		"alloc/logs/web.stdout.0":            "log",
		"alloc/secrets/s":                    "the alloc's own, not secret",
		"web/local/secrets/s":                "not secret either",
		"web/../alloc/logs/web.stdout.0":     "log",
		"web/local/../../web/local/log":      "log",
		"web/local/releases/../current/conf": "five",
	} {
		f, err := d.Open(name)
		require.NoError(t, err, name)
		got, err := io.ReadAll(f)
		require.NoError(t, err)
		require.Equal(t, want, string(got), name)
		require.NoError(t, f.Close())
		fi, err := d.Stat(name)
		require.NoError(t, err)
		require.Equal(t, int64(len(want)), fi.Size())
	}
	for name, want := range map[string]error{
		"web/secrets":            ErrSecret,
		"web/secrets/token":      ErrSecret,
		"web/Secrets/token":      ErrSecret,
		"web/private/token":      ErrSecret,
		"web/local/steal":        ErrSecret,
		"web/local/vault/token":  ErrSecret,
		"web/local/vault2":       ErrSecret,
		"web/local/../secrets/x": ErrSecret,
		"web/local":              ErrNotFile,
		"":                       ErrNotFile,
		"web/local/log/x":        ErrNotDir,
		"web/local/abs":          fs.ErrPermission,
		"web/local/up":           fs.ErrPermission,
		"../outside":             fs.ErrPermission,
		"web/../../outside":      fs.ErrPermission,
		"web/local/dangling":     fs.ErrNotExist,
		"nothing":                fs.ErrNotExist,
		"web/local/x\x00y":       fs.ErrInvalid,
		`web\local`:              fs.ErrInvalid,
	} {
		_, err := d.Open(name)
		require.ErrorIs(t, err, want, name)
	}
	_, err := d.Open("web/local/loop")
	require.ErrorContains(t, err, "links")
}

func TestReadDir(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	require.NoError(t, os.WriteFile(filepath.Join(td.Local, "b"), []byte("12"), 0o600))
	require.NoError(t, os.Symlink("/", filepath.Join(td.Local, "a")))

	infos, err := d.ReadDir("")
	require.NoError(t, err)
	require.Equal(t, []string{"alloc", "web"}, fileNames(infos))
	infos, err = d.ReadDir("web/local")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, fileNames(infos))
	require.NotZero(t, infos[0].Mode()&fs.ModeSymlink)
	require.EqualValues(t, 2, infos[1].Size())

	for name, want := range map[string]error{
		"web/secrets": ErrSecret, "web/private": ErrSecret, "web/local/b": ErrNotDir, "web/local/a": fs.ErrPermission,
	} {
		_, err := d.ReadDir(name)
		require.ErrorIs(t, err, want, name)
	}
}

func fileNames(infos []fs.FileInfo) (names []string) {
	for _, fi := range infos {
		names = append(names, fi.Name())
	}
	return names
}
