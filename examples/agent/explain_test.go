// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/explain"
)

func TestExplainCommand(t *testing.T) {
	b := newBox(t)
	b.serve()
	b.ok("apply", "--wait", "running", b.jobFile("svc", "service", "exec sleep 1000", ""))
	b.ok("apply", "--wait", "complete", b.jobFile("done", "batch", "true", ""))
	text := b.ok("explain", "svc")
	require.Contains(t, text, " svc.g[0]: running: ")
	require.Contains(t, text, "task main: running\n    waits    it runs until it exits, for ")
	require.Contains(t, text, "next     if it exited with 0: ")
	var why explain.AllocReasons
	require.NoError(t, json.Unmarshal([]byte(b.ok("explain", "--json", "svc", "main")), &why))
	require.Equal(t, explain.Exit, why.Tasks[0].Waiting[0].Kind)
	require.NotEmpty(t, why.Tasks[0].Waiting[0].Message)
	require.Contains(t, b.ok("explain", "done"), "next     nothing: it has ended")
	b.refused(1, "nodekeep ps lists them", "explain", "nobody")
	b.refused(1, `no task "nix"`, "explain", "svc", "nix")
	b.refused(2, "name an alloc", "explain")
	b.ok("stop", "--all")
}
