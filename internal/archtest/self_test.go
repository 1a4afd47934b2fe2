// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package archtest

import (
	"fmt"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRulesFire gives each rule something to find, and something that only looks
// like it.
func TestRulesFire(t *testing.T) {
	lines := func(n int, line string) string { return strings.Repeat(line+"\n", n) }
	numbered := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+"\n", i)
		}
		return b.String()
	}
	const head = licenceFirst + "// Package p is here to be found by the rules.\npackage p\n"
	for name, c := range map[string]struct{ file, bad, good string }{
		"levels":             {"spec/a.go", head + `import _ "` + module + `/taskrunner"`, head + `import _ "fmt"`},
		"package doc":        {"spec/a.go", licenceFirst + "package p\n", head},
		"package name":       {"hooks/util/a.go", head, ""},
		"licence":            {"spec/a.go", "// Package p is here to be found.\npackage p\n", head},
		"file size":          {"spec/a.go", head + lines(maxFile, ""), head + lines(maxFile-6, "")},
		"function size":      {"spec/a.go", head + "func f() {\n" + lines(maxFunc, "_ = 1") + "}", head + "func f() {\n" + lines(maxFunc-2, "_ = 1") + "}"},
		"struct size":        {"state/a.go", head + "type s struct {\n" + numbered(21, "f%d int") + "}", head + "type s struct {\n" + numbered(20, "f%d int") + "}"},
		"interface size":     {"state/a.go", head + "type i interface {\n" + numbered(8, "m%d()") + "}", head + "type i interface {\n" + numbered(7, "m%d()") + "}"},
		"exported names":     {"state/a.go", head + "// Many.\nvar (\n" + numbered(26, "X%d = 1") + ")", head + "// One.\nconst (\n" + numbered(26, "X%d T = 1") + ")"},
		"doc comment":        {"state/a.go", head + "type T int", head + "type t int\nfunc (t) M() {}\n// T is.\ntype T int\nfunc (T) Error() {}"},
		"background context": {"state/a.go", head + "func f() { context.Background() }", head + "func f() { context.WithoutCancel(nil) }"},
		"stored context":     {"state/a.go", head + "type s struct { c context.Context }", head + "type s struct { c context.CancelFunc }"},
		"init":               {"state/a.go", head + "func init() {}", head + "type s int\nfunc (s) init() {}"},
		"open end":           {"state/a.go", head + "// TO" + "DO: later", head + "// a to-do list"},
		"sleep in test": {
			"state/a_test.go", head + "func f() { time.Sleep(1) }",
			head + "func f() { synctest.Test(t, func() { time.Sleep(1) }) }",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, found(t, name, c.file, c.bad))
			if c.good != "" {
				require.Empty(t, found(t, name, c.file, c.good))
			}
		})
	}
	require.True(t, forbidden("net", true, light))
	require.False(t, forbidden("net/netip", true, light))
	require.True(t, forbidden("github.com/hashicorp/go-hclog", false, light))
	require.True(t, forbidden("example.org/x", false, []string{"*"}))
	require.False(t, forbidden("fmt", true, []string{"*"}))
	require.False(t, forbidden(module+"/spec", false, []string{"*"}))
}

// found is what one rule says of a module of one file.
func found(t *testing.T, rule, file, text string) (faults []string) {
	t.Helper()
	tr := &tree{fset: token.NewFileSet(), dirs: map[string][]*source{}}
	require.NoError(t, tr.add(file, []byte(text)))
	for _, r := range rules {
		if r.name == rule {
			r.check(tr, func(_, format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) })
		}
	}
	return faults
}
