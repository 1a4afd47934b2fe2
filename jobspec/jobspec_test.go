// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func parse(t *testing.T, src string) (*jobspec.Job, error) {
	t.Helper()
	return jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "test.hcl", Src: []byte(src)}})
}

// task parses a job whose only task has the given body, from line 7 on.
func task(t *testing.T, body string) (*spec.Task, error) {
	t.Helper()
	job, err := parse(t, "variable \"v\" {\n default = \"val\"\n}\njob \"j\" {\n group \"g\" {\n  task \"t\" {\n"+body+"\ndriver = \"d\"\n  }\n }\n}\n")
	if err != nil {
		return nil, err
	}
	return &job.Groups[0].Alloc.Tasks[0], nil
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.hcl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			job, err := jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: f}})
			require.NoError(t, err)
			allocs, err := job.Allocs(jobspec.AllocOptions{Index: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
			require.NoError(t, err)
			got, err := json.MarshalIndent(map[string]any{"allocs": allocs}, "", "  ")
			require.NoError(t, err)
			golden(t, strings.TrimSuffix(f, ".hcl")+".golden.json", append(got, '\n'))
		})
	}
}

// Each file is wrong in the ways its name says; the golden file is what people see.
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.hcl")
	require.NoError(t, err)
	api, err := filepath.Glob("testdata/errors_json/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.NotEmpty(t, api)
	for _, f := range append(files, api...) {
		t.Run(filepath.Base(f), func(t *testing.T) {
			src, err := os.ReadFile(f)
			require.NoError(t, err)
			_, err = jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: filepath.Base(f), Src: src}})
			var e *jobspec.Error
			require.ErrorAs(t, err, &e)
			var b bytes.Buffer
			require.NoError(t, e.Render(&b, false))
			golden(t, strings.TrimSuffix(f, filepath.Ext(f))+".golden", b.Bytes())
			require.Equal(t, len(e.Diagnostics), strings.Count(e.Error(), "\n")+1)
		})
	}
}

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/agent/jobs/*.hcl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		job, err := jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: f}})
		require.NoError(t, err)
		_, err = job.Allocs(jobspec.AllocOptions{})
		require.NoError(t, err)
	}
}

// What an expression becomes in a task's env and in its config. "later" is a
// variable of the task below whose value is "val".
func TestExpressions(t *testing.T) {
	for _, c := range []struct{ expr, env, config string }{
		{`"x"`, `x`, `"x"`},
		{`5`, `5`, `5`},
		{`true`, `true`, `true`},
		{`"${var.v}"`, `val`, `"val"`},
		{`var.v`, `val`, `"val"`},
		{`"a-${var.v}-b"`, `a-val-b`, `"a-val-b"`},
		{`"${node.class}"`, `${node.class}`, `"${node.class}"`},
		{`"a${attr.cpu.arch}b${meta.x-y}c"`, `a${attr.cpu.arch}b${meta.x-y}c`, `"a${attr.cpu.arch}b${meta.x-y}c"`},
		{`"${NOMAD_TASK_DIR}/${var.v}/${FOO}"`, `${NOMAD_TASK_DIR}/val/${FOO}`, `"${NOMAD_TASK_DIR}/val/${FOO}"`},
		{`"${ env.HOME }"`, `${env.HOME}`, `"${env.HOME}"`},
		{`node.class`, `${node.class}`, `"${node.class}"`},
		{`NOMAD_ALLOC_ID`, `${NOMAD_ALLOC_ID}`, `"${NOMAD_ALLOC_ID}"`},
		{`"$HOME $(x) $$ 100%"`, `$HOME $(x) $$ 100%`, `"$HOME $(x) $$ 100%"`},
		{`"$${HOME}"`, `$${HOME}`, `"$${HOME}"`},
		{`"$${HOME} ${HOME} ${var.v}"`, `$${HOME} ${HOME} val`, `"$${HOME} ${HOME} val"`},
		{`"%%{x}"`, `%{x}`, `"%%{x}"`},
		{`"${var.v == "val" ? "yes" : "no"}"`, `yes`, `"yes"`},
		{`var.v == "val" ? node.class : "no"`, `${node.class}`, `"${node.class}"`},
		{`"${var.v == "val" ? NOMAD_A : NOMAD_B}/x"`, `${NOMAD_A}/x`, `"${NOMAD_A}/x"`},
		{`"${attr.x == var.v ? "y" : "n"}"`, `${attr.x == "val" ? "y" : "n"}`, `"${attr.x == \"val\" ? \"y\" : \"n\"}"`},
		{`"${attr.n * 2}"`, `${attr.n * 2}`, `"${attr.n * 2}"`},
		{`"%{ if var.v == "val" }A%{ else }B%{ endif }"`, `A`, `"A"`},
		{`"%{ for x in ["a", "b"] }${x}${var.v} %{ endfor }"`, `aval bval `, `"aval bval "`},
		{"<<-E\n    a ${var.v}\n      b ${NOMAD_A}\n    E\n", "a val\n  b ${NOMAD_A}\n", `"a val\n  b ${NOMAD_A}\n"`},
		{"<<E\n  a\nE\n", "  a\n", `"  a\n"`},
		{`("${var.v}")`, `val`, `"val"`},
		{`(node.class)`, `${node.class}`, `"${node.class}"`},
		{`["${NOMAD_A}", var.v, 1, [node.class]]`, ``, `["${NOMAD_A}","val",1,["${node.class}"]]`},
		{`{ a = "${NOMAD_A}", "b-${var.v}" = 1, (var.v) = true, "${NOMAD_A}" = 2 }`, ``, `{"${NOMAD_A}":2,"a":"${NOMAD_A}","b-val":1,"val":true}`},
		{`[for x in ["a", "b"] : "${x}/${var.v}"]`, ``, `["a/val","b/val"]`},
		{`[for x in ["a", "b"] : "${x}/${var.v}/${node.class}"]`, ``, `["a/val/${node.class}","b/val/${node.class}"]`},
		{`[for i, x in ["a", "b"] : "${i}${node.class}" if x == "b"]`, ``, `["1${node.class}"]`},
		{`{ for k, x in { a = 1 } : "${k}-${var.v}" => "${k}${node.class}${x}" }`, ``, `{"a-val":"a${node.class}1"}`},
		{`"%{ for x in ["a", "b"] }${x}${node.class},%{ endfor }"`, `a${node.class},b${node.class},`, `"a${node.class},b${node.class},"`},
		{`"é\t\"${var.v}\\"`, "é\t\"val\\", `"é\t\"val\\"`},
	} {
		if c.env != "" {
			task, err := task(t, "env {\nX = "+c.expr+"\n}")
			require.NoError(t, err, c.expr)
			require.Equal(t, c.env, task.Env["X"], c.expr)
		}
		task, err := task(t, "config {\nx = "+c.expr+"\n}")
		require.NoError(t, err, c.expr)
		var config map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(task.Config, &config))
		require.JSONEq(t, c.config, string(config["x"]), c.expr)
	}
}

// A local value keeps what is known at run time only, through any number of steps,
// and text that only looks like it stays text.
func TestLocals(t *testing.T) {
	job, err := parse(t, `
variable "evil" {
  default = "$${NOMAD_A}"
}
locals {
  c = "${local.b}:${local.a.list[1]}"
  b = "${local.a.dir}/${var.evil}"
  a = { dir = "${NOMAD_TASK_DIR}", list = ["x", node.class] }
}
job "j" {
  group "g" {
    task "t" {
      driver = "d"
      env {
        C = local.c
        D = "${attr.x == local.a.dir ? 1 : 2}"
      }
      config {
        c = "<${local.c}>"
        d = "${attr.x == local.a.dir}"
      }
    }
  }
}`)
	require.NoError(t, err)
	task := job.Groups[0].Alloc.Tasks[0]
	require.Equal(t, "${NOMAD_TASK_DIR}/$${NOMAD_A}:${node.class}", task.Env["C"])
	require.Equal(t, `${attr.x == "${NOMAD_TASK_DIR}" ? 1 : 2}`, task.Env["D"])
	var config map[string]string
	require.NoError(t, json.Unmarshal(task.Config, &config))
	require.Equal(t, "<${NOMAD_TASK_DIR}/$${NOMAD_A}:${node.class}>", config["c"])
	require.Equal(t, `${attr.x == "${NOMAD_TASK_DIR}"}`, config["d"])
}

const withVars = `
variable "s" {
  type    = string
  default = "default"
}
variable "n" {
  type    = number
  default = 1
}
variable "l" {
  type    = list(string)
  default = []
}
variable "u" {
  default = "none"
}
job "j" {
  meta { 
    s = var.s
    n = var.n
    u = var.u
    l = "%{ for x in var.l }${x},%{ endfor }"
  }
  group "g" {
    task "t" {
      driver = "d"
    }
  }
}`

func TestVariables(t *testing.T) {
	file := func(src string) jobspec.File { return jobspec.File{Name: "vars.hcl", Src: []byte(src)} }
	for _, c := range []struct {
		name       string
		cfg        jobspec.ParseConfig
		s, n, u, l string
	}{
		{name: "defaults", s: "default", n: "1", u: "none"},
		{name: "environment", cfg: jobspec.ParseConfig{Env: []string{"NOMAD_VAR_s=env", "NOMAD_VAR_n=2", "NOMAD_VAR_other=x", "s=no", "NOMAD_VAR_l=[\"a\"]", "odd"}},
			s: "env", n: "2", u: "none", l: "a,"},
		{name: "file over environment", cfg: jobspec.ParseConfig{Env: []string{"NOMAD_VAR_s=env"}, VarFiles: []jobspec.File{file("s = \"file\"\nl = [\"a\", \"b\"]\n")}},
			s: "file", n: "1", u: "none", l: "a,b,"},
		{name: "later file over file", cfg: jobspec.ParseConfig{VarFiles: []jobspec.File{file(`s = "one"`), file(`s = "two"`)}},
			s: "two", n: "1", u: "none"},
		{name: "JSON file over file", cfg: jobspec.ParseConfig{VarFiles: []jobspec.File{file(`s = "one"`), file(`{"s": "${two}", "l": ["a", "b"], "n": null}`)}},
			s: "$${two}", n: "1", u: "none", l: "a,b,"},
		{name: "flag over all", cfg: jobspec.ParseConfig{Vars: map[string]string{"s": "flag", "n": "3", "u": `"quoted"`}, VarFiles: []jobspec.File{file(`s = "one"`)}},
			s: "flag", n: "3", u: `"quoted"`},
		{name: "texts are texts", cfg: jobspec.ParseConfig{Vars: map[string]string{"s": "${node.class} 5"}},
			s: "$${node.class} 5", n: "1", u: "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.File = jobspec.File{Name: "test.hcl", Src: []byte(withVars)}
			job, err := jobspec.Parse(c.cfg)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"s": c.s, "n": c.n, "u": c.u, "l": c.l}, job.Meta)
		})
	}
	for _, c := range []struct {
		cfg  jobspec.ParseConfig
		want string
	}{
		{jobspec.ParseConfig{Vars: map[string]string{"x": "1"}}, `-var x:1:1: Unknown variable: The job file declares no variable "x"; it declares l, n, s, u. To declare one: variable "x" {}, beside the job block; it is used as var.x.`},
		{jobspec.ParseConfig{Vars: map[string]string{"n": "many"}}, `-var n:1:1: Variables not allowed: The value of a variable is fixed: no other names can be used in it. A text needs quotes.`},
		{jobspec.ParseConfig{Vars: map[string]string{"n": "[1]"}}, `-var n:1:1: Wrong type of value: The variable "n" is declared as number: number required, but have tuple.`},
		{jobspec.ParseConfig{Env: []string{"NOMAD_VAR_n="}}, `NOMAD_VAR_n:1:1: Missing expression: Expected the start of an expression, but found the end of the file.`},
		{jobspec.ParseConfig{VarFiles: []jobspec.File{file("\ny = 1\nb {}")}},
			"vars.hcl:2:1: Unknown variable: The job file declares no variable \"y\"; it declares l, n, s, u. To declare one: variable \"y\" {}, beside the job block; it is used as var.y.\nvars.hcl:3:1: Unexpected block: A variable file has lines of name = value only."},
		{jobspec.ParseConfig{VarFiles: []jobspec.File{file(`{"y": 1, "n": [1], "s": 1e99999}`)}}, "vars.hcl:1:1: Invalid number: A number here is too large or too small."},
		{jobspec.ParseConfig{VarFiles: []jobspec.File{file("{\n\"y\": 1,\n\"n\": [1]}")}},
			"vars.hcl:2:1: Unknown variable: The job file declares no variable \"y\"; it declares l, n, s, u. To declare one: variable \"y\" {}, beside the job block; it is used as var.y.\nvars.hcl:3:6: Wrong type of value: The variable \"n\" is declared as number: number required, but have tuple."},
		{jobspec.ParseConfig{VarFiles: []jobspec.File{file("y = ")}}, "vars.hcl:1:5: Missing expression: Expected the start of an expression, but found the end of the file."},
	} {
		c.cfg.File = jobspec.File{Name: "test.hcl", Src: []byte(withVars)}
		_, err := jobspec.Parse(c.cfg)
		require.EqualError(t, err, c.want)
	}
}

func TestMissingFiles(t *testing.T) {
	_, err := jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "testdata/nowhere.hcl"}})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "testdata/nowhere.hcl")
	_, err = jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "x", Src: []byte(withVars)}, VarFiles: []jobspec.File{{Name: "nowhere.vars"}}})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Zeros that people write are kept apart from what they leave out.
func TestZeros(t *testing.T) {
	none, err := task(t, "")
	require.NoError(t, err)
	require.Equal(t, spec.DefaultRestart(spec.JobService), *none.Restart)
	zero, err := task(t, "restart {\nattempts = 0\n}\nkill_timeout = \"0s\"\nshutdown_delay = \"0s\"\n")
	require.NoError(t, err)
	want := spec.DefaultRestart(spec.JobService)
	want.Attempts = 0
	require.Equal(t, want, *zero.Restart)
	require.Equal(t, time.Nanosecond, zero.KillTimeout, "0 would be the default of 5 s")
	null, err := task(t, "restart {\nattempts = null\n}\nkill_timeout = null\n")
	require.NoError(t, err)
	require.Equal(t, spec.DefaultRestart(spec.JobService), *null.Restart)
}

func TestAllocs(t *testing.T) {
	src := func(count, command, comment string) string {
		return "job \"j\" {\n type = \"batch\"\n datacenters = [\"dc\"]\n group \"a\" {\n count = " + count + "\n" + comment +
			"  task \"t\" {\n driver = \"d\"\n config {\n command = \"" + command + "\"\n}\n}\n}\n group \"b\" {\n task \"t\" {\n driver = \"d\"\n}\n}\n}\n"
	}
	allocs := func(s string, opts jobspec.AllocOptions) map[string]string {
		job, err := parse(t, s)
		require.NoError(t, err)
		all, err := job.Allocs(opts)
		require.NoError(t, err)
		ids := map[string]string{}
		for _, a := range all {
			require.Regexp(t, `^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`, a.ID)
			require.NoError(t, a.Validate())
			require.Equal(t, a, a.WithDefaults())
			ids[a.Name] = a.ID
		}
		return ids
	}
	first := allocs(src("2", "x", ""), jobspec.AllocOptions{})
	require.Len(t, first, 3)
	require.Equal(t, first, allocs(src("2", "x", "# a comment\n"), jobspec.AllocOptions{Index: 5, Time: time.Now()}), "the same job, the same ids")

	more := allocs(src("3", "x", ""), jobspec.AllocOptions{})
	require.Len(t, more, 4)
	for name, id := range first {
		require.Equal(t, id, more[name], "another count leaves those that are there alone")
	}
	changed := allocs(src("2", "y", ""), jobspec.AllocOptions{})
	require.NotEqual(t, first["j.a[0]"], changed["j.a[0]"], "what changed is replaced")
	require.Equal(t, first["j.b[0]"], changed["j.b[0]"], "and nothing else")
	again := allocs(src("2", "x", ""), jobspec.AllocOptions{Version: "2"})
	require.NotEqual(t, first["j.a[0]"], again["j.a[0]"])
	require.Equal(t, again, allocs(src("2", "y", ""), jobspec.AllocOptions{Version: "2"}), "the caller's version is all that counts")

	job, err := parse(t, src("1", "x", ""))
	require.NoError(t, err)
	all, err := job.Allocs(jobspec.AllocOptions{Datacenter: "here"})
	require.NoError(t, err)
	require.Equal(t, "here", all[0].Datacenter)
	require.Equal(t, spec.JobBatch, all[0].JobType)
	require.Equal(t, spec.DefaultRestart(spec.JobBatch), *all[0].Tasks[0].Restart, "defaults by the job's type")

	job.Groups[0].Alloc.Tasks[0].Driver = ""
	_, err = job.Allocs(jobspec.AllocOptions{})
	require.ErrorContains(t, err, `group "a": tasks[0].driver: is required`)
}

func TestLimits(t *testing.T) {
	for src, want := range map[string]string{
		strings.Repeat("#", jobspec.MaxSize+1): "File too large",
		"x = " + strings.Repeat("(", 5000):     "Nested too deep",
		"x = " + strings.Repeat("\"${", 5000):  "Nested too deep",
		strings.Repeat("a {", 5000):            "Nested too deep",
		"# \ufdd0":                             "Invalid character",
		"x = \"\\uFDD1\"":                      "Invalid character",
		"\x00":                                 "Invalid character",
		"job \"\xff\" {}":                      "Invalid",
		"job \"x\" {\n group \"g\" {\n count = 9223372036854775807\n task \"t\" {}\n }\n}": "out of range",
	} {
		_, err := parse(t, src)
		require.ErrorContains(t, err, want, "%.20q", src)
	}
}

func TestRenderColor(t *testing.T) {
	_, err := parse(t, "job \"j\" {\n\tfoo = 1\n}\n")
	var e *jobspec.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Diagnostics, 2)
	d := e.Diagnostics[1]
	require.Equal(t, []any{"test.hcl", 2, 2, 3, "\tfoo = 1"}, []any{d.File, d.Line, d.Column, d.Width, d.Source})
	var b bytes.Buffer
	require.NoError(t, e.Render(&b, true))
	require.Contains(t, b.String(), "     2 | \tfoo = 1\n       | \t\x1b[31m^^^\x1b[0m\n")
}

// What a file says costs a bounded time, however it says it.
func TestBombs(t *testing.T) {
	big := strings.Repeat("a", 20_000)
	for name, locals := range map[string]string{
		"doubling":       "a = \"" + strings.Repeat("x", 1000) + "\"\n" + doubling(40),
		"loops in loops": "l = range(1000)\nx = [for a in local.l : [for b in local.l : [for c in local.l : [for d in local.l : a]]]]",
		"product":        "l = range(1000)\nx = setproduct(local.l, local.l, local.l, local.l)",
		"width":          "x = format(\"%1000000000d\", 1)",
		"replace":        "b = \"" + big + "\"\nx = replace(local.b, \"a\", local.b)",
		"regex_replace":  "b = \"" + big + "\"\nx = regex_replace(local.b, \"a\", local.b)",
		"join":           "b = \"" + big + "\"\nx = join(local.b, [for i in range(1000) : \"\"])",
		"indent":         "x = indent(1000000000, \"a\\nb\")",
		"distinct":       "x = distinct(flatten([for i in range(100) : [for j in range(100) : \"${i}-${j}\"]]))",
		"power":          "x = \"${pow(10, 1000000000)}\"",
		"bcrypt":         "x = bcrypt(\"a\", 31)",
		"json number":    "x = jsondecode(\"1e999999999\")",
		"text number":    "x = max(\"1e999999999\", 1)",
		"yaml":           "x = yamldecode(\"a: &a [x,x,x,x,x,x,x,x,x]\\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\\nd: [*c,*c,*c,*c,*c,*c,*c,*c,*c]\")",
		"index":          "x = [1][\"1e999999999\"]",
		"splat":          "l = range(1000)\nx = [for a in local.l : [for b in local.l : local.l[*]]]",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, err := parse(t, "locals {\n"+locals+"\n}\njob \"j\" {\n group \"g\" {\n task \"t\" {\n driver = \"d\"\n}\n}\n}\n")
			require.Error(t, err)
			require.Less(t, time.Since(start), 10*time.Second)
		})
	}
	for name, line := range map[string]string{
		"unknown": "x%d = 1\n", "quoted": "\"x%d\" = 1\n", "syntax": "%d x = = 1\n", "blocks": "contraint {\n x%d = 1\n}\n", "one line": "x%d { a = ", "names": "meta {\n a%d = b\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for i := 0; b.Len() < jobspec.MaxSize/128; i++ {
				fmt.Fprintf(&b, line, i)
			}
			start := time.Now()
			_, err := parse(t, "job \"j\" {\n"+b.String()+"}\n")
			var e *jobspec.Error
			require.ErrorAs(t, err, &e)
			require.LessOrEqual(t, len(e.Diagnostics), 100)
			require.Less(t, time.Since(start), 3*time.Second)
		})
	}
	_, err := parse(t, "locals {\n l = range(1000)\n}\njob \"j\" {\n dynamic \"group\" {\n for_each = [for a in local.l : [for b in range(20) : b]]\n labels = [\"g${group.key}\"]\n content {\n dynamic \"task\" {\n for_each = local.l\n labels = [\"t${task.key}\"]\n content {\n driver = \"d\"\n}\n}\n}\n}\n}\n")
	require.ErrorContains(t, err, "Too m")
}

// doubling are n local values, each twice the one before.
func doubling(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%c%d = \"${local.%s}${local.%s}\"\n", 'b', i, prev(i), prev(i))
	}
	return b.String()
}

func prev(i int) string {
	if i == 0 {
		return "a"
	}
	return fmt.Sprintf("b%d", i-1)
}

// Functions read what the host lets them, and no more.
func TestFileFunctions(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "jobs", "sub"), 0o700))
	for name, text := range map[string]string{"secret": "s", "jobs/a.txt": "A", "jobs/sub/b.txt": "B", "jobs/t.tpl": "${templatefile(\"t.tpl\", {})}", "jobs/bin": "\xff"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(dir, "jobs", "link")))
	root, err := os.OpenRoot(filepath.Join(dir, "jobs"))
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	value := func(expr string, cfg jobspec.ParseConfig) (string, error) {
		cfg.File = jobspec.File{Name: "x.hcl", Src: []byte("job \"j\" {\n meta {\n x = " + expr + "\n}\n group \"g\" {\n task \"t\" {\n driver = \"d\"\n}\n}\n}\n")}
		job, err := jobspec.Parse(cfg)
		if err != nil {
			return "", err
		}
		return job.Meta["x"], nil
	}
	confined, whole := jobspec.ParseConfig{Files: root.FS()}, jobspec.ParseConfig{Files: os.DirFS(dir), Dir: "jobs/sub"}
	for _, c := range []struct {
		expr string
		cfg  jobspec.ParseConfig
		want string // "" is an error
	}{
		{`file("a.txt")`, confined, "A"},
		{`file("/a.txt")`, confined, "A"},
		{`file("./sub/../a.txt")`, confined, "A"},
		{`file("../secret")`, confined, ""},
		{`file("link")`, confined, ""},
		{`file("sub")`, confined, ""},
		{`file("bin")`, confined, ""},
		{`filebase64("bin")`, confined, "/w=="},
		{`templatefile("t.tpl", {})`, confined, ""},
		{`join(",", fileset(".", "**/*.txt"))`, confined, "a.txt,sub/b.txt"},
		{`join(",", fileset(".", "{a,sub/{b,c},x}.t{xt}"))`, confined, "a.txt,sub/b.txt"},
		{`length(fileset(".", "{{a,}"))`, confined, "0"},
		{`env("HOME")`, confined, ""},
		{`pathexpand("~/x")`, confined, ""},
		{`file("b.txt")`, whole, "B"},
		{`file("../a.txt")`, whole, "A"},
		{`file("../../secret")`, whole, "s"},
		{`file("../../../etc/passwd")`, whole, ""},
		{`abspath("x")`, whole, "/jobs/sub/x"},
		{`file("a.txt")`, jobspec.ParseConfig{}, ""},
		{`fileexists("a.txt")`, jobspec.ParseConfig{}, ""},
		{`fileset(".", "*")`, jobspec.ParseConfig{}, ""},
	} {
		got, err := value(c.expr, c.cfg)
		if c.want == "" {
			require.Error(t, err, c.expr)
			continue
		}
		require.NoError(t, err, c.expr)
		require.Equal(t, c.want, got, c.expr)
	}
}

