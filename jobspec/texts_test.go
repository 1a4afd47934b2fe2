// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nodekeep/nodekeep/jobspec"
	"github.com/stretchr/testify/require"
)

// Any text in any place comes back through both forms, also what looks like the
// language, its escapes and its quotes.
func TestRoundTripTexts(t *testing.T) {
	fragments := []string{
		"", "$", "$$", "%", "%%", "{", "}", "${", "$${", "%{", "%%{", "${a}", "$${a}", "${ a.b }", "${a[0]}", `${a["x"]}`, "${a ? b : c}", "${var.x}", "${}",
		"${X:-y}", "${1}", "\\", `"`, "\n", "\r", "\r\n", "\t", " ", "EOF", "EOF\n", "a\nb\nc\n", "é", "\u200b", "😀", "code", "${code0}", "{{ x }}", "[[ x ]]", "#", "//", "for",
	}
	quote := func(s string) string {
		data, err := json.Marshal(s)
		require.NoError(t, err)
		return string(data)
	}
	var texts []string
	for i, a := range fragments {
		for j, b := range fragments {
			switch (i + j) % 10 { // all of them take a minute under the race detector
			case 0:
				texts = append(texts, a+b)
			case 5:
				texts = append(texts, a+b+"\nx\n"+a)
			}
		}
	}
	const chunk = 50
	for from := 0; from < len(texts); from += chunk {
		env, meta, args, data := "", "", "", ""
		for i, s := range texts[from:min(from+chunk, len(texts))] {
			comma := ","
			if i == 0 {
				comma = ""
			}
			env += fmt.Sprintf(`%s"N%d":%s`, comma, i, quote(s))
			meta += fmt.Sprintf(`%s%s:"v%d"`, comma, quote(fmt.Sprint("k", i, s)), i)
			args += comma + quote(s)
			data += fmt.Sprintf(`%s{"DestPath":"local/%d","EmbeddedTmpl":%s}`, comma, i, quote("x"+s))
		}
		src := fmt.Sprintf(`{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d","Env":{%s},"Meta":{%s},"Templates":[%s],"Actions":[{"Name":"a","Command":"c","Args":[%s]}]}]}]}`,
			env, meta, data, args)
		job, err := jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "t.json", Src: []byte(src)}})
		require.NoError(t, err)
		roundTrip(t, job)
		for i, s := range texts[from:min(from+chunk, len(texts))] {
			require.Equal(t, "x"+s, job.Groups[0].Alloc.Tasks[0].Attach.Templates[i].Data, "a template's data is as it was")
		}
	}
	// In a config a text is a template: what is none is refused, all else comes back.
	config := func(texts []string) (*jobspec.Job, error) {
		list, keys := "", ""
		for i, s := range texts {
			list += "," + quote(s)
			keys += fmt.Sprintf(",%s:1", quote(fmt.Sprint("k", i, s)))
		}
		src := fmt.Sprintf(`{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d","Config":{"x":["first"%s]%s}}]}]}`, list, keys)
		return jobspec.Parse(jobspec.ParseConfig{File: jobspec.File{Name: "t.json", Src: []byte(src)}})
	}
	var templates []string
	for i, s := range texts {
		if i%2 != 0 { // of the two forms and the pairs of fragments some each
			continue
		}
		if _, err := config([]string{s}); err == nil {
			templates = append(templates, s)
		}
	}
	require.Greater(t, len(templates), len(texts)/6)
	for some := range slices.Chunk(templates, chunk) {
		job, err := config(some)
		require.NoError(t, err)
		roundTrip(t, job)
	}
}
