// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package explain_test

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/explain"
)

var update = flag.Bool("update", false, "write the golden files anew")

// kinds are all there are, as the source has them.
func kinds(t *testing.T) (all []explain.Kind) {
	f, err := parser.ParseFile(token.NewFileSet(), "explain.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Kind" {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				all = append(all, explain.Kind(text))
			}
		}
		return true
	})
	return all
}

// The text and the JSON of every kind are on file.
func TestGolden(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a := explain.AllocReasons{ID: "0f", Job: "shop", Group: "web", Status: "running", Desired: "stop", Description: "tasks are running"}
	for i, k := range kinds(t) {
		r := explain.Of(k, "subject", "callback", "prestart", "step", "start", "error", "boom", "condition", "healthy", "state", "failing",
			"output", "503", "attempt", "3", "exit_code", "7", "action", "restart", "delay", "15s", "reason", "why", "empty", "")
		switch i % 3 {
		case 0:
			r = r.From(now.Add(-1500 * time.Millisecond))
		case 1:
			r = r.To(now.Add(3*time.Hour + 59*time.Second))
		}
		a.Waiting = append(a.Waiting, r)
	}
	require.Greater(t, len(a.Waiting), 20)
	a.Next = []explain.Reason{
		explain.Of(explain.IfExited, "", "exit_code", "137", "oom_killed", "true", "action", "fail"),
		explain.Of(explain.IfExited, "", "exit_code", "0", "action", "complete"),
		explain.Of(explain.IfExited, "", "exit_code", "1", "action", "restart", "delay", "0s"),
		explain.Of(explain.Task, "db", "condition", "completed").To(now.Add(-time.Second)),
		explain.Of(explain.Task, "db", "condition", "odd"), explain.Of("new", "thing", "b", "2", "a", "1"),
	}
	a.Tasks = []explain.TaskReasons{
		{Name: "a\x1b", State: "pending", Phase: "ready", Waiting: []explain.Reason{explain.Of(explain.Task, "b", "condition", "started")},
			Failed: &explain.Reason{Kind: explain.Failure, Subject: "Terminated", Since: now.Add(-time.Hour), Attrs: map[string]string{"error": "exit code 1"}}},
		{Name: "b", State: "pending", Phase: "pending", Waiting: []explain.Reason{
			explain.Of(explain.Task, "a", "condition", "started"), explain.Of(explain.Hook, "artifact", "callback", "prestart")}},
	}
	a.Link()
	var b strings.Builder
	require.NoError(t, a.Write(&b, now, func(s string) string { return strings.ReplaceAll(s, "\x1b", "?") }))
	a.Render(now)
	raw, err := json.MarshalIndent(a, "", "  ")
	require.NoError(t, err)
	for file, got := range map[string]string{"testdata/all.txt": b.String(), "testdata/all.json": string(raw) + "\n"} {
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o755))
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got, file)
	}
	require.True(t, a.Only("b"))
	require.Len(t, a.Tasks, 1)
	require.False(t, a.Only("c"))
}
