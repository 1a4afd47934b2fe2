// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/account"
	"github.com/nodekeep/nodekeep/internal/cgroup"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// TestFailedStarts leave nothing, say why, and the same task can be started after
// them (FF-041).
func TestFailedStarts(t *testing.T) {
	r := newRig(t)
	file := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(r.dirs.Local, name), []byte(text), 0o755))
		require.NoError(t, os.Chmod(filepath.Join(r.dirs.Local, name), mode))
	}
	file("nointerp", "#!/nowhere/sh\n", 0o755)
	file("format", "\x00\x01\x02\x03", 0o755)
	for _, c := range []struct {
		name string
		opts map[string]any
		want string
		is   error
	}{
		{"missing", map[string]any{"command": "nothing-of-that-name"}, "no such program", syscall.ENOENT},
		{"interpreter", map[string]any{"command": "nointerp"}, "its first line", syscall.ENOENT},
		{"format", map[string]any{"command": "format"}, "no program for this machine", syscall.ENOEXEC},
		{"work_dir", map[string]any{"command": "/bin/true", "work_dir": "/usr/nowhere"}, "read-only", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := r.build(c.opts)
			require.NoError(t, err)
			_, err = r.start(s)
			require.ErrorContains(t, err, c.want)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.Empty(t, cgroup.Procs(r.path))
			r.again()
		})
	}
	require.Equal(t, "ok\n", r.sh("echo ok", nil))
	var ent []os.DirEntry
	ent, err := os.ReadDir(r.base + "/ctr")
	require.NoError(t, err)
	require.Len(t, ent, 1, "the place that roots are made on")
}

// TestFailedCreation removes itself what it made, before the supervisor does.
func TestFailedCreation(t *testing.T) {
	r := newRig(t)
	s, err := r.build(map[string]any{"command": "/bin/true", "work_dir": "/usr/nowhere"})
	require.NoError(t, err)
	_, err = r.start(s)
	require.ErrorContains(t, err, "read-only")
	require.NoDirExists(t, filepath.Join(s.StateRoot, s.ID))
	for _, p := range cgroup.Everywhere(r.path) {
		require.Empty(t, cgroup.Procs(p))
	}
	for _, raw := range []string{"{", `{"version":2}`} {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		require.NoError(t, err)
		for _, verb := range []string{creator.Create, creator.Exec} {
			res, err := r.fork(verb, []byte(raw), null, null, null, nil)
			require.NoError(t, err)
			require.NotEmpty(t, res.Err)
		}
		_ = null.Close()
	}
}

// TestBeside: a command beside a task is one of the task's own (it has its user,
// limits, namespaces and filter), and what it cannot run is told.
func TestBeside(t *testing.T) {
	r := newRig(t)
	r.probe()
	r.cfg.Env = append(r.cfg.Env, "A=1", "B=2")
	s, err := r.build(map[string]any{"command": "/bin/sh", "args": []string{"-c", "echo ready; exec sleep 60"}, "oom_score_adj": 300, "work_dir": "/local"})
	require.NoError(t, err)
	k, err := r.start(s)
	require.NoError(t, err)
	_, err = k.out.Read(make([]byte, 1))
	require.NoError(t, err)

	out, code, err := k.beside([]string{"B=3", "C=4"}, "sh", "-c", "echo $A $B $C; pwd; cat /proc/self/oom_score_adj /proc/self/cgroup; exit 7")
	require.NoError(t, err)
	require.Equal(t, 7, code)
	require.Contains(t, out, "1 3 4\n/local\n300\n")
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", k.pid))
	require.NoError(t, err)
	require.Equal(t, bytes.Count(cgroups, []byte(r.node.Cgroup)), strings.Count(out, ":/\n"), "it is in every group that the task is in")

	out, _, err = k.beside(nil, "/probe", "probe:inside", "status")
	require.NoError(t, err)
	want, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.pid))
	require.NoError(t, err)
	for _, name := range []string{"Uid", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters"} {
		require.Equal(t, value(string(want), name+":"), value(out, name+"="), name)
	}
	require.Equal(t, "2", value(out, "Seccomp="))
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "net", "cgroup", "user"} {
		own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", k.pid, ns))
		require.NoError(t, err)
		require.Equal(t, own, value(out, "ns "+ns+"="))
	}

	_, _, err = k.beside(nil, "nothing-of-that-name")
	var e errCreator
	require.ErrorAs(t, err, &e)
	require.Equal(t, syscall.ENOENT, e.Errno, e.Err)
	require.NoError(t, syscall.Kill(k.pid, syscall.SIGKILL))
	require.Equal(t, syscall.SIGKILL, k.wait().Signal())
	_, _, err = k.beside(nil, "true")
	require.Error(t, err, "the task has ended")
}

