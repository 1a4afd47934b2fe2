// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// A node offers what rules say, a job's task gets one, the node shows who has it,
// and it is free when the job is stopped.
func TestDevices(t *testing.T) {
	if _, err := os.Stat("/sys/class/mem/null"); err != nil {
		t.Skip("no sysfs here: ", err)
	}
	b, dir := newBox(t), t.TempDir()
	file := filepath.Join(dir, "plugins.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"plugins":{"sysfs":{"config":{"match":[{"subsystem":"mem","type":"memory","vendor_name":"linux","model":"mem"}]}}}}`), 0o600))
	b.refused(2, "--device-dir /no/such: is no directory", "serve", "--device-dir", "/no/such")
	b.serve("--enable-raw-exec", "--plugin-config", file, "--device-dir", dir)
	job := filepath.Join(dir, "job.hcl")
	require.NoError(t, os.WriteFile(job, []byte(`job "mem" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo has $NODEKEEP_MEMORY at $NODEKEEP_MEMORY_NODES; exec sleep 3600"]
      }
      env { MARK = "`+b.mark+`" }
      resources {
        device "linux/memory" {
          constraint {
            attribute = "${device.ids}"
            operator  = "set_contains"
            value     = "null"
          }
        }
      }
    }
  }
}
`), 0o600))
	b.ok("apply", job, "--wait", "running")
	var n api.Node
	require.NoError(t, json.Unmarshal([]byte(b.ok("node", "--json")), &n))
	require.Equal(t, "linux/memory/mem", n.Devices[0].ID())
	require.Equal(t, "t", n.Devices[0].Owners["null"].Task)
	require.Contains(t, b.ok("node"), "linux/memory/mem[null]")
	require.Contains(t, b.ok("plugins"), "sysfs")
	eventually(t, "the task says what it has", func() string {
		if out := b.ok("logs", "mem"); out != "has null at /dev/null\n" {
			return out
		}
		return ""
	})
	require.Contains(t, b.ok("events", "mem"), "linux/memory/mem[null]")
	b.ok("stop", "mem")
	var after api.Node
	require.NoError(t, json.Unmarshal([]byte(b.ok("node", "--json")), &after))
	require.Empty(t, after.Devices[0].Owners)
}
