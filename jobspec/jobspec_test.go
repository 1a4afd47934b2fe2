// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"bytes"
	"encoding/json"
	"flag"
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
	return &job.Groups[0].Tasks[0], nil
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
			got, err := json.MarshalIndent(map[string]any{"job": job, "allocs": allocs}, "", "  ")
			require.NoError(t, err)
			golden(t, strings.TrimSuffix(f, ".hcl")+".golden.json", append(got, '\n'))
		})
	}
}

// Each file is wrong in the ways its name says; the golden file is what people see.
func TestErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.hcl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			src, err := os.ReadFile(f)
			require.NoError(t, err)
			_, err = jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: filepath.Base(f), Src: src}})
			var e *jobspec.Error
			require.ErrorAs(t, err, &e)
			var b bytes.Buffer
			require.NoError(t, e.Render(&b, false))
			golden(t, strings.TrimSuffix(f, ".hcl")+".golden", b.Bytes())
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
