// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/device"
	"github.com/nodekeep/nodekeep/device/deviceplugin"
	"github.com/nodekeep/nodekeep/device/devicetest"
	"github.com/nodekeep/nodekeep/devicemanager"
)

const roleEnv = "NODEKEEP_TEST_DEVICE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The program finds this machine's memory devices, as any Linux has them, over the
// wire as in process.
func TestSuite(t *testing.T) {
	if _, err := os.Stat("/sys/class/mem/null"); err != nil {
		t.Skip("no sysfs here: ", err)
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	start := func(t *testing.T) device.Plugin {
		base, err := os.MkdirTemp("/dev/shm", "nks")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		p, err := deviceplugin.Launch(ctx, exe, devicemanager.Launch{Dir: filepath.Join(base, "p"), Env: []string{roleEnv + "=1", "GORACE=atexit_sleep_ms=0"},
			Config: json.RawMessage(`{"match":[{"subsystem":"mem","type":"memory","vendor_name":"linux"}]}`)})
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
