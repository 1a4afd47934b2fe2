// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const jobWithVars = `variable "who" {}
variable "times" {
  type    = number
  default = 1
}
job "hello" {
  datacenters = ["dc1"]
  group "g" {
    count = var.times
    task "t" {
      driver = "raw_exec"
      config {
        command = "echo"
        args    = ["hello ${var.who}", "${NOMAD_ALLOC_ID}", file("extra.txt")]
      }
      template {
        data        = "x"
        destination = "local/x"
      }
    }
    task "other" {
      driver = "docker"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
    }
  }
}
`

// jobCommandLine runs the program without a node.
func jobCommandLine(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app{stdout: &o, stderr: &e, env: func(string) string { return "" }, global: global{data: t.TempDir()}}
	code = a.main(context.Background(), args)
	return code, o.String(), e.String()
}

func jobDir(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"hello.hcl": jobWithVars, "extra.txt": "more", "vars.hcl": "who = \"file\"\ntimes = 2\n",
		"bad.hcl":  "job \"x\" {\n  group \"g\" {\n    tsk \"t\" {}\n  }\n}\n",
		"none.hcl": "job \"none\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n",
		"ugly.hcl": "job \"u\" {\n# kept\ngroup \"g\" {\ntask \"t\" {\ndriver=\"raw_exec\"\n}\n}\n}\n",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
}

func TestJobValidate(t *testing.T) {
	jobDir(t)
	code, out, errs := jobCommandLine(t, "job", "validate", "hello.hcl", "--var", "who=me")
	require.Zero(t, code, errs)
	require.Equal(t, "hello.hcl: job hello is valid, 1 alloc\n", out)

	code, out, _ = jobCommandLine(t, "job", "validate", "--var-file", "vars.hcl", "hello.hcl")
	require.Zero(t, code)
	require.Contains(t, out, "2 allocs")

	code, out, errs = jobCommandLine(t, "job", "validate", "hello.hcl", "bad.hcl")
	require.Equal(t, 1, code)
	require.Empty(t, out)
	require.Contains(t, errs, "Variable without a value")
	require.Contains(t, errs, "     3 |     tsk \"t\" {}\n       |     ^^^\n")
	require.Contains(t, errs, `Did you mean "task"?`)

	code, _, errs = jobCommandLine(t, "job", "validate", "none.hcl")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "none.hcl:3:5\n     3 |     task \"t\" {\n       |     ^^^^^^^^", "of a task without config the task is shown")

	code, _, errs = jobCommandLine(t, "job", "validate", "--lenient", "bad.hcl")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "Group without a task")
}

func TestJobValidateJSON(t *testing.T) {
	jobDir(t)
	code, out, errs := jobCommandLine(t, "job", "validate", "--json", "hello.hcl", "bad.hcl", "nowhere.hcl", "--var", "who=me")
	require.Equal(t, 1, code)
	require.Empty(t, errs)
	var list []validJob
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 3)
	require.True(t, list[0].Valid)
	require.Equal(t, "hello", list[0].Job)
	require.False(t, list[1].Valid)
	var tsk bool
	for _, d := range list[1].Diagnostics {
		tsk = tsk || d.Summary == "Unknown block" && d.Line == 3 && d.Column == 5 && d.EndColumn == 8 && d.Severity == "error"
	}
	require.True(t, tsk, out)
	require.Contains(t, list[2].Error, "does not exist")
}

func TestJobPlan(t *testing.T) {
	jobDir(t)
	code, out, errs := jobCommandLine(t, "job", "plan", "hello.hcl", "--var-file", "vars.hcl")
	require.Zero(t, code, errs)
	require.Contains(t, out, "hello.hcl: service job hello in namespace default, 2 allocs\n  hello.g[0]  ")
	require.Contains(t, out, "    t                raw_exec   main\n    other            docker     prestart sidecar  (no driver for it on this node)\n")
	require.Contains(t, out, "datacenters in job \"hello\": is a scheduler's (line 7)\n")
	require.Contains(t, out, "template in job \"hello\", group \"g\", task \"t\": needs the capability template (line 16)\n")

	code, out, _ = jobCommandLine(t, "--json", "job", "plan", "hello.hcl", "--var", "who=x")
	require.Zero(t, code)
	var plans []plannedJob
	require.NoError(t, json.Unmarshal([]byte(out), &plans))
	require.Equal(t, []plannedTask{{"t", "raw_exec", true, "main"}, {"other", "docker", false, "prestart sidecar"}}, plans[0].Allocs[0].Tasks)
	require.Len(t, plans[0].NotActedOn, 2)
}

func TestJobFormat(t *testing.T) {
	jobDir(t)
	code, out, _ := jobCommandLine(t, "job", "format", "ugly.hcl")
	require.Zero(t, code)
	require.Equal(t, "job \"u\" {\n  # kept\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n    }\n  }\n}\n", out)
	code, _, errs := jobCommandLine(t, "job", "format", "--write", "ugly.hcl")
	require.Zero(t, code, errs)
	written, err := os.ReadFile("ugly.hcl")
	require.NoError(t, err)
	require.Equal(t, out, string(written))

	code, api, errs := jobCommandLine(t, "job", "format", "--json", "hello.hcl", "--var", "who=me")
	require.Zero(t, code, errs)
	require.Contains(t, api, `"hello me",`)
	require.Contains(t, api, `"more"`, "file() is relative to the working directory")
	require.NoError(t, os.WriteFile("api.json", []byte(api), 0o600))
	code, hcl, errs := jobCommandLine(t, "job", "format", "--hcl", "api.json")
	require.Zero(t, code, errs)
	require.NoError(t, os.WriteFile("back.hcl", []byte(hcl), 0o600))
	code, again, _ := jobCommandLine(t, "job", "format", "--json", filepath.Join(".", "back.hcl"))
	require.Zero(t, code)
	require.Equal(t, api, again)

	code, _, errs = jobCommandLine(t, "job", "format", "--hcl", "--json", "hello.hcl")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "name one")
	code, _, errs = jobCommandLine(t, "job", "plan", "--hcl", "hello.hcl")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "for job format")
	code, _, errs = jobCommandLine(t, "job", "format", "bad.hcl", "nowhere.hcl")
	require.Equal(t, 1, code, errs)
}

// The jobs that come with the command are valid, formatted and run here, and the
// first one tells what a newcomer asks.
func TestJobsOfTheExample(t *testing.T) {
	files, err := filepath.Glob("jobs/*.hcl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		code, out, errs := jobCommandLine(t, "job", "validate", file)
		require.Zero(t, code, errs)
		require.Empty(t, errs)
		require.Contains(t, out, "is valid, 1 alloc\n")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, formatted, _ := jobCommandLine(t, "job", "format", file)
		require.Equal(t, formatted, string(text), file)
	}
	hello, err := os.ReadFile("jobs/hello.hcl")
	require.NoError(t, err)
	for _, text := range []string{"#   NOMAD_ALLOC_DIR", "#   NOMAD_SECRETS_DIR", "#   $${GREETING}"} {
		require.Contains(t, string(hello), text)
	}
	code, api, errs := jobCommandLine(t, "job", "format", "--json", "jobs/hello.hcl")
	require.Zero(t, code, errs)
	require.Contains(t, api, "$${GREETING}, $guest!", "it reaches the node as a text")
}
