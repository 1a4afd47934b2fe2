// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const nobody = 65534

// needMount skips where this process may not mount (a plain user, a sandbox).
func needMount(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	require.NoError(t, unix.Unmount(dir, 0))
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
}

// mounts returns the options of each mount at or below dir, by path.
func mounts(t testing.TB, dir string) map[string][]string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	require.NoError(t, err)
	defer f.Close()
	found := map[string][]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		c := strings.Fields(s.Text())
		if path := unescape(c[1]); path == dir || strings.HasPrefix(path, dir+"/") {
			found[path] = append(found[path], c[2]+" "+c[3])
		}
	}
	return found
}

// asUser runs fn on a thread of its own with the credentials of an ordinary user.
func asUser(t testing.TB, uid int, fn func()) {
	t.Helper()
	needRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		if e == 0 {
			_, _, e = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid))
		}
		if e == 0 {
			_, _, e = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		}
		if e != 0 {
			done <- e
			return
		}
		fn()
		done <- nil
	}()
	require.NoError(t, <-done)
	// Giving up root marks the whole process; make it debuggable again.
	require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
}

// openTemp is a temporary directory that every user can reach.
func openTemp(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "allocdir")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func modeOf(t testing.TB, path string) (mode fs.FileMode, uid int) {
	t.Helper()
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	return fi.Mode() & (fs.ModePerm | fs.ModeSticky), int(fi.Sys().(*syscall.Stat_t).Uid)
}

// FF-037: the same modes whatever the umask, and a plain user can work with them.
func TestModesDoNotDependOnUmask(t *testing.T) {
	needRoot(t)
	for _, mask := range []int{0, 0o022, 0o077, 0o777} {
		t.Run(fmt.Sprintf("%03o", mask), func(t *testing.T) {
			tmp := openTemp(t)
			private := filepath.Join(tmp, "private")
			d := newDir(t, Config{Root: filepath.Join(tmp, "root"), Private: private})
			old := syscall.Umask(mask)
			err := d.Build(t.Context())
			td, _, err2 := d.BuildTask(t.Context(), "web", TaskOptions{UID: nobody, GID: nobody})
			syscall.Umask(old)
			require.NoError(t, err)
			require.NoError(t, err2)
			me := os.Getuid()
			for path, want := range map[string]struct {
				mode fs.FileMode
				uid  int
			}{
				filepath.Dir(d.Path()):            {0o711, me},
				d.Path():                          {0o755, me},
				d.Shared():                        {0o755, me},
				d.Logs():                          {0o777 | fs.ModeSticky, me},
				filepath.Join(d.Shared(), "data"): {0o777, me},
				filepath.Join(d.Shared(), "tmp"):  {0o777 | fs.ModeSticky, me},
				td.Dir:                            {0o755, nobody},
				td.Local:                          {0o700, nobody},
				td.Tmp:                            {0o777 | fs.ModeSticky, nobody},
				td.Secrets:                        {0o700, nobody},
				td.Private:                        {0o700, me},
				private:                           {0o700, me},
			} {
				mode, uid := modeOf(t, path)
				require.Equal(t, want.mode, mode, path)
				require.Equal(t, want.uid, uid, path)
			}
			var errs []error
			asUser(t, nobody, func() {
				for _, dir := range []string{td.Local, td.Tmp, td.Secrets, d.Logs(), filepath.Join(d.Shared(), "data")} {
					name := filepath.Join(dir, "f")
					errs = append(errs, os.WriteFile(name, []byte("x"), 0o600))
					_, err := os.ReadFile(name)
					errs = append(errs, err)
				}
			})
			for _, err := range errs {
				require.NoError(t, err)
			}
			var stranger error
			asUser(t, nobody-1, func() { _, stranger = os.ReadDir(td.Secrets) })
			require.ErrorIs(t, stranger, fs.ErrPermission)
		})
	}
}

func TestModesAreRepaired(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	dirs := []string{d.Path(), d.Shared(), d.Logs(), td.Dir, td.Local, td.Tmp, td.Secrets, td.Private}
	want := map[string]fs.FileMode{}
	for _, dir := range dirs {
		want[dir], _ = modeOf(t, dir)
		require.NoError(t, os.Chmod(dir, 0o700|fs.ModeSetgid))
	}
	buildTask(t, d, "web")
	for _, dir := range dirs {
		mode, _ := modeOf(t, dir)
		require.Equal(t, want[dir], mode, dir)
	}
}

