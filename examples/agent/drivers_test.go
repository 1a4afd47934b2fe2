// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep"
)

func TestDriverFault(t *testing.T) {
	known := []nodekeep.DriverStatus{
		{Name: "docker"}, {Name: "exec", Detected: true}, {Name: "raw_exec", Detected: true},
		{Name: "qemu", Description: "rawexec: no such program"},
	}
	for name, want := range map[string][2]string{
		"exec":     {},
		"raw_exce": {`Unknown driver "raw_exce"`, `This node has docker, exec, raw_exec, qemu. Did you mean "raw_exec"?`},
		"raw-exec": {`Unknown driver "raw-exec"`, `This node has docker, exec, raw_exec, qemu. Did you mean "raw_exec"?`},
		"podman":   {`Unknown driver "podman"`, `This node has docker, exec, raw_exec, qemu.`},
		"qemu":     {"Driver qemu does not work here", "no such program."},
	} {
		summary, detail := driverFault(name, known)
		require.Equal(t, want, [2]string{summary, detail}, name)
	}
}

// An unknown driver is told with its place; to a command that runs nothing it is a
// warning, for the file may be another node's.
func TestUnknownDriver(t *testing.T) {
	jobDir(t)
	text := "job \"u\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exce\"\n      config {\n        command = \"true\"\n      }\n    }\n  }\n}\n"
	require.NoError(t, os.WriteFile("u.hcl", []byte(text), 0o600))
	place := " Unknown driver \"raw_exce\"\n  u.hcl:4:16\n     4 |       driver = \"raw_exce\"\n       |                ^^^^^^^^^^\n  This node has exec, raw_exec. Did you mean \"raw_exec\"?\n"
	code, out, errs := jobCommandLine(t, "run", "u.hcl")
	require.Equal(t, 1, code)
	require.Empty(t, out)
	require.Equal(t, "Error:"+place+"nodekeep: u.hcl cannot run on this node: see the lines shown above\n", errs)
	for _, verb := range []string{"validate", "plan"} {
		code, _, errs = jobCommandLine(t, "job", verb, "u.hcl")
		require.Zero(t, code)
		require.Equal(t, "Warning:"+place, errs)
	}
	code, out, _ = jobCommandLine(t, "job", "validate", "--json", "u.hcl")
	require.Zero(t, code)
	require.Equal(t, 1, strings.Count(out, `"severity": "warning"`), out)
	require.Contains(t, out, `"line": 4,`)
}
