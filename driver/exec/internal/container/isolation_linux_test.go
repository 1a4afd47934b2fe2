// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package container

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nodekeep/nodekeep/driver"
)

// refused are the calls that no task may make.
var refused = []string{
	"mount", "remount", "umount2", "pivot_root", "fsopen", "open_tree", "setns", "unshare user", "unshare mount", "bpf", "perf_event_open", "keyctl", "add_key",
	"io_uring_setup", "userfaultfd", "init_module", "finit_module", "reboot", "kexec_load", "open_by_handle_at", "swapon", "sethostname", "clock_settime",
	"acct", "syslog", "quotactl", "personality", "socket vsock", "socket alg", "socket packet", "ioctl tiocsti",
}

func hostNS(t testing.TB, name string) string {
	to, err := os.Readlink("/proc/self/ns/" + name)
	require.NoError(t, err)
	return to
}

// common holds what every task must and must not see and do, whoever it runs as.
func (r *rig) common(a map[string]string) {
	t := r.t
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "cgroup"} {
		require.NotEqual(t, hostNS(t, ns), a["ns "+ns], ns)
	}
	require.Equal(t, hostNS(t, "net"), a["ns net"], "no network was asked for")
	require.Equal(t, "1", a["pid"])
	require.Equal(t, "1", a["processes"])
	require.Equal(t, "1", a["sid"])
	require.Equal(t, "alloc1", a["hostname"])
	require.Equal(t, "alloc1", a["/etc/hostname"])
	require.Equal(t, "022", a["umask"])
	require.Equal(t, "1", a["NoNewPrivs"])
	require.Equal(t, "2", a["Seccomp"])
	require.Equal(t, "1", a["Seccomp_filters"])
	require.Equal(t, strings.Join(r.cfg.Env, " "), a["env"], "the environment as given")
	for name, to := range a {
		if fd, ok := strings.CutPrefix(name, "fd "); ok && fd > "2" { // the Go runtime's own
			require.Regexp(t, "^$|^anon_inode:|^/proc/.*/fd$|^/sys/fs/cgroup/", to, name)
		}
	}
	require.Subset(t, strings.Fields("alloc bin dev etc home lib lib32 lib64 libx32 local opt probe proc root run sbin secrets sys tmp usr var"), strings.Fields(a["list /"]))
	require.Subset(t, strings.Fields("core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"), strings.Fields(a["list /dev"]))
	for _, m := range strings.Fields(a["writable mounts"]) {
		switch {
		case strings.HasPrefix(m, "/dev"), strings.HasPrefix(m, "/proc"):
		default:
			require.Contains(t, "/alloc /local /secrets /tmp", m, "a mount that can be written")
		}
	}
	for _, c := range refused {
		require.Contains(t, []string{"EPERM", "EACCES"}, a["call "+c], c)
	}
	for _, c := range []string{"clone3", "x32 getpid", "beyond"} {
		require.Equal(t, "ENOSYS", a["call "+c], c)
	}
	for name, v := range a {
		switch what, p, _ := strings.Cut(name, " "); what {
		case "see":
			if p != "/boot after" && p != "/alloc after" {
				require.Contains(t, []string{"ENOENT", "EACCES"}, v, name)
			}
		case "read":
			require.Equal(t, "0 true", v, name)
		case "write":
			switch p {
			case "/alloc/x", "/local/x", "/secrets/x", "/tmp/x", "/dev/shm/x":
				require.Equal(t, "ok", v, name)
			case "/dev/x": // root may make files there; they are in memory and no devices
			default:
				require.Contains(t, []string{"EROFS", "EACCES", "EPERM", "ENOENT"}, v, name)
			}
		case "open":
			if strings.HasPrefix(p, "to write ") {
				if p != "to write /proc/1/oom_score_adj" { // its own
					require.Contains(t, []string{"EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"}, v, name)
				}
			} else if strings.HasPrefix(p, "/dev/") && p != "/dev/mem2" {
				require.Equal(t, "ok", v, name)
			}
		case "mknod":
			require.Equal(t, "EPERM", v, name)
		case "kill":
			require.Equal(t, "ESRCH", v, name)
		case "ptrace":
			require.Contains(t, []string{"ESRCH", "EPERM"}, v, name)
		}
	}
	for _, c := range strings.Fields(a["cgroup"]) {
		require.True(t, strings.HasSuffix(c, ":/"), "its cgroup is the top of what it sees: %s", c)
	}
}

