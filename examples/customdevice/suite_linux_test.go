// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
	"github.com/nodekeep/nodekeep/jobspec"
)

// roleEnv makes this binary the plugin's program.
const roleEnv = "NODEKEEP_TEST_DEVICE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// licences is a directory with seats of two products.
func licences(t *testing.T) string {
	dir := t.TempDir()
	for _, name := range []string{"render-1.seat", "render-2.seat", "render-3.seat", "edit-1.seat", "readme.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("key"), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "render-4.seat"), nil, 0o600))
	return dir
}

func config(dir string) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"dir":%q}`, dir)) }

func TestInProcess(t *testing.T) {
	dir := licences(t)
	start := func(t *testing.T) device.Plugin {
		s := &seats{}
		require.NoError(t, s.Configure(t.Context(), config(dir)))
		return s
	}
	devicetest.Suite(t, devicetest.SuiteConfig{New: start, Renew: func(t *testing.T, _ device.Plugin) device.Plugin { return start(t) }})
}

func TestOverTheWire(t *testing.T) {
	dir := licences(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	start := func(t *testing.T) device.Plugin {
		base, err := os.MkdirTemp("/dev/shm", "nkd")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		p, err := deviceplugin.Launch(ctx, exe, devicemanager.Launch{Dir: filepath.Join(base, "p"), Config: config(dir), Env: []string{roleEnv + "=1", "GORACE=atexit_sleep_ms=0"}})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, p.Close(ctx))
			require.NoError(t, os.RemoveAll(base))
			cancel()
		})
		return p.Device()
	}
	devicetest.Suite(t, devicetest.SuiteConfig{New: start, Renew: func(t *testing.T, _ device.Plugin) device.Plugin { return start(t) }})
}

// The job that the guide shows gets two seats of the right product, and no more.
func TestJob(t *testing.T) {
	file, err := jobspec.ReadFile("job.hcl")
	require.NoError(t, err)
	job, err := jobspec.Parse(jobspec.ParseConfig{File: file})
	require.NoError(t, err)
	task := job.Groups[0].Alloc.Tasks[0]
	dir := licences(t)
	m, err := devicemanager.New(devicemanager.Config{Launchers: []devicemanager.Launcher{devicemanager.InProcess(&seats{})}, Patience: time.Millisecond,
		Programs: map[string]devicemanager.Settings{"seats": {Config: config(dir)}}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- m.Run(ctx) }()
	require.Empty(t, m.Ready(ctx))
	r, given, err := m.Reserve(ctx, "one", task.Name, &task.Resources, false)
	require.NoError(t, err)
	require.Equal(t, []string{"render-1", "render-2"}, given[0].IDs)
	require.Equal(t, "render-1,render-2", r.Env["SEATS"])
	_, _, err = m.Reserve(ctx, "two", task.Name, &task.Resources, false)
	require.ErrorIs(t, err, devicemanager.ErrBusy)
	require.ErrorContains(t, err, "this node has 4, of which 3 are healthy and 1 free")
	cancel()
	require.NoError(t, <-ended)
}

// The guide shows this program, to the letter.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/writing-a-device-plugin.md")
	require.NoError(t, err)
	var source strings.Builder
	for _, f := range []string{"main.go", "seats.go"} {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		source.Write(b)
	}
	job, err := os.ReadFile("job.hcl")
	require.NoError(t, err)
	seen := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```(\\w+)\n(.*?)```").FindAllStringSubmatch(string(guide), -1) {
		seen[m[1]]++
		switch m[1] {
		case "go":
			require.Contains(t, source.String(), m[2])
		case "hcl":
			require.Equal(t, string(job), m[2])
		}
	}
	require.Greater(t, seen["go"], 4)
	require.Equal(t, 1, seen["hcl"])
}