// value is what follows a name in one of lines.
func value(text, name string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	return "none of that name"
}

// TestInit: with a small init as PID 1 signals end a program that has no handler,
// and orphans are reaped.
func TestInit(t *testing.T) {
	r := newRig(t)
	s, err := r.build(map[string]any{"command": "sh", "args": []string{"-c", "(setsid sleep 0 &); echo ready; exec sleep 60"}, "init": true})
	require.NoError(t, err)
	k, err := r.start(s)
	require.NoError(t, err)
	_, err = k.out.Read(make([]byte, 1))
	require.NoError(t, err)
	eventually(t, "two processes, none of them a zombie", func() bool {
		out, _, err := k.beside(nil, "sh", "-c", `for p in /proc/[0-9]*; do read -r l <$p/stat && echo "$l"; done | cut -d' ' -f 2,3 | grep -v '(cut)\|(sh)\|(grep)' | tr '\n' ' '`)
		require.NoError(t, err)
		return strings.Count(out, "(") == 2 && strings.Contains(out, "(sleep) S") && !strings.Contains(out, ") Z")
	})
	require.NoError(t, syscall.Kill(k.pid, syscall.SIGTERM))
	require.Equal(t, 128+15, k.wait().ExitStatus())
}

// image makes a root file system of the host's shell and what it links.
func (r *rig) image(name string) string {
	t := r.t
	dir := filepath.Join(r.dirs.Local, name)
	for _, prog := range []string{"sh", "cat", "ls", "id"} {
		path, err := exec.LookPath("busybox") // one that links nothing
		if err != nil {
			path, err = exec.LookPath(prog)
		}
		require.NoError(t, err)
		files := []string{path}
		libs, _ := exec.Command("ldd", path).Output()
		for _, f := range strings.Fields(string(libs)) {
			if strings.HasPrefix(f, "/") {
				files = append(files, f)
			}
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			to := filepath.Join(dir, f)
			if f == path {
				to = filepath.Join(dir, "bin", prog)
			}
			require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
			require.NoError(t, os.WriteFile(to, b, 0o755))
		}
	}
	return dir
}

// TestImage: the root is the image's; it stays as it was, and no link in it leads to
// the host.
func TestImage(t *testing.T) {
	r := newRig(t)
	if features().Overlay != "" {
		t.Skip(features().Overlay)
	}
	img := r.image("rootfs")
	require.NoError(t, os.WriteFile(img+"/marker", []byte("image\n"), 0o644))
	for link, to := range map[string]string{"etc": "/etc", "tmp": "/", "local": "/root", "proc": "/sys", "out": "/boot", "dev": "/dev"} {
		require.NoError(t, os.Symlink(to, filepath.Join(img, link)))
	}
	require.NoError(t, os.Symlink("/", r.dirs.Local+"/host"))
	require.NoError(t, os.Symlink("../..", r.dirs.Local+"/up"))
	before := tree(t, img)
	out := r.sh(`cat /marker /etc/hostname; ls /etc; ls / | cat; ls /out; echo >/x; echo hi >/local/y && cat /local/y`, map[string]any{"image": "local/rootfs"})
	require.Equal(t, "image\nalloc1\nhostname\nhosts\nresolv.conf\nalloc\nbin\ndev\netc\n", out[:strings.Index(out, "home")])
	require.True(t, strings.HasSuffix(out, "hi\n"))
	require.FileExists(t, r.dirs.Local+"/y")
	require.NoFileExists(t, "/root/y")
	r.cfg.User, r.node.AllowRoot = "root", true
	out = r.sh(`echo new >/x; cat /x; echo changed >/marker; cat /marker`, map[string]any{"image": "local/rootfs", "writable_root": true})
	require.Equal(t, "new\nchanged\n", out)
	require.Equal(t, before, tree(t, img), "nothing of the image was changed")
	for _, path := range []string{"local/up", "local/rootfs/marker", "local/host/etc"} {
		s, err := r.build(map[string]any{"command": "/bin/sh", "image": path})
		require.NoError(t, err)
		_, err = r.start(s)
		require.ErrorContains(t, err, "image "+path)
		r.again()
	}
}

