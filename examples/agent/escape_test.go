// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/spec"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"web":                     "web",
		"größe 漢字 \"q\" \\":       "größe 漢字 \"q\" \\",
		"\x1b[31mred\x1b]0;t\x07": `\x1b[31mred\x1b]0;t\a`,
		"a\nb\tc\rd":              `a\nb\tc\rd`,
		"\u202egnp.exe":           `\u202egnp.exe`,
		"\u009b2J\u200b\ufeff":    `\u009b2J\u200b\ufeff`,
		"\xff\x00":                `\xff\x00`,
		"\ufffd":                  "\ufffd",
	} {
		require.Equal(t, want, clean(in))
	}
	require.Equal(t, "a\nb\\t", cleanLines("a\nb\t"))
}

// No text of a job or a task reaches a terminal as it is.
func TestNothingRaw(t *testing.T) {
	const evil = "e\x1b[2J\n\t\u202e"
	al := api.Alloc{
		ID: evil, Job: evil, Group: evil, Name: evil, Namespace: evil, Type: evil, Description: evil, Problem: evil,
		Tasks: []api.Task{{Name: evil, State: "dead", Phase: "dead", Reason: evil}},
	}
	in := api.Inspection{Alloc: al, Dir: evil, Events: map[string][]api.Event{evil: {{Kind: evil, Message: evil}}},
		Spec: &spec.Alloc{Tasks: []spec.Task{{Name: evil, Driver: evil, Config: []byte(evil), Env: map[string]string{evil: evil}}}}}
	var out bytes.Buffer
	require.NoError(t, printInspection(&out, in, time.Now()))
	require.NoError(t, printAllocs(&out, []api.Alloc{al}, time.Now()))
	require.NoError(t, printEvent(&out, &api.Event{Alloc: evil, Task: evil, Kind: evil, Message: evil}))
	p := newPrinter(&app{stdout: &out, env: func(string) string { return "" }}, []api.Job{{ID: evil, Allocs: []*spec.Alloc{{JobID: evil, Group: evil, Tasks: []spec.Task{{Name: evil}}}}}})
	p.say("job %s runs", evil)
	p.verdict(true, "job %s runs", evil)
	p.line(p.labels[labelKey(evil, evil+"[0]", evil)], "|", "text")
	for _, raw := range []string{"\x1b", "\u202e", "\t", "[2J\n"} {
		require.NotContains(t, out.String(), raw)
	}
	require.Contains(t, out.String(), `e\x1b[2J`)
}
