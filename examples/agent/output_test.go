// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
)

// What people write comes out as they wrote it, whoever encoded it before us.
func TestPlainJSON(t *testing.T) {
	for in, want := range map[string]string{
		`a \u003e b \u003C c \u0026`: `a > b < c &`,
		`\\u003e`:                    `\\u003e`, // a backslash and the text u003e
		`\\\u003e`:                   `\\>`,
		`\u00e9 \u0000 \u003`:        `\u00e9 \u0000 \u003`,
		`\`:                          `\`,
		``:                           ``,
	} {
		require.Equal(t, want, string(plainJSON([]byte(in))), in)
	}
	var out bytes.Buffer
	require.NoError(t, encode(&out, map[string]any{"b": "x > y & z", "raw": json.RawMessage(`"a \u003e b"`)}, ""))
	require.Equal(t, `{"b":"x > y & z","raw":"a > b"}`+"\n", out.String())
}

func FuzzPlainJSON(f *testing.F) {
	f.Add(`a > b`)
	f.Add(`\u003e & \\u003e <`)
	f.Fuzz(func(t *testing.T, s string) {
		escaped, err := json.Marshal(s)
		require.NoError(t, err)
		var want, got string
		require.NoError(t, json.Unmarshal(escaped, &want))
		require.NoError(t, json.Unmarshal(plainJSON(escaped), &got), "%s", escaped)
		require.Equal(t, want, got)
	})
}

// failed runs a command line that reaches no agent and returns its error.
func failed(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app{stdout: &o, stderr: &e, env: func(string) string { return "" }, global: global{data: t.TempDir()}}
	return a.main(t.Context(), args), o.String(), e.String()
}

// With --json an error is one JSON object on one line of stderr, wherever the flag
// stands and whatever is wrong, with the exit code that it has without.
func TestErrorsInJSON(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.hcl")
	require.NoError(t, os.WriteFile(bad, []byte("job \"x\" {\n  grup \"g\" {}\n}\n"), 0o600))
	missing := filepath.Join(dir, "missing.hcl")
	for args, want := range map[string]failure{
		"ps --json":               {Code: "no_agent", Exit: 1},
		"--json ps a b":           {Code: "usage", Exit: 2},
		"ps --no-such --json":     {Code: "usage", Exit: 2},
		"nix --json":              {Code: "usage", Exit: 2},
		"logs x -n y -json":       {Code: "usage", Exit: 2},
		"--json":                  {Code: "usage", Exit: 2},
		"run --json " + bad:       {Code: "job_file", Exit: 1},
		"run --json " + missing:   {Code: "failed", Exit: 1},
		"exec --json a t -- true": {Code: "no_agent", Exit: 1},
		"apply --json " + bad + " " + missing: {Code: "job_file", Exit: 1, Errors: []failure{
			{Code: "job_file", Exit: 1}, {Code: "failed", Exit: 1},
		}},
	} {
		code, out, errs := failed(t, strings.Fields(args)...)
		require.Equal(t, want.Exit, code, args)
		if args != "--json" { // which gets the help
			require.Empty(t, out, args)
		}
		require.Equal(t, 1, strings.Count(errs, "\n"), "%s: %s", args, errs)
		var got failure
		require.NoError(t, json.Unmarshal([]byte(errs), &got), "%s: %s", args, errs)
		require.Equal(t, "error", got.Level)
		require.NotEmpty(t, got.Message)
		require.Equal(t, want.Code == "job_file", len(got.Diagnostics) > 0, args)
		require.Len(t, got.Errors, len(want.Errors))
		require.Equal(t, want.Code, got.Code, args)
		require.Equal(t, want.Exit, got.Exit, args)
		for i, e := range want.Errors {
			require.Equal(t, e.Code, got.Errors[i].Code)
		}
		plain, _, _ := failed(t, strings.Fields(strings.ReplaceAll(strings.ReplaceAll(args, "--json", ""), "-json", ""))...)
		require.Equal(t, code, plain, "%s: the exit code does not depend on --json", args)
	}
	code, _, errs := failed(t, "exec", "a", "t", "--", "x", "--json")
	require.Equal(t, 1, code)
	require.True(t, strings.HasPrefix(errs, "nodekeep: "), "the command's own flag is none of ours: %s", errs)
}

func TestCodes(t *testing.T) {
	for want, err := range map[string]error{
		"ambiguous":    fmt.Errorf("x: %w", &api.Error{Code: api.CodeAmbiguous}),
		"timeout":      &lateError{1, "x"},
		"alloc_failed": &failedAlloc{},
		"failed":       errors.New("x"),
		"usage":        usage("x"),
	} {
		require.Equal(t, want, codeOf(err))
	}
	require.Equal(t, "a; b", oneLine("a\n  b\n"))
}