func tree(t *testing.T, dir string) (out []string) {
	require.NoError(t, filepath.Walk(dir, func(p string, st os.FileInfo, err error) error {
		if err == nil {
			out = append(out, fmt.Sprint(p, st.Mode(), st.Size()))
		}
		return err
	}))
	return out
}

// TestRoot: what was asked for is there, with what was asked for; what is made for
// it stays in the container.
func TestRoot(t *testing.T) {
	r := newRig(t)
	vol := r.base + "/vol"
	require.NoError(t, os.MkdirAll(vol+"/sub", 0o777))
	require.NoError(t, os.WriteFile(vol+"/file", []byte("one\n"), 0o644))
	require.NoError(t, os.WriteFile(r.base+"/secret", []byte("x\n"), 0o600))
	r.cfg.Mounts = []driver.Mount{{Source: vol, Target: "/data/vol", ReadOnly: true}, {Source: vol + "/file", Target: "/etc/app/conf", ReadOnly: true},
		{Source: vol + "/file", Target: "/etc/hosts", ReadOnly: true}}
	r.node.Entries = append(defaultEntries(), Entry{Source: vol, Target: "/opt2/vol"}, Entry{Source: r.base + "/secret", Target: "/etc/secret"})
	out := r.sh(`cat /data/vol/file /etc/app/conf /opt2/vol/file /etc/hosts; ls /etc/secret; echo >/data/vol/x; echo >/opt2/vol/x; echo >/y
		dd if=/dev/zero of=/tmp/big bs=1M count=3 2>/dev/null; ls -l /tmp/big | tr -s ' ' | cut -d' ' -f5; grep -c ' /tmp ' /proc/self/mountinfo; ulimit -n`,
		map[string]any{"tmp_mb": 2, "ulimit": map[string]string{"NoFile": "100:200"}})
	require.Equal(t, "one\none\none\none\n2097152\n1\n100\n", out)
	r.cfg.Mounts = nil
	r.node.Lookup = func(string) (account.Account, error) {
		return account.Account{Name: "app", UID: 4000, GID: 4001, Groups: []int{4001, 44, 4002}}, nil
	}
	require.Equal(t, "4000 4001 4001 44 4002\n", r.sh("echo $(id -u) $(id -g) $(id -G)", nil), "the user's own groups and no others")
	left, err := filepath.Glob(vol + "/*")
	require.NoError(t, err)
	require.Equal(t, []string{vol + "/file", vol + "/sub"}, left)
}

// TestPropagation: what is mounted on the host later is seen where that was asked
// for, and nowhere else.
func TestPropagation(t *testing.T) {
	r := newRig(t)
	vol := r.base + "/vol"
	require.NoError(t, os.Mkdir(vol, 0o755))
	require.NoError(t, unix.Mount("tmpfs", vol, "tmpfs", 0, "mode=755"))
	defer func() { require.NoError(t, unix.Unmount(vol, unix.MNT_DETACH)) }()
	require.NoError(t, unix.Mount("", vol, "", unix.MS_SHARED, ""))
	require.NoError(t, os.Mkdir(vol+"/sub", 0o755))
	r.cfg.Mounts = []driver.Mount{{Source: vol, Target: "/follows", Propagation: "host-to-task"}, {Source: vol, Target: "/stays"}}
	s, err := r.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	require.NoError(t, err)
	k, err := r.start(s)
	require.NoError(t, err)
	require.NoError(t, unix.Mount("tmpfs", vol+"/sub", "tmpfs", 0, "mode=755"))
	require.NoError(t, os.WriteFile(vol+"/sub/late", nil, 0o644))
	out, _, err := k.beside(nil, "sh", "-c", "ls /follows/sub; ls /stays/sub")
	require.NoError(t, err)
	require.Equal(t, "late\n", out)
}