// FF-036: nothing is looked up by name; many at once are no trouble.
func TestManyAtOnce(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	var wg sync.WaitGroup
	for i := range 100 {
		d := newDir(t, Config{Root: root, AllocID: fmt.Sprint("a", i)})
		wg.Go(func() {
			for _, task := range []string{"web", "db"} {
				if _, _, err := d.BuildTask(t.Context(), task, TaskOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ids, err := List(root)
	require.NoError(t, err)
	require.Len(t, ids, 100)
}

func TestUnknownUserCanWriteEverywhere(t *testing.T) {
	tmp := openTemp(t)
	d := newDir(t, Config{Root: filepath.Join(tmp, "root")})
	td, _, err := d.BuildTask(t.Context(), "web", TaskOptions{UID: -1, GID: -1})
	require.NoError(t, err)
	for _, dir := range []string{td.Dir, td.Local, td.Secrets} {
		mode, _ := modeOf(t, dir)
		require.Equal(t, fs.FileMode(0o777), mode, dir)
	}
}

// FF-019: a tmpfs that went (a reboot) is back before anything is written, with
// the same options, and none is ever stacked.
func TestSecretsAreRemountedAndNeverStacked(t *testing.T) {
	needMount(t)
	private := filepath.Join(t.TempDir(), "private")
	require.NoError(t, MountPrivate(t.Context(), private, 0))
	t.Cleanup(func() { _ = unix.Unmount(private, 0) })
	root := filepath.Join(t.TempDir(), "root")
	var td TaskDir
	var before map[string][]string
	for range 3 { // three agents, one after the other
		require.NoError(t, MountPrivate(t.Context(), private, 0))
		td, _ = buildTask(t, newDir(t, Config{Root: root, Private: private}), "web")
		before = mounts(t, root)
	}
	require.Len(t, before, 1)
	require.Len(t, before[td.Secrets], 1)
	for _, opt := range []string{"tmpfs ", "nosuid", "nodev", "noexec", "size=1024k", "mode=700"} {
		require.Contains(t, before[td.Secrets][0], opt)
	}
	require.Len(t, mounts(t, private)[private], 1)
	require.Contains(t, mounts(t, private)[private][0], "noexec")

	require.NoError(t, os.WriteFile(filepath.Join(td.Private, "token"), nil, 0o600))
	require.NoError(t, unix.Unmount(td.Secrets, 0))
	require.NoError(t, unix.Unmount(private, 0))
	leaked := filepath.Join(td.Secrets, "sub", "leaked")
	require.NoError(t, os.MkdirAll(filepath.Dir(leaked), 0o700))
	require.NoError(t, os.WriteFile(leaked, []byte("hush"), 0o600))

	require.NoError(t, MountPrivate(t.Context(), private, 0))
	td, rep := buildTask(t, newDir(t, Config{Root: root, Private: private}), "web")
	require.True(t, rep.Mounted)
	require.True(t, rep.SecretsTmpfs)
	require.True(t, rep.PrivateTmpfs)
	require.Empty(t, rep.Weaker)
	require.Equal(t, before, mounts(t, root))
	require.DirExists(t, td.Private)

	// What was written while the tmpfs was away is not on the disk any more.
	require.NoError(t, unix.Unmount(td.Secrets, 0))
	require.NoFileExists(t, leaked)
}

func TestSecretsFollowTheOptions(t *testing.T) {
	needMount(t)
	d := newDir(t, Config{})
	build := func(o TaskOptions) TaskDir {
		td, _, err := d.BuildTask(t.Context(), "web", o)
		require.NoError(t, err)
		return td
	}
	td := build(TaskOptions{SecretsMB: 2})
	require.NoError(t, os.WriteFile(filepath.Join(td.Secrets, "keep"), nil, 0o600))
	require.Contains(t, mounts(t, td.Secrets)[td.Secrets][0], "size=2048k")
	require.Error(t, os.WriteFile(filepath.Join(td.Secrets, "big"), make([]byte, 3<<20), 0o600))
	require.NoError(t, os.Remove(filepath.Join(td.Secrets, "big")))

	build(TaskOptions{SecretsMB: 4, UID: nobody, GID: nobody})
	require.Len(t, mounts(t, td.Secrets)[td.Secrets], 1)
	require.Contains(t, mounts(t, td.Secrets)[td.Secrets][0], "size=4096k")
	mode, uid := modeOf(t, td.Secrets)
	require.Equal(t, fs.FileMode(0o700), mode)
	require.Equal(t, nobody, uid)

	// Flags that somebody took away come back.
	require.NoError(t, unix.Mount("", td.Secrets, "", unix.MS_REMOUNT, "size=4m"))
	build(TaskOptions{SecretsMB: 4, UID: nobody, GID: nobody})
	require.Contains(t, mounts(t, td.Secrets)[td.Secrets][0], "noexec")
	require.FileExists(t, filepath.Join(td.Secrets, "keep"))
	require.Error(t, os.WriteFile(filepath.Join(td.Secrets, "big"), make([]byte, 5<<20), 0o600))
	for i := range 5000 { // empty files are bounded too
		f, err := os.Create(filepath.Join(td.Secrets, fmt.Sprint(i)))
		if err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return
		}
		f.Close()
	}
	t.Fatal("5,000 files fitted into 4 MiB of secrets")
}

// Something foreign on the secrets directory is neither used nor emptied.
func TestForeignMountOnSecrets(t *testing.T) {
	needMount(t)
	host := t.TempDir()
	file := filepath.Join(host, "file")
	require.NoError(t, os.WriteFile(file, []byte("host"), 0o600))
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	require.NoError(t, unix.Unmount(td.Secrets, 0))
	require.NoError(t, unix.Mount(host, td.Secrets, "", unix.MS_BIND, ""))
	_, _, err := d.BuildTask(t.Context(), "web", TaskOptions{})
	require.ErrorContains(t, err, "no tmpfs")
	require.NoError(t, d.Destroy(t.Context()))
	require.FileExists(t, file)
}

// FF-020: nothing is left; a busy one is told and goes at the next try; the files
// behind a mount survive.
func TestDestroyLeavesNothing(t *testing.T) {
	needMount(t)
	root := filepath.Join(t.TempDir(), "root")
	host := t.TempDir()
	hostFile := filepath.Join(host, "file")
	require.NoError(t, os.WriteFile(hostFile, []byte("host"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(host, "sub"), 0o700))

	var dirs []*Dir
	for i := range 20 {
		d := newDir(t, Config{Root: root, AllocID: fmt.Sprint("a", i)})
		buildTask(t, d, "web")
		buildTask(t, d, "db")
		dirs = append(dirs, d)
	}
	busyDir := dirs[7].Task("db").Secrets
	sleep := exec.Command("sleep", "1000")
	sleep.Dir = busyDir
	require.NoError(t, sleep.Start())
	stop := sync.OnceFunc(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	t.Cleanup(stop)

	// Mounts that others made: a directory, stacked three times; one inside
	// another; a single file.
	bind := func(from, to string) { require.NoError(t, unix.Mount(from, to, "", unix.MS_BIND, "")) }
	td := dirs[3].Task("web")
	vol, file := filepath.Join(td.Local, "vol ume"), filepath.Join(td.Local, "resolv.conf")
	require.NoError(t, os.Mkdir(vol, 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	bind(host, vol)
	bind(host, vol)
	bind(host, vol)
	bind(host, filepath.Join(vol, "sub"))
	bind(hostFile, file)
	// And one that is not ours, beside the allocs.
	beside := filepath.Join(root, "a33")
	require.NoError(t, os.Mkdir(beside, 0o700))
	bind(host, beside)
	defer unix.Unmount(beside, 0)

	for i, d := range dirs {
		err := d.Destroy(t.Context())
		if i == 7 {
			require.ErrorIs(t, err, ErrBusy)
			require.ErrorContains(t, err, busyDir)
			require.ErrorIs(t, d.Destroy(t.Context()), ErrBusy)
			continue
		}
		require.NoError(t, err)
	}
	ids, err := List(root)
	require.NoError(t, err)
	require.Equal(t, []string{"a33", "a7"}, ids)
	stop()
	require.NoError(t, dirs[7].Destroy(t.Context()))
	require.FileExists(t, hostFile)
	require.DirExists(t, filepath.Join(host, "sub"))
	left := mounts(t, root)
	delete(left, beside)
	require.Empty(t, left)
}

func TestDestroyOfHostileTrees(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("host"), 0o600))
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")

	require.NoError(t, os.Symlink(filepath.Dir(victim), filepath.Join(td.Local, "link")))
	require.NoError(t, os.Link(victim, filepath.Join(td.Local, "hard")))
	require.NoError(t, unix.Mkfifo(filepath.Join(td.Local, "fifo"), 0o600))
	for i := range 1100 { // more than one reading shows
		require.NoError(t, os.WriteFile(filepath.Join(td.Tmp, fmt.Sprint(i)), nil, 0o600))
	}
	for i := range 2 { // two chains, far deeper than what is open at once
		at, err := unix.Open(td.Local, unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		name := fmt.Sprint("chain", i)
		for range 400 {
			require.NoError(t, unix.Mkdirat(at, name, 0o700))
			next, err := unix.Openat(at, name, unix.O_DIRECTORY, 0)
			require.NoError(t, err)
			unix.Close(at)
			at, name = next, "deeper"
		}
		unix.Close(at)
	}
	require.NoError(t, os.MkdirAll(filepath.Join(d.Path(), ".nodekeep-removing-1", "x"), 0o700))
	require.NoError(t, d.Destroy(t.Context()))
	require.NoDirExists(t, d.Path())
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "host", string(text))
}

// Where the process is not root the tree is there all the same, and Report says
// what is weaker.
func TestAsPlainUser(t *testing.T) {
	tmp := openTemp(t)
	require.NoError(t, os.Chmod(tmp, 0o777))
	private := filepath.Join(tmp, "private")
	var privateErr, buildErr, strangerErr, destroyErr error
	var rep, same, foreign Report
	asUser(t, nobody, func() {
		d, err := New(Config{Root: filepath.Join(tmp, "root"), AllocID: "a1", Private: private})
		if buildErr = err; err != nil {
			return
		}
		privateErr = MountPrivate(t.Context(), private, 0)
		var td TaskDir
		if td, rep, buildErr = d.BuildTask(t.Context(), "web", TaskOptions{UID: nobody, GID: nobody}); buildErr != nil {
			return
		}
		_, foreign, strangerErr = d.BuildTask(t.Context(), "db", TaskOptions{UID: 1, GID: 1})
		if _, same, buildErr = d.BuildTask(t.Context(), "same", TaskOptions{}); buildErr != nil {
			return
		}
		kept := filepath.Join(td.Secrets, "token")
		if buildErr = os.WriteFile(kept, nil, 0o600); buildErr == nil {
			_, _, buildErr = d.BuildTask(t.Context(), "web", TaskOptions{})
		}
		if _, err := os.Stat(kept); err != nil || buildErr != nil {
			buildErr = errors.Join(buildErr, err)
			return
		}
		closed := filepath.Join(td.Local, "closed")
		buildErr = os.Mkdir(closed, 0o700)
		if buildErr == nil {
			buildErr = os.WriteFile(filepath.Join(closed, "f"), nil, 0o400)
		}
		for _, dir := range []string{closed, td.Local} {
			if err := os.Chmod(dir, 0); err != nil {
				buildErr = err
			}
		}
		destroyErr = d.Destroy(t.Context())
	})
	require.ErrorIs(t, privateErr, ErrOnDisk)
	require.NoError(t, buildErr)
	require.NoError(t, strangerErr)
	require.NoError(t, destroyErr)
	require.False(t, rep.SecretsTmpfs)
	require.False(t, rep.PrivateTmpfs)
	require.Len(t, rep.Weaker, 2)
	require.Equal(t, rep, same)
	require.Len(t, foreign.Weaker, 3)
	require.Contains(t, foreign.Weaker[0], "uid 65534 instead of 1")
	require.NoDirExists(t, filepath.Join(tmp, "root", "a1"))
}

func TestMountPrivate(t *testing.T) {
	needMount(t)
	dir := filepath.Join(t.TempDir(), "a", "private")
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	require.NoError(t, UnmountPrivate(t.Context(), dir), "not there")
	require.NoError(t, MountPrivate(t.Context(), dir, 8))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), nil, 0o600))
	require.NoError(t, MountPrivate(t.Context(), dir, 16))
	require.FileExists(t, filepath.Join(dir, "token"))
	require.Len(t, mounts(t, dir)[dir], 1)
	require.Contains(t, mounts(t, dir)[dir][0], "size=16384k")
	mode, _ := modeOf(t, dir)
	require.Equal(t, fs.FileMode(0o700), mode)

	f, err := os.Open(filepath.Join(dir, "token"))
	require.NoError(t, err)
	require.ErrorIs(t, UnmountPrivate(t.Context(), dir), ErrBusy)
	require.NoError(t, f.Close())
	require.NoError(t, UnmountPrivate(t.Context(), dir))
	require.NoDirExists(t, dir)
	require.Empty(t, mounts(t, dir))
}

// A task that swaps files under a reader never gets a secret read or a reader hung.
func TestReadingBesideASwap(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	require.NoError(t, os.WriteFile(filepath.Join(td.Secrets, "token"), []byte("hush"), 0o600))
	open := filepath.Join(td.Local, "open")
	names := []string{"file", "link", "fifo", "dir", "dirlink"}
	put := func(kind string) {
		path := filepath.Join(td.Local, kind)
		var err error
		switch kind {
		case "file":
			err = os.WriteFile(path, []byte("open"), 0o600)
		case "link":
			err = os.Symlink("../secrets/token", path)
		case "fifo":
			err = unix.Mkfifo(path, 0o600)
		case "dir":
			if err = os.Mkdir(path, 0o700); err == nil {
				err = os.WriteFile(filepath.Join(path, "token"), []byte("open"), 0o600)
			}
		case "dirlink":
			err = os.Symlink("../secrets", path)
		}
		require.NoError(t, err)
	}
	for _, n := range names {
		put(n)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			n := filepath.Join(td.Local, names[i%len(names)])
			_ = os.Rename(n, open)
			_ = os.Rename(open, n)
		}
	})
	for range 1000 {
		for _, name := range []string{"web/local/open", "web/local/open/token"} {
			f, err := d.Open(name)
			if err != nil {
				continue
			}
			b := make([]byte, 8)
			n, _ := f.Read(b)
			if string(b[:n]) == "hush" {
				t.Error("a secret was read through " + name)
			}
			f.Close()
		}
	}
	close(stop)
	wg.Wait()
}

func TestReadingAFIFO(t *testing.T) {
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	require.NoError(t, unix.Mkfifo(filepath.Join(td.Local, "fifo"), 0o600))
	_, err := d.Open("web/local/fifo")
	require.ErrorIs(t, err, ErrNotFile)
}

// The older kernels' way of seeing mounts agrees with the newer one.
func TestOlderKernels(t *testing.T) {
	needMount(t)
	d := newDir(t, Config{})
	td, _ := buildTask(t, d, "web")
	task, err := openRoot(td.Dir, 0)
	require.NoError(t, err)
	defer task.close()
	for name, want := range map[string]error{
		secretsName: unix.EXDEV, localName: nil, "none": unix.ENOENT,
	} {
		for _, open := range []func(int, string) (int, error){openHere, openCompared} {
			fd, err := open(task.fd, name)
			require.Equal(t, want, err, name)
			if err == nil {
				unix.Close(fd)
			}
		}
	}
	id, err := fdinfoMount(task.fd)
	require.NoError(t, err)
	require.Equal(t, task.st.Mnt_id, id)
	_, err = parseMountID([]byte("pos:\t0\n"))
	require.ErrorIs(t, err, errNoMountID)
}

func TestMountsBelow(t *testing.T) {
	const info = `22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
30 22 0:1 / /d/a\040b rw - tmpfs tmpfs rw
31 30 0:2 / /d/a\040b/x rw - tmpfs tmpfs rw
32 31 0:3 / /d/a\040b/x/y\134 rw - tmpfs tmpfs rw
33 22 0:4 / /d/a\040bc/x rw - tmpfs tmpfs rw
broken
`
	require.Equal(t, []string{`x/y\`, "x"}, mountsBelow([]byte(info), "/d/a b"))
}

func FuzzMountsBelow(f *testing.F) {
	f.Add("30 22 0:1 / /d/a\\040b rw - tmpfs tmpfs rw\n", "/d")
	f.Add("30 22 0:1 / /d/\\777 rw\n1 2 3 4 /d/\\", "/d")
	f.Fuzz(func(t *testing.T, info, dir string) {
		for _, rel := range mountsBelow([]byte(info), dir) {
			require.Contains(t, info, "/")
			require.LessOrEqual(t, len(rel), len(info))
		}
		_, _ = parseMountID([]byte(info))
	})
}
