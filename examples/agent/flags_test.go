// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"":                   "f=false n=0 []",
		"-f a":               "f=true n=0 [a]",
		"a -f":               "f=true n=0 [a]",
		"a -n 3 b -f":        "f=true n=3 [a b]",
		"a -n=3 b --f=false": "f=false n=3 [a b]",
		"-f -- -n 3":         "f=true n=0 [-n 3]",
		"a -- b -f":          "f=false n=0 [a b -f]",
		"- -f":               "f=true n=0 [-]",
		"a --n 3":            "f=false n=3 [a]",
		"-x":                 "unknown flag --x: see nodekeep cmd --help",
		"a -n":               "flag needs an argument: -n: see nodekeep cmd --help",
		"a -n x":             `-n "x": is no number, or a duration without a unit such as 30s or 5m: see nodekeep cmd --help`,
		"a --help":           "help",
		"-h":                 "help",
		"a -f=maybe":         `invalid boolean value "maybe" for -f: parse error: see nodekeep cmd --help`,
	} {
		fs := flag.NewFlagSet("cmd", flag.ContinueOnError)
		f, n := fs.Bool("f", false, ""), fs.Int("n", 0, "")
		pos, err := parse(fs, "cmd", strings.Fields(args))
		got := "f=" + map[bool]string{true: "true", false: "false"}[*f] + " n=" + string(rune('0'+*n)) + " [" + strings.Join(pos, " ") + "]"
		if err != nil {
			got = err.Error()
		}
		require.Equal(t, want, got, args)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a\x00-f\x00--\x00b")
	f.Add("-n\x003")
	f.Fuzz(func(t *testing.T, in string) {
		fs := flag.NewFlagSet("cmd", flag.ContinueOnError)
		fs.Bool("f", false, "")
		fs.Int("n", 0, "")
		args := strings.Split(in, "\x00")
		pos, err := parse(fs, "cmd", args)
		if err == nil && len(pos) > len(args) {
			t.Fatalf("%q became %q", args, pos)
		}
	})
}

func TestDefaultData(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	require.Equal(t, "/var/lib/nodekeep", defaultData(0, env(nil)))
	require.Equal(t, "/x/nodekeep", defaultData(1000, env(map[string]string{"XDG_STATE_HOME": "/x", "HOME": "/h"})))
	require.Equal(t, "/h/.local/state/nodekeep", defaultData(1000, env(map[string]string{"HOME": "/h"})))
	require.Equal(t, "/h/.local/state/nodekeep", defaultData(1000, env(map[string]string{"XDG_STATE_HOME": "relative", "HOME": "/h"})))
}

// command line in, exit code and texts out; none of these reaches an agent.
func TestUse(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]struct {
		code     int
		out, err string
	}{
		"":                       {2, "Usage: nodekeep COMMAND", "no command"},
		"--help":                 {0, "Commands:", ""},
		"help":                   {0, "Commands:", ""},
		"help ps":                {0, "Usage: nodekeep ps", ""},
		"run --help":             {0, "--var K=V", ""},
		"run  --help":            {0, "DATA/run/NAMESPACE.JOB", ""},
		"run --help -f":          {0, "removed with the job's logs and files, unless --keep", ""},
		"stop x --help":          {0, "--no-shutdown-delay", ""},
		"version":                {0, "commit", ""},
		"--version":              {0, "commit", ""},
		"version --json":         {0, `"protocol": 1`, ""},
		"sttop":                  {2, "", `unknown command "sttop": did you mean "stop"?`},
		"insp":                   {2, "", `did you mean "inspect"?`},
		"bogus":                  {2, "", `unknown command "bogus": see nodekeep --help`},
		"frobnicate":             {2, "", `unknown command "frobnicate": see nodekeep --help`},
		"ps a b":                 {2, "", "one ALLOC at most"},
		"ps --jsom":              {2, "", "unknown flag --jsom: see nodekeep ps --help"},
		"run":                    {2, "", "name a job file"},
		"run x --var y":          {2, "", `--var "y": use --var NAME=VALUE`},
		"apply":                  {2, "", "name a job file"},
		"apply x --wait dead":    {2, "", "use running or complete"},
		"apply x --timeout 3s":   {2, "", "add --wait"},
		"stop":                   {2, "", "name the allocs to stop, or --all"},
		"stop a --all":           {2, "", "name the allocs to stop, or --all"},
		"restart":                {2, "", "restart takes ALLOC"},
		"restart a t --all":      {2, "", "leave out TASK or --all"},
		"signal a":               {2, "", "-s SIGHUP"},
		"signal -s SIGHUP":       {2, "", "signal takes ALLOC"},
		"logs":                   {2, "", "logs takes ALLOC"},
		"logs a -n -3":           {2, "", "use 0 or more"},
		"events --since x":       {2, "", "no token"},
		"job":                    {2, "", "job can validate"},
		"job validate":           {2, "", "name a job file"},
		"serve x":                {2, "", "serve takes no arguments"},
		"serve --log-level loud": {2, "", `unknown log level "loud"`},
		"ps --data=":             {2, "", `--data "": names no directory: name one, or leave the flag out`},
		"--data= ps":             {2, "", `--data "": names no directory`},
		"--data= --version":      {2, "", `--data "": names no directory`},
		"serve --runtime-dir=":   {2, "", `--runtime-dir "": names no directory`},
		"ps":                     {1, "", "no agent serves on " + dir + "/agent.sock: start one with \"nodekeep serve --data " + dir + "\""},
		"logs a":                 {1, "", "no agent serves"},
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs bytes.Buffer
			a := &app{stdout: &out, stderr: &errs, env: func(string) string { return "" }, global: global{data: dir}}
			code := a.main(context.Background(), strings.Fields(args))
			require.Equal(t, want.code, code, errs.String())
			require.Contains(t, out.String(), want.out)
			require.Contains(t, errs.String(), want.err)
			if code != 0 {
				require.True(t, strings.HasPrefix(errs.String(), "nodekeep: "), errs.String())
				require.Equal(t, 1, strings.Count(errs.String(), "\n"), "one clear error")
			}
		})
	}
	require.NoFileExists(t, dir+"/state.db")
}

// TestHelpOfAll: every command has a text, and its flags are told.
func TestHelpOfAll(t *testing.T) {
	for _, c := range commands() {
		var out bytes.Buffer
		a := &app{stdout: &out, stderr: &out, env: func(string) string { return "" }}
		require.Zero(t, a.main(context.Background(), []string{c.name, "--help"}))
		require.Contains(t, out.String(), "Usage: nodekeep "+c.name)
		require.Contains(t, out.String(), "--data DIR")
		require.NotContains(t, out.String(), "--f ", "short flags have one dash")
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"stop", "stop", 0}, {"sotp", "stop", 2}} {
		require.Equal(t, tt.want, distance(tt.a, tt.b), "%s %s", tt.a, tt.b)
	}
}
