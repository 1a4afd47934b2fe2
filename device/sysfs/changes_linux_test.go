// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
)

// news is a kernel that says what a test has it say.
type news struct {
	c      chan change
	closed chan struct{}
}

func (n news) next() (change, error) {
	select {
	case c, ok := <-n.c:
		if !ok {
			return change{}, errors.New("the kernel has gone")
		}
		return c, nil
	case <-n.closed:
		return change{}, os.ErrClosed
	}
}

func (n news) Close() error { close(n.closed); return nil }

// Nothing that happens elsewhere has anybody look, what happens here has once for
// all its parts; and where the kernel says no more, somebody looks each period.
func TestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := &Config{Match: []Match{{Subsystem: "usb"}, {Subsystem: "drm", Nodes: []string{"/dev/kfd"}}}, Period: time.Minute, Sys: "/sys", Dev: "/dev", Log: hclog.NewNullLogger()}
		found := []*thing{{dir: "/sys/devices/pci0/card0/drm/card0"}}
		kernel := news{make(chan change), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		told := watch(ctx, cfg, func(*Config) (source, error) { return kernel, nil })
		var looks atomic.Int32
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for wait(ctx, told, nil, func(c change) bool { return c.touches(cfg, found) }) {
				looks.Add(1)
			}
		}()
		say := func(all ...change) int {
			before := looks.Load()
			for _, c := range all {
				kernel.c <- c
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			return int(looks.Load() - before)
		}
		require.Zero(t, say(), "nobody is woken by nothing")
		require.Zero(t, say(change{path: "/devices/virtual/net/veth1", subsystem: "net"}, change{path: "/devices/pci0/card01", subsystem: "pci"}))
		for _, c := range []change{
			{}, // some were lost, or what is said is not understood
			{path: "/devices/pci0/usb1/1-1", subsystem: "usb"},
			{path: "/devices/pci0/card0", subsystem: "pci"},                    // it is a part of that
			{path: "/devices/pci0/card0/drm/card0/event0", subsystem: "input"}, // a part of it
			{path: "/devices/virtual/kfd/kfd", subsystem: "kfd", node: "kfd"},  // a node that is named
		} {
			require.Equal(t, 1, say(c), "%+v", c)
		}
		many := make([]change, 100)
		require.Equal(t, 1, say(many...))
		close(kernel.c)
		require.InDelta(t, 60, say(), 1, "each period")
		cancel()
		<-ended
		_, open := <-told
		require.False(t, open)
	})
}

// An end closes the source, once.
func TestNewsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := &Config{Period: time.Minute, Log: hclog.NewNullLogger()}
		kernel := news{make(chan change), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		told := watch(ctx, cfg, func(*Config) (source, error) { return kernel, nil })
		cancel()
		for range told {
		}
		<-kernel.closed
	})
}

// The kernel of this machine tells of what it is asked to tell.
func TestKernel(t *testing.T) {
	const null = "/sys/class/mem/null/uevent"
	if err := syscall.Access(null, 2); err != nil {
		t.Skip("the kernel cannot be asked for a message: ", err)
	}
	k, err := listen(&Config{Sys: "/sys"})
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	require.NoError(t, os.WriteFile(null, []byte("change"), 0))
	for {
		c, err := k.next()
		require.NoError(t, err)
		if c == (change{path: "/devices/virtual/mem/null", subsystem: "mem", node: "null"}) {
			break
		}
	}
	_, err = listen(&Config{Sys: t.TempDir()})
	require.ErrorContains(t, err, "is not /sys")
}

// More than the kernel keeps for us is a change of everything, not an end.
func TestKernelOverrun(t *testing.T) {
	const null = "/sys/class/mem/null/uevent"
	if err := syscall.Access(null, 2); err != nil {
		t.Skip("the kernel cannot be asked for a message: ", err)
	}
	k, err := listen(&Config{Sys: "/sys"})
	require.NoError(t, err)
	defer func() { require.NoError(t, k.Close()) }()
	raw, err := k.(*uevents).f.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1)
	}))
	require.NoError(t, err)
	for range 50 {
		require.NoError(t, os.WriteFile(null, []byte("change"), 0))
	}
	for {
		c, err := k.next()
		require.NoError(t, err)
		if c == (change{}) {
			break
		}
	}
	require.NoError(t, os.WriteFile(null, []byte("change"), 0))
	_, err = k.next()
	require.NoError(t, err)
}

// In a user namespace of its own nobody hears the kernel: it is said so.
func TestUserNamespace(t *testing.T) {
	if os.Getenv("NODEKEEP_TEST_LISTEN") != "" {
		_, err := listen(&Config{Sys: "/sys"})
		fmt.Println("said:", err)
		return
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p, err := os.StartProcess(exe, []string{exe, "-test.run", "^TestUserNamespace$"}, &os.ProcAttr{Files: []*os.File{nil, w, w}, Env: append(os.Environ(), "NODEKEEP_TEST_LISTEN=1", "GORACE=atexit_sleep_ms=0"),
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}}})
	require.NoError(t, w.Close())
	if err != nil {
		require.NoError(t, r.Close())
		t.Skip("no user namespaces here: ", err)
	}
	defer func() { require.NoError(t, r.Close()) }()
	var said [4096]byte
	n, err := r.Read(said[:])
	require.NoError(t, err)
	require.Contains(t, string(said[:n]), "said: this is a user namespace")
	_, err = p.Wait()
	require.NoError(t, err)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("add@/devices/x\x00ACTION=add\x00DEVPATH=/devices/x\x00SUBSYSTEM=usb\x00DEVNAME=ttyUSB0\x00"))
	f.Add([]byte("libudev\x00\xfe\xed\xca\xfe"))
	f.Add([]byte{})
	cfg := &Config{Sys: "/sys", Dev: "/dev", Match: []Match{{Subsystem: "usb"}}}
	f.Fuzz(func(t *testing.T, msg []byte) {
		if c := parse(msg); c.path == "" && !c.touches(cfg, nil) {
			t.Fatal("what is not understood may be anything")
		}
	})
}
