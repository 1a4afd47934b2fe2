// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

func seeds(f *testing.F, patterns ...string) {
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		require.NoError(f, err)
		require.NotEmpty(f, files, pattern)
		for _, name := range files {
			src, err := os.ReadFile(name)
			require.NoError(f, err)
			f.Add(src)
		}
	}
}

// fuzzParse reads src, which must end in a job or in faults that can be shown,
// within a bounded time.
func fuzzParse(t *testing.T, name string, src []byte) *jobspec.Job {
	start := time.Now()
	defer func() { require.Less(t, time.Since(start), 20*time.Second) }()
	job, err := jobspec.Parse(jobspec.ParseConfig{
		File: jobspec.File{Name: name, Src: append([]byte{}, src...)}, Vars: map[string]string{"image": "v2", "count": "1"},
		Lenient: bytes.Contains(src, []byte("lenient")), Files: os.DirFS("testdata/files"),
	})
	if err == nil {
		return job
	}
	var e *jobspec.Error
	require.ErrorAs(t, err, &e)
	for _, d := range e.Diagnostics {
		require.NotEmpty(t, d.Summary)
		require.NotEmpty(t, d.File)
		require.Positive(t, d.Line)
		require.Positive(t, d.Column)
	}
	var b bytes.Buffer
	require.NoError(t, e.Render(&b, false))
	return nil
}

// allocsOf makes the allocs of a job, which must survive JSON.
func allocsOf(t *testing.T, job *jobspec.Job) {
	for _, g := range job.Groups {
		if g.Count > 10 {
			return
		}
	}
	allocs, err := job.Allocs(jobspec.AllocOptions{})
	require.NoError(t, err)
	for _, a := range allocs {
		data, err := json.Marshal(a)
		require.NoError(t, err)
		require.NotContains(t, string(data), "\ufdd0")
		var back spec.Alloc
		require.NoError(t, json.Unmarshal(data, &back))
		require.Equal(t, a.WithDefaults(), back.WithDefaults())
	}
}

func FuzzParse(f *testing.F) {
	seeds(f, "testdata/*.hcl", "testdata/errors/*.hcl", "testdata/corpus/*.hcl", "../examples/agent/jobs/*.hcl")
	f.Fuzz(func(t *testing.T, src []byte) {
		if job := fuzzParse(t, "fuzz.hcl", src); job != nil {
			allocsOf(t, job)
			job.NotActedOn()
		}
	})
}

func FuzzJSON(f *testing.F) {
	seeds(f, "testdata/errors_json/*.json", "testdata/corpus/*.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		if job := fuzzParse(t, "fuzz.json", src); job != nil {
			allocsOf(t, job)
			roundTrip(t, job)
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	seeds(f, "testdata/*.hcl", "testdata/corpus/*.hcl", "testdata/corpus/*.json")
	f.Fuzz(func(t *testing.T, src []byte) {
		if bytes.Contains(src, []byte("uuidv4")) || bytes.Contains(src, []byte("timestamp")) || bytes.Contains(src, []byte("bcrypt")) {
			return
		}
		if job := fuzzParse(t, "fuzz.hcl", src); job != nil {
			roundTrip(t, job)
		}
	})
}

// What is formatted says the same, and formatting it again changes nothing.
func FuzzFormat(f *testing.F) {
	seeds(f, "testdata/*.hcl", "testdata/errors/*.hcl", "testdata/corpus/*.hcl")
	f.Fuzz(func(t *testing.T, src []byte) {
		text, err := jobspec.FormatHCL(jobspec.File{Name: "fuzz.hcl", Src: append([]byte{}, src...)})
		if err != nil {
			var e *jobspec.Error
			require.ErrorAs(t, err, &e)
			return
		}
		again, err := jobspec.FormatHCL(jobspec.File{Name: "fuzz.hcl", Src: text})
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
		if strings.Contains(string(src), "%{") || strings.Contains(string(src), "${") {
			return // blanks inside count as text for whoever reads them at run time
		}
		before, after := fuzzParse(t, "fuzz.hcl", src), fuzzParse(t, "fuzz.hcl", text)
		require.Equal(t, before == nil, after == nil)
		if before != nil {
			same(t, before, after, string(text))
		}
	})
}