// TestIsolation: a task of the default kind.
func TestIsolation(t *testing.T) {
	r := newRig(t)
	r.node.PidsLimit = 100
	a := r.ask(nil, "look", strconv.Itoa(os.Getpid()))
	r.common(a)
	require.Equal(t, hostNS(t, "user"), a["ns user"])
	require.Equal(t, "65534 65534 65534 65534", a["Uid"])
	require.Equal(t, "65534", a["Groups"])
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		require.Equal(t, "0000000000000000", a[set], set)
	}
	require.Equal(t, "/", a["dir"])
	require.Equal(t, "0", a["oom_score_adj"])
	if foreignCall() == letThrough { // else the kernel has no such calls
		require.Contains(t, a["int80"], "signal: bad system call")
	}
	if features().Cgroup == "v2" {
		require.Equal(t, fmt.Sprint(128<<20), a["/sys/fs/cgroup/memory.max"])
		require.Equal(t, "48", a["/sys/fs/cgroup/cpu.weight"])
		require.Equal(t, "100", a["/sys/fs/cgroup/pids.max"])
		if features().Swap == "" {
			require.Equal(t, "0", a["/sys/fs/cgroup/memory.swap.max"])
		}
	} else {
		require.Equal(t, fmt.Sprint(128<<20), a["/sys/fs/cgroup/memory/memory.limit_in_bytes"])
		require.Equal(t, "500", a["/sys/fs/cgroup/cpu/cpu.shares"])
		require.Equal(t, "100", a["/sys/fs/cgroup/pids/pids.max"])
		require.Equal(t, fmt.Sprint(128<<20), a["/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"])
	}
}

// TestRootIsolation: root of the host, where the operator allows it. It has what
// root has with its own files, and no way out.
func TestRootIsolation(t *testing.T) {
	r := newRig(t)
	r.node.AllowRoot, r.node.AllowCaps = true, []string{"all"}
	r.cfg.User = "root"
	a := r.ask(nil, "root")
	r.common(a)
	require.Equal(t, "0 0 0 0", a["Uid"])
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		require.Equal(t, fmt.Sprintf("%016x", mask(defaultCaps)), a[set], set)
	}
	require.Equal(t, "0000000000000000", a["CapAmb"])
	require.Equal(t, "ok", a["chroot"])
	require.Equal(t, "ENOENT", a["see /boot after"])
	require.Equal(t, "ok", a["see /alloc after"], "the root it comes out at is its own")
	require.Equal(t, "ok", a["setuid 1"])

	// The right to make nodes reaches no further than the devices there are.
	a = r.ask(map[string]any{"cap_add": []string{"mknod"}}, "root")
	require.Equal(t, "ok", a["mknod null"])
	for _, name := range []string{"mknod mem", "mknod disk", "mknod /dev/mem2"} {
		require.Equal(t, "EPERM", a[name], name)
	}
}

func mask(caps []string) (m uint64) {
	for i, c := range capNames {
		for _, x := range caps {
			if x == c {
				m |= 1 << i
			}
		}
	}
	return m
}

// TestCapabilities: what is added is there in every set, and nothing else (FF-059).
func TestCapabilities(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	r.cfg.Network = &driver.Network{Mode: "none"}
	opts := map[string]any{"cap_drop": []string{"ALL"}, "cap_add": []string{"Net_Bind_Service"}}
	a := r.ask(opts, "net", l.Addr().String())
	require.Equal(t, "ok", a["listen on 81"])
	require.Equal(t, "ok", a["own loopback"], "FF-127")
	require.Equal(t, "lo:true", a["interfaces"])
	require.NotEqual(t, "ok", a["host's listener"])
	a = r.ask(opts, "status")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		require.Equal(t, "0000000000000400", a[set], set)
	}
	require.NotEqual(t, hostNS(t, "net"), a["ns net"])
}

// TestJoinsNetwork: the alloc's namespace, by path.
func TestJoinsNetwork(t *testing.T) {
	r := newRig(t)
	holder := exec.Command("unshare", "-n", "sleep", "60")
	if holder.Err != nil {
		t.Skip("no unshare here")
	}
	require.NoError(t, holder.Start())
	defer func() { _, _ = holder.Process.Kill(), holder.Wait() }()
	path := fmt.Sprintf("/proc/%d/ns/net", holder.Process.Pid)
	var ns string
	eventually(t, "a network namespace", func() bool { ns, _ = os.Readlink(path); return ns != "" && ns != hostNS(t, "net") })
	r.cfg.Network = &driver.Network{Mode: "group", Path: path, Hostname: "web-1", Address: "10.1.2.3"}
	r.cfg.DNS = &driver.DNS{Servers: []string{"10.0.0.2"}, Searches: []string{"a.test", "b.test"}, Options: []string{"ndots:2"}}
	out := r.sh("readlink /proc/self/ns/net; hostname; cat /etc/resolv.conf; grep web-1 /etc/hosts", nil)
	require.Equal(t, ns+"\nweb-1\nnameserver 10.0.0.2\nsearch a.test b.test\noptions ndots:2\n10.1.2.3\tweb-1\n", out)
}

