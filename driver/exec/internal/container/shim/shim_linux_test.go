// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build amd64 || arm64

package shim

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ran is how a program behind a shim ended.
type ran struct {
	code  int
	errno uint32 // from the pipe; 0 is none
	out   string
}

// start starts a program behind a shim and returns the pipe for its errno.
func start(t *testing.T, p Program, paths, args []string, prepare ...func(*exec.Cmd)) (*exec.Cmd, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	p.Self, p.ErrorsTo, p.Paths = 3, 4, len(paths)
	f, err := p.Open()
	require.NoError(t, err)
	defer func() { _, _ = f.Close(), w.Close() }()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.Args = append(append([]string{"shim"}, paths...), args...)
	cmd.ExtraFiles = []*os.File{f, w}
	cmd.Env = []string{"A=1", "PATH=/usr/bin:/bin"}
	for _, f := range prepare {
		f(cmd)
	}
	require.NoError(t, cmd.Start())
	return cmd, r
}

func run(t *testing.T, p Program, paths, args []string, prepare ...func(*exec.Cmd)) ran {
	t.Helper()
	var out strings.Builder
	cmd, r := start(t, p, paths, args, append(prepare, func(c *exec.Cmd) { c.Stdout, c.Stderr = &out, &out })...)
	errno, err := io.ReadAll(r)
	require.NoError(t, err)
	_ = cmd.Wait()
	res := ran{code: cmd.ProcessState.ExitCode(), out: out.String()}
	if len(errno) > 0 {
		res.errno = binary.LittleEndian.Uint32(errno)
	}
	return res
}

func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), mode))
		require.NoError(t, os.Chmod(p, mode))
		return p
	}
	plain := file("plain", "#!/bin/sh\n", 0o644)
	noInterpreter := file("nointerp", "#!/nowhere/sh\n", 0o755)
	format := file("format", "\x00\x01\x02", 0o755)
	script := file("script", "#!/bin/sh\necho \"$0 $# $A\"; exit 3\n", 0o755)
	missing := filepath.Join(dir, "missing")
	sh := func(text string) []string { return []string{"sh", "-c", text} }
	for _, init := range []bool{false, true} {
		for name, c := range map[string]struct {
			paths, args []string
			want        ran
		}{
			"code":               {[]string{"/bin/sh"}, sh("exit 7"), ran{code: 7}},
			"environment":        {[]string{"/bin/sh"}, sh(`echo $A "$0" "$1"`), ran{out: "1 sh \n"}},
			"arguments":          {[]string{"/bin/sh"}, append(sh(`echo "$0" "$1"`), "x", "y z"), ran{out: "x y z\n"}},
			"second place":       {[]string{missing, "/bin/sh"}, sh("exit 5"), ran{code: 5}},
			"not a directory":    {[]string{plain + "/x", "/bin/sh"}, sh("exit 5"), ran{code: 5}},
			"not executable":     {[]string{plain, "/bin/sh"}, sh("exit 5"), ran{code: 5}},
			"missing":            {[]string{missing}, sh(""), ran{code: 127, errno: uint32(syscall.ENOENT)}},
			"all missing":        {[]string{missing, missing + "2"}, sh(""), ran{code: 127, errno: uint32(syscall.ENOENT)}},
			"none":               {nil, sh(""), ran{code: 127}},
			"denied, missing":    {[]string{plain, missing}, sh(""), ran{code: 127, errno: uint32(syscall.EACCES)}},
			"missing, denied":    {[]string{missing, plain}, sh(""), ran{code: 127, errno: uint32(syscall.EACCES)}},
			"directory":          {[]string{dir}, sh(""), ran{code: 127, errno: uint32(syscall.EACCES)}},
			"no interpreter":     {[]string{noInterpreter}, sh(""), ran{code: 127, errno: uint32(syscall.ENOENT)}},
			"format":             {[]string{format, "/bin/sh"}, sh(""), ran{code: 127, errno: uint32(syscall.ENOEXEC)}},
			"script":             {[]string{script}, []string{"x", "1", "2"}, ran{code: 3, out: script + " 2 1\n"}},
			"descriptors":        {[]string{"/bin/sh"}, sh("[ -e /proc/$$/fd/3 ] || [ -e /proc/$$/fd/4 ] || echo closed"), ran{out: "closed\n"}},
			"exits like a death": {[]string{"/bin/sh"}, sh("exit 255"), ran{code: 255}},
		} {
			t.Run(name+" init="+strconv.FormatBool(init), func(t *testing.T) {
				if name == "none" {
					c.want.errno = 0 // nothing was tried
				}
				got := run(t, Program{Init: init}, c.paths, c.args)
				if name == "none" {
					got.errno = 0
				}
				require.Equal(t, c.want, got)
			})
		}
	}
}

