// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

// view is what a golden file shows of a job: all that a node and a scheduler
// make of it, without places.
func view(t *testing.T, job *jobspec.Job) []byte {
	t.Helper()
	type group struct {
		Count int
		Alloc *spec.Alloc
	}
	groups := []group{}
	for _, g := range job.Groups {
		groups = append(groups, group{g.Count, unplaced(g.Alloc)})
	}
	warnings, notes := []string{}, []string{}
	for _, w := range job.Warnings {
		warnings = append(warnings, w.String())
	}
	for _, n := range job.NotActedOn() {
		notes = append(notes, n.String())
	}
	api, err := job.JSON()
	require.NoError(t, err)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	require.NoError(t, enc.Encode(map[string]any{
		"api": json.RawMessage(api), "groups": groups, "warnings": warnings, "not_acted_on": notes,
	}))
	return b.Bytes()
}

// unplaced is an alloc without where its parts are written, and one form of JSON.
func unplaced(a *spec.Alloc) *spec.Alloc {
	a = a.Clone()
	for i := range a.Tasks {
		a.Tasks[i].Origin = nil
		if c := a.Tasks[i].Config; c != nil {
			var v any
			dec := json.NewDecoder(bytes.NewReader(c))
			dec.UseNumber()
			if dec.Decode(&v) == nil {
				a.Tasks[i].Config, _ = json.Marshal(v)
			}
		}
	}
	return a
}

// bare is a tree without places.
func bare(b *jobspec.Block) any {
	attrs := [][]any{}
	for _, a := range b.Attrs {
		attrs = append(attrs, []any{a.Name, a.Value})
	}
	blocks := []any{}
	for _, x := range b.Blocks {
		blocks = append(blocks, bare(x))
	}
	return []any{b.Type, slices.Clone(b.Labels), attrs, blocks}
}

// same holds two jobs against each other, but for places.
func same(t *testing.T, want, got *jobspec.Job, how string) {
	t.Helper()
	require.Equal(t, bare(want.Tree), bare(got.Tree), how)
	require.Len(t, got.Groups, len(want.Groups), how)
	for i := range want.Groups {
		require.Equal(t, want.Groups[i].Count, got.Groups[i].Count, how)
		require.Equal(t, unplaced(want.Groups[i].Alloc), unplaced(got.Groups[i].Alloc), how)
	}
	require.Equal(t, [...]any{want.ID, want.Name, want.Namespace, want.Region, want.Type, want.Priority, want.Datacenters, want.Meta},
		[...]any{got.ID, got.Name, got.Namespace, got.Region, got.Type, got.Priority, got.Datacenters, got.Meta}, how)
}

// roundTrip writes a job in both forms and reads it back.
func roundTrip(t *testing.T, job *jobspec.Job) {
	t.Helper()
	read := func(src []byte, name string) *jobspec.Job {
		back, err := jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: name, Src: src}})
		require.NoError(t, err, "%s", src)
		return back
	}
	text := job.HCL()
	again := read(text, "back.hcl")
	same(t, job, again, string(text))
	require.Equal(t, string(text), string(again.HCL()))
	require.Empty(t, again.Warnings, "what is written has no old spellings")

	api, err := job.JSON()
	require.NoError(t, err)
	fromAPI := read(api, "back.json")
	same(t, job, fromAPI, string(api))
	require.Equal(t, string(text), string(fromAPI.HCL()))
	api2, err := fromAPI.JSON()
	require.NoError(t, err)
	require.Equal(t, string(api), string(api2))

	formatted, err := jobspec.FormatHCL(jobspec.File{Name: "back.hcl", Src: text})
	require.NoError(t, err)
	if !bytes.Contains(text, []byte("%{")) { // whose blanks are the text's own
		require.Equal(t, string(text), string(formatted), "what is written is formatted")
	}
}

func corpus(t testing.TB) []string {
	var all []string
	for _, pattern := range []string{"testdata/corpus/*.hcl", "testdata/corpus/*.json"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			if !strings.HasSuffix(f, ".golden.json") {
				all = append(all, f)
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// corpusConfig is how a file of the corpus is read: with its variables beside it,
// and the files of testdata/files for functions.
func corpusConfig(t testing.TB, file string) jobspec.ParseConfig {
	src, err := os.ReadFile(file)
	require.NoError(t, err)
	cfg := jobspec.ParseConfig{
		File: jobspec.File{Name: filepath.Base(file), Src: src}, Files: os.DirFS("testdata/files"),
		Env:     []string{"NOMAD_VAR_from_env=of the environment"},
		Getenv:  func(name string) (string, bool) { return "<" + name + ">", true },
		Lenient: strings.Contains(file, "lenient"),
	}
	if vars := strings.TrimSuffix(file, filepath.Ext(file)) + ".vars"; exists(vars) {
		cfg.VarFiles = []jobspec.File{{Name: vars}}
	}
	return cfg
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }

func TestCorpus(t *testing.T) {
	files := corpus(t)
	require.GreaterOrEqual(t, len(files), 60)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			job, err := jobspec.Parse(corpusConfig(t, f))
			require.NoError(t, err)
			golden(t, strings.TrimSuffix(f, filepath.Ext(f))+".golden.json", view(t, job))
			roundTrip(t, job)
			allocs, err := job.Allocs(jobspec.AllocOptions{})
			require.NoError(t, err)
			for _, a := range allocs {
				require.NoError(t, a.Validate())
			}
		})
	}
}

// Every block of the language is in the corpus, and every argument but those
// that only have old spellings.
func TestCorpusCoversLanguage(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range corpus(t) {
		src, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, word := range strings.FieldsFunc(string(src), func(r rune) bool {
			return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}) {
			seen[word] = true
		}
	}
	var missing []string
	for _, name := range jobspec.Names() {
		if !seen[name] {
			missing = append(missing, name)
		}
	}
	require.Empty(t, missing)
}
