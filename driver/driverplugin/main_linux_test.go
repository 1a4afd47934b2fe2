// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverplugin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverplugin"
	"github.com/nodekeep/nodekeep/driver/drivertest"
	"github.com/nodekeep/nodekeep/drivermanager"
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
	switch {
	case hostile(role):
	case role == "rawexec":
		serveRawexec()
	case role == "agent":
		playAgent()
	default:
		driverplugin.Serve(newFake(role))
	}
}

func self(t testing.TB) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return exe
}

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(t testing.TB) string {
	t.Helper()
	root := "/dev/shm"
	if st, err := os.Stat(root); err != nil || !st.IsDir() {
		root = os.TempDir()
	}
	dir, err := os.MkdirTemp(root, "nkp")
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

func (l *logged) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: l, DisableTime: true})
}

// launch is how a plugin of that role is started.
func launch(t testing.TB, role string, more ...string) (drivermanager.Launch, *logged) {
	t.Helper()
	l, dir := &logged{}, filepath.Join(shortDir(t), "p")
	return drivermanager.Launch{Dir: dir, Log: l.logger(),
		Env: append([]string{roleEnv + "=" + role, "NK_DIR=" + dir, "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0", "GOMAXPROCS=2"}, more...)}, l
}

// start starts a plugin and ends it with the test.
func start(t *testing.T, role string, more ...string) (*driverplugin.Plugin, *logged) {
	t.Helper()
	p, log := begin(t, role, more...)
	t.Cleanup(func() { closePlugin(t, p) })
	return p, log
}

// begin starts a plugin that the test ends.
func begin(t *testing.T, role string, more ...string) (*driverplugin.Plugin, *logged) {
	t.Helper()
	l, log := launch(t, role, more...)
	p, err := driverplugin.Launch(bounded(t), self(t), l)
	require.NoError(t, err)
	return p, log
}

func closePlugin(t *testing.T, p *driverplugin.Plugin) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	require.NoError(t, p.Close(ctx))
	require.True(t, closed(p.Done()))
}

func bounded(t *testing.T) context.Context {
	// Also for what is cleaned up when the test is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// eventually waits for what another process does.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// whole is all that a driver over the wire is.
type whole interface {
	driver.Driver
	parts
}

// parts are those of the contract that a driver need not have.
type parts interface {
	driver.Preparer
	driver.Signaler
	driver.Inspector
	driver.Execer
	driver.Meter
	driver.EventSource
	driver.Networker
}

// fakeSchema is what the tasks of the fake driver are configured with.
var fakeSchema = driver.Object(map[string]*driver.Schema{
	"do":   driver.Attr("string", false),
	"code": driver.Default(driver.Attr("number", false), "0"),
})

// script reads what a task does from its configuration, as a real driver does.
func script(_ int, cfg driver.TaskConfig) drivertest.Life {
	var c struct {
		Do   string
		Code int
	}
	if err := json.Unmarshal(cfg.Config, &c); err != nil {
		return drivertest.Life{Err: err}
	}
	switch c.Do {
	case "exit":
		return drivertest.Life{Exit: driver.ExitResult{Code: c.Code}}
	case "later":
		return drivertest.Life{Run: time.Duration(c.Code) * time.Millisecond, Exit: driver.ExitResult{Code: 5}}
	case "ignore":
		return drivertest.Life{Run: drivertest.Forever, Term: drivertest.Forever}
	case "bad":
		return drivertest.Life{Err: fmt.Errorf("no such command")}
	case "busy":
		return drivertest.Life{Err: driver.Recoverable(fmt.Errorf("out of something"))}
	}
	return drivertest.Life{Run: drivertest.Forever}
}

// newFake is a driver in memory whose tasks live as long as its process.
func newFake(role string) driver.Driver {
	caps := driver.Capabilities{SendSignals: true, IdempotentStart: role != "fake-plain", FSIsolation: driver.FSNone}
	f := &drivertest.Fake{Name: "fake", Capabilities: &caps, Schema: fakeSchema, Script: script}
	if extra := newRich(role, f); extra != nil {
		return extra
	}
	return f
}
