// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var updateDoc = flag.Bool("update-doc", false, "write the table of the package doc")

func pad(s string, n int) string { return s + strings.Repeat(" ", max(1, n-len(s))) }

func docSource(t *testing.T) string {
	src, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	return string(src)
}

func rewriteDoc(t *testing.T, table string) {
	re := regexp.MustCompile(`(?s)(//\tblock +since +acted on by\n)(//\t[a-z][^\n]*\n)*`)
	src := docSource(t)
	require.Regexp(t, re, src)
	require.NoError(t, os.WriteFile("doc.go", []byte(re.ReplaceAllString(src, "${1}"+strings.ReplaceAll(table, "$", "$$"))), 0o644))
}
