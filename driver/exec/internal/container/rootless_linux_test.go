// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/creator"
)

// TestRootless: an agent that is not root has tasks in a user namespace, as itself,
// and is told what they lack. Root runs the test again as somebody else.
func TestRootless(t *testing.T) {
	if os.Geteuid() == 0 {
		again(t, "^TestRootless$")
		return
	}
	f := features()
	if f.UserNS != "" || f.Unusable != "" {
		t.Skip(f.UserNS + f.Unusable)
	}
	base := t.TempDir()
	task := base + "/task"
	dirs := driver.Dirs{Alloc: base + "/alloc", Task: task, Local: task + "/local", Secrets: task + "/secrets"}
	for _, d := range []string{dirs.Alloc, dirs.Local, dirs.Secrets, task + "/tmp", base + "/ctr"} {
		require.NoError(t, os.MkdirAll(d, 0o755))
	}
	r := &rig{t: t, base: base, id: "alloc1/web/0", dirs: dirs, node: NodeOptions{StateRoot: base + "/ctr", Features: f}}
	r.cfg = driver.TaskConfig{ID: r.id, Owner: driver.Owner{AllocID: "alloc1"}, Dirs: dirs,
		Env: []string{"GORACE=atexit_sleep_ms=0", "HOME=/local", "PATH=/usr/bin:/bin"}, Res: driver.Resources{CPU: 100, MemoryMB: 64}}
	r.probe()
	s, applied, err := Build(r.cfg, options(t, map[string]any{"command": "/probe", "args": []string{"probe:inside", "look"}}), r.node)
	require.NoError(t, err)
	require.Equal(t, []string{"cpu share: no cgroup", "memory limit: no cgroup"}, applied.Missing)
	_, _, err = Build(r.cfg, options(t, map[string]any{"command": "true", "strict": true}), r.node)
	require.ErrorIs(t, err, ErrLess)
	k, err := r.start(s)
	require.NoError(t, err)
	out, errs, code := k.output()
	require.Zero(t, code, out+errs)
	a := answers(out)
	r.common(a)
	require.NotEqual(t, hostNS(t, "user"), a["ns user"])
	require.Equal(t, "0000000000000000", a["CapEff"])
	st, err := os.Stat(dirs.Local + "/x")
	require.NoError(t, err)
	require.EqualValues(t, os.Geteuid(), owner(st))

	require.NoError(t, os.RemoveAll(filepath.Join(base, "ctr", creator.Name(r.id))))
	s, err = r.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	require.NoError(t, err)
	k, err = r.start(s)
	require.NoError(t, err)
	out, code, err = k.beside(nil, "sh", "-c", "id -u; exit 4")
	require.NoError(t, err)
	require.Equal(t, 4, code)
	require.NotEmpty(t, out)
	require.NoError(t, syscall.Kill(k.pid, syscall.SIGKILL))
	k.wait()
}

// again runs tests of this program as nobody.
func again(t *testing.T, run string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "rootless")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	require.NoError(t, os.Chmod(dir, 0o777))
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/test", b, 0o755))
	cmd := exec.Command(dir+"/test", "-test.run", run, "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{"TMPDIR=" + dir, "PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	t.Logf("as nobody:\n%s", out)
	require.NoError(t, err)
}