// TestFilter loads one that refuses chdir, and one that the kernel refuses.
func TestFilter(t *testing.T) {
	ins := func(code uint16, jt, jf uint8, k uint32) []byte {
		b := make([]byte, 8)
		binary.LittleEndian.PutUint16(b, code)
		b[2], b[3] = jt, jf
		binary.LittleEndian.PutUint32(b[4:], k)
		return b
	}
	var filter []byte
	for _, i := range [][]byte{
		ins(0x20, 0, 0, 0), ins(0x15, 0, 1, unix.SYS_CHDIR), ins(0x06, 0, 0, 0x00050000|uint32(unix.EPERM)), ins(0x06, 0, 0, 0x7fff0000),
	} {
		filter = append(filter, i...)
	}
	if os.Geteuid() != 0 {
		t.Skip("a filter without no_new_privs needs root")
	}
	for _, init := range []bool{false, true} {
		got := run(t, Program{Filter: filter, Init: init}, []string{"/bin/sh"}, []string{"sh", "-c", "grep Seccomp: /proc/self/status; cd /; echo $?"})
		require.Contains(t, got.out, "Seccomp:\t2\n")
		require.Contains(t, got.out, "can't cd to")
		got = run(t, Program{Filter: filter[:8], Init: init}, []string{"/bin/sh"}, []string{"sh"})
		require.Equal(t, ran{code: 127, errno: NoFilter | uint32(syscall.EINVAL)}, got)
	}
	_, err := Program{Filter: filter[:7]}.Open()
	require.Error(t, err)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for tick := time.Tick(2 * time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-late:
			t.Fatal(what)
		}
	}
}

// TestInit: signals reach the program, orphans are reaped, and the end is the
// program's.
func TestInit(t *testing.T) {
	asPID1 := func(c *exec.Cmd) {
		if os.Geteuid() == 0 {
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	text := `trap 'echo usr1 >>` + out + `' USR1; trap 'echo term >>` + out + `; exit 9' TERM; (setsid sleep 0.01 &); echo ready >>` + out + `; while :; do sleep 0.01; done`
	cmd, _ := start(t, Program{Init: true}, []string{"/bin/sh"}, []string{"sh", "-c", text}, asPID1)
	has := func(s string) func() bool {
		return func() bool { b, _ := os.ReadFile(out); return strings.Contains(string(b), s) }
	}
	eventually(t, "ready", has("ready"))
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	eventually(t, "usr1", has("usr1"))
	if os.Geteuid() == 0 {
		eventually(t, "orphans are reaped", func() bool {
			b, _ := exec.Command("ps", "-o", "stat=", "--ppid", strconv.Itoa(cmd.Process.Pid)).Output()
			return !strings.Contains(string(b), "Z")
		})
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	require.Equal(t, 9, cmd.ProcessState.ExitCode())
	b, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(b), "term")

	for sig, text := range map[int]string{15: "kill -TERM $$", 9: "kill -KILL $$", 6: "kill -ABRT $$"} {
		require.Equal(t, 128+sig, run(t, Program{Init: true}, []string{"/bin/sh"}, []string{"sh", "-c", text}, asPID1).code)
	}
}

// TestUnreadable: while the shim is the program, another process of its user can
// neither trace it nor open its memory.
func TestUnreadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file of one's own can be read")
	}
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd, _ := start(t, Program{Init: true}, []string{"/bin/sleep"}, []string{"sleep", "60"}, func(c *exec.Cmd) { c.SysProcAttr = user })
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	pid := strconv.Itoa(cmd.Process.Pid)
	eventually(t, "started", func() bool {
		link, err := os.Readlink("/proc/" + pid + "/exe")
		return err == nil && strings.Contains(link, "memfd:nodekeep-shim")
	})
	for _, file := range []string{"mem", "maps", "exe", "environ", "fd/3"} {
		spy := exec.Command("/bin/sh", "-c", "exec 9</proc/"+pid+"/"+file)
		spy.SysProcAttr = user
		out, err := spy.CombinedOutput()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%s was opened", file)
		require.Contains(t, string(out), "Permission denied", file)
	}
	child, err := exec.Command("ps", "-o", "pid=", "--ppid", pid).Output()
	require.NoError(t, err)
	require.NoError(t, exec.Command("kill", strings.TrimSpace(string(child))).Run())
}