// TestUserNamespace: root inside is nobody outside, and files keep their owners.
func TestUserNamespace(t *testing.T) {
	r := newRig(t)
	if features().UserNS+features().IDMap != "" {
		t.Skip(features().UserNS + features().IDMap)
	}
	r.node.IDs = IDs{Host: 200000, Size: 65536}
	for _, user := range []string{"root", ""} {
		r.cfg.User = user
		a := r.ask(map[string]any{"user_namespace": true}, "look")
		r.common(a)
		require.NotEqual(t, hostNS(t, "user"), a["ns user"])
		uid := map[string]int{"root": 0, "": 65534}[user]
		require.Equal(t, strings.TrimSpace(strings.Repeat(fmt.Sprint(uid, " "), 4)), a["Uid"])
		st, err := os.Stat(r.dirs.Local + "/x")
		require.NoError(t, err)
		require.EqualValues(t, uid, owner(st))
		require.NoError(t, os.Remove(r.dirs.Local+"/x"))
		require.NoError(t, exec.Command("rm", "-f", r.dirs.Alloc+"/x", r.dirs.Secrets+"/x", r.dirs.Task+"/tmp/x").Run())
	}
	s, err := r.build(map[string]any{"command": "sleep", "args": []string{"60"}, "user_namespace": true})
	require.NoError(t, err)
	k, err := r.start(s)
	require.NoError(t, err)
	st, err := os.Stat(fmt.Sprintf("/proc/%d", k.pid))
	require.NoError(t, err)
	require.EqualValues(t, 265534, owner(st), "as the host sees it")
	out, code, err := k.beside(nil, "id", "-u")
	require.NoError(t, err)
	require.Equal(t, "65534\n0", out+strconv.Itoa(code))
}

// TestHostNamespaces are for those who ask, where the operator allows it (FF-065).
func TestHostNamespaces(t *testing.T) {
	r := newRig(t)
	r.node.AllowHostPID, r.node.AllowHostIPC = true, true
	a := r.ask(map[string]any{"pid_mode": "host", "ipc_mode": "host"}, "status")
	require.Equal(t, hostNS(t, "pid"), a["ns pid"])
	require.Equal(t, hostNS(t, "ipc"), a["ns ipc"])
	require.NotEqual(t, hostNS(t, "mnt"), a["ns mnt"])
}

// TestDevices: what was reserved can be opened by the task's user, what was not
// cannot (FF-058).
func TestDevices(t *testing.T) {
	r := newRig(t)
	// One that is root's on the host becomes everybody's here.
	own := r.base + "/own"
	for _, p := range []string{"/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/vga_arbiter", "/dev/rtc0"} {
		var st unix.Stat_t
		if f, err := os.OpenFile(p, os.O_RDWR, 0); err != nil || unix.Fstat(int(f.Fd()), &st) != nil {
			continue
		}
		require.NoError(t, unix.Mknod(own, unix.S_IFCHR|0o666, int(st.Rdev)))
		require.NoError(t, os.Chmod(own, 0o666))
		break
	}
	if _, err := os.Stat(own); err != nil {
		t.Skip("no device that can be opened here")
	}
	r.cfg.Devices = []driver.Device{{HostPath: own, TaskPath: "/dev/nodekeep/own", Permissions: "rw"}}
	a := r.ask(nil, "open", "/dev/nodekeep/own", "/dev/mem", "/dev/null")
	require.Equal(t, "ok", a["open /dev/nodekeep/own"])
	require.Equal(t, "ENOENT", a["open /dev/mem"])
	require.Equal(t, "ok", a["open /dev/null"])
}

// TestTwoTasks: one sees nothing of the other (FF-065).
func TestTwoTasks(t *testing.T) {
	r, other := newRig(t), newRig(t)
	s, err := other.build(map[string]any{"command": "sleep", "args": []string{"60"}})
	require.NoError(t, err)
	k, err := other.start(s)
	require.NoError(t, err)
	theirs := map[string]string{}
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "cgroup"} {
		theirs[ns], err = os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", k.pid, ns))
		require.NoError(t, err)
	}
	require.NoError(t, os.WriteFile(other.dirs.Local+"/theirs", nil, 0o644))
	a := r.ask(nil, "look", strconv.Itoa(k.pid))
	r.common(a)
	for ns, link := range theirs {
		require.NotEqual(t, link, a["ns "+ns])
	}
	require.Empty(t, a["list /local"], "what the other wrote is not here")
}