// A scheduler finds its part in the tree, with the places.
func TestTree(t *testing.T) {
	job, err := parse(t, "job \"j\" {\n group \"g\" {\n  constraint {\n   attribute = node.class\n   regexp = \"b.*\"\n  }\n  scaling {\n   max = \"7\"\n   policy {\n    cooldown = \"1m\"\n   }\n  }\n  task \"t\" {\n   driver = \"d\"\n  }\n }\n}\n")
	require.NoError(t, err)
	g := job.Groups[0].Tree
	c := g.First("constraint")
	require.Equal(t, []any{"${node.class}", "regexp", "b.*", nil}, []any{c.Get("attribute"), c.Get("operator"), c.Get("value"), c.Get("weight")})
	require.Equal(t, jobspec.Range{File: "test.hcl", Line: 3, Column: 3, EndLine: 3, EndColumn: 13}, c.Range)
	require.Len(t, g.All("constraint"), 1)
	require.Nil(t, g.First("spread"))
	require.Equal(t, map[string]any{"max": int64(7), "policy": map[string]any{"cooldown": "1m"}}, g.First("scaling").Map())
	require.Equal(t, "t", g.First("task").Label())
	require.Empty(t, c.Label())
	notes := job.NotActedOn(jobspec.ByScheduler)
	require.Empty(t, notes)
	require.Len(t, job.NotActedOn(), 2)
}