// TestCommonPrograms run as they are, those that are there.
func TestCommonPrograms(t *testing.T) {
	r := newRig(t)
	r.cfg.Res.MemoryMB = 512
	var line []string
	for name, args := range map[string]string{
		"bash":    `-c 'cat <(echo x)'`,
		"python3": `-c 'import ssl, threading, subprocess, tempfile, socket; subprocess.check_output(["true"]); t = threading.Thread(target=print); t.start(); t.join(); tempfile.TemporaryFile(); socket.socket()'`,
		"perl":    `-MPOSIX -e 'print getpid()'`,
		"git":     `init -q /tmp/repo`,
		"openssl": `rand -hex 4`,
		"curl":    `--version`,
		"java":    `-Xmx64m -version`,
		"tar":     `cf /tmp/x.tar /etc/hosts`,
		"find":    `/etc -name hosts`, // all of it can be read
	} {
		if _, err := exec.LookPath(name); err == nil {
			line = append(line, "("+name+" "+args+") >/tmp/out 2>&1 || { echo "+name+"; cat /tmp/out; }")
		}
	}
	require.Empty(t, r.sh(strings.Join(line, "\n"), nil), "programs that do not run")
}

// TestLimits hold: memory to the byte, processes to the number, from the first
// instruction on. Shares of any size can be set (FF-052).
func TestLimits(t *testing.T) {
	r := newRig(t)
	r.probe()
	r.cfg.Res.MemoryMB = 96
	require.Equal(t, "16", r.ask(nil, "eat", "16")["ate"])
	_, _, code := r.run(nil, "/probe", "probe:inside", "eat", "150")
	require.Equal(t, 128+9, code, "killed for want of memory")
	r.cfg.Res.MemoryMax = 250
	require.Equal(t, "130", r.ask(nil, "eat", "130")["ate"], "up to the most, not the reserve")
	r.cfg.Res.MemoryMax = 0
	r.cfg.Mounts = nil
	r.cfg.Res.Cores, r.cfg.Res.CPU = []int{1}, 1
	require.Contains(t, r.sh("grep Cpus_allowed_list /proc/self/status", nil), "\t1\n")
	r.cfg.Res.Cores = nil
	r.cfg.Res.CPU = 300000
	out, errs, _ := r.run(map[string]any{"pids_limit": 20}, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22; do sleep 9 & done; echo all")
	require.Contains(t, out+errs, "fork")
}

// TestTerminal: a command beside a task on a terminal of the task's own.
func TestTerminal(t *testing.T) {
	r := newRig(t)
	s, err := r.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	require.NoError(t, err)
	_, err = r.start(s)
	require.NoError(t, err)
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := pair[0], os.NewFile(uintptr(pair[1]), "console")
	defer func() { _ = unix.Close(ours) }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	raw, err := Exec{Version: SpecVersion, ID: s.ID, StateRoot: s.StateRoot, Args: []string{"sh", "-c", "stty size; tty; id -u; exit 3"}, TTY: true, Rows: 30, Cols: 70}.Encode()
	require.NoError(t, err)
	res, err := r.fork(creator.Exec, raw, theirs, null, null, nil)
	_ = theirs.Close()
	require.NoError(t, err)
	require.Empty(t, res.Err)
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ours, name, oob, 0)
	require.NoError(t, err)
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	require.NoError(t, err)
	fds, err := unix.ParseUnixRights(&msgs[0])
	require.NoError(t, err)
	pty := os.NewFile(uintptr(fds[0]), "pty")
	defer func() { _ = pty.Close() }()
	var out []byte
	for b := make([]byte, 100); ; {
		n, err := pty.Read(b)
		out = append(out, b[:n]...)
		if err != nil {
			require.True(t, errors.Is(err, syscall.EIO) || errors.Is(err, io.EOF), err)
			break
		}
	}
	require.Equal(t, 3, wait(t, res.PID).ExitStatus())
	require.Equal(t, "30 70\r\n/dev/pts/0\r\n65534\r\n", string(out))
}

// TestHostMounts: the host's table is the same while tasks are made and run, and
// its programs have no other links than before.
func TestHostMounts(t *testing.T) {
	r := newRig(t)
	count := func() int {
		b, err := os.ReadFile("/proc/self/mountinfo")
		require.NoError(t, err)
		return bytes.Count(b, []byte(r.base))
	}
	s, err := r.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	require.NoError(t, err)
	k, err := r.start(s)
	require.NoError(t, err)
	require.Zero(t, count())
	// Every process of the task is in its group in every hierarchy.
	for _, p := range cgroup.Everywhere(r.path) {
		require.Equal(t, []int{k.pid}, cgroup.Procs(p), p)
	}
}
