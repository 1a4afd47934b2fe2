// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/jobspec"
)

// The guide shows this program, to the letter, and what it says of configurations
// is so.
func TestGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/writing-a-driver.md")
	require.NoError(t, err)
	var source strings.Builder
	for _, f := range []string{"main.go", "driver.go", "task.go"} {
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
		case "json":
			var f struct {
				Plugins map[string]struct{ Config json.RawMessage }
			}
			require.NoError(t, json.Unmarshal([]byte(m[2]), &f))
			_, err := driverconfig.Eval((&scripts{}).Info().ConfigSchema, f.Plugins["script"].Config, nil, nil)
			require.NoError(t, err)
		}
	}
	require.Greater(t, seen["go"], 5)
	require.Equal(t, 1, seen["json"])
	file, err := jobspec.ReadFile("job.hcl")
	require.NoError(t, err)
	parsed, err := jobspec.Parse(jobspec.ParseConfig{File: file})
	require.NoError(t, err)
	task := parsed.Groups[0].Alloc.Tasks[0]
	require.Equal(t, name, task.Driver)
	require.NoError(t, driverconfig.Validate((&scripts{}).Info().TaskSchema, task.Config, task.Origin))
	require.NoError(t, driverconfig.Validate((&scripts{}).Info().TaskSchema, json.RawMessage(`{"script":"echo"}`), nil))
}
