// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deviceplugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/driver"
)

// Plugins of these tests are this binary, started again with a role in its
// environment.
const roleEnv = "NODEKEEP_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		return
	}
	os.Exit(m.Run())
}

// play is the main of a plugin.
func play(role string) {
	if hostile(role) {
		return
	}
	f := &devicetest.Fake{Groups: fakeGroups(), Schema: driver.Object(map[string]*driver.Schema{
		"do": driver.Default(driver.Attr("string", false), `"nothing"`),
	})}
	deviceplugin.Serve(&configured{Fake: f})
}

func fakeGroups() []device.Group {
	g := devicetest.Make("acme/gpu/x1", map[string]device.Attribute{"memory": device.Int(11, "GiB"), "ecc": device.Bool(true), "clock": device.Float(1.5, "GHz"), "kind": device.Text("big")}, "a", "b")
	g.Instances[1].PCIBusID = "0000:3b:00.0"
	broken := device.Instance{ID: "c", Description: "it smokes"}
	g.Instances = append(g.Instances, broken)
	return []device.Group{g, devicetest.Make("acme/fpga/y", nil, "d")}
}

// configured does what its configuration says.
type configured struct {
	*devicetest.Fake
	do string
}

func (c *configured) Configure(ctx context.Context, raw json.RawMessage) error {
	var cfg struct{ Do string }
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return err
	}
	c.do = cfg.Do
	switch c.do {
	case "refuse":
		return errors.New("not with me")
	case "fail":
		c.Fail(errors.New("the library is not there"))
	}
	return c.Fake.Configure(ctx, raw)
}

func (c *configured) Fingerprint(ctx context.Context) (<-chan device.Fingerprint, error) {
	if c.do == "disabled" {
		return nil, fmt.Errorf("by the operator: %w", device.ErrDisabled)
	}
	return c.Fake.Fingerprint(ctx)
}

func (c *configured) Reserve(ctx context.Context, ids []string) (device.Reservation, error) {
	switch ids[0] {
	case "panic":
		panic("ouch")
	case "busy":
		return device.Reservation{}, driver.Recoverable(errors.New("busy"))
	case "hang":
		<-ctx.Done()
	case "die":
		os.Exit(7)
	case "fail":
		c.Fail(errors.New("lost the card"))
	case "disable":
		c.Fail(device.ErrDisabled)
	case "log":
		deviceplugin.Logger().Warn("said", "by", "plugin")
		fmt.Println("printed")
	}
	return c.Fake.Reserve(ctx, ids)
}

func (c *configured) Stats(ctx context.Context, interval time.Duration) (<-chan device.Stats, error) {
	if c.do == "nostats" {
		return nil, driver.ErrNotImplemented
	}
	return c.Fake.Stats(ctx, interval)
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return exe
}

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	root := "/dev/shm"
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	dir, err := os.MkdirTemp(root, "nkv")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// logged keeps what a plugin logs.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch is how a plugin of that role is started.
func launch(t *testing.T, role string) (devicemanager.Launch, *logged) {
	t.Helper()
	l := &logged{}
	return devicemanager.Launch{Dir: filepath.Join(shortDir(t), "p"),
		Log: hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: l, DisableTime: true}),
		Env: []string{roleEnv + "=" + role, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0", "GOMAXPROCS=2"}}, l
}

// start starts a plugin and ends it with the test.
func start(t *testing.T, role, config string) (*deviceplugin.Plugin, *logged) {
	t.Helper()
	l, log := launch(t, role)
	if config != "" {
		l.Config = json.RawMessage(config)
	}
	p, err := deviceplugin.Launch(bounded(t), self(t), l)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close(bounded(t)))
		require.NoDirExists(t, l.Dir)
		require.ErrorIs(t, syscall.Kill(p.PID(), 0), syscall.ESRCH)
	})
	return p, log
}

func bounded(t *testing.T) context.Context {
	// Also for what is cleaned up when the test is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
