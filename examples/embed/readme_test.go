// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The README shows this program, to the letter.
func TestReadmeShowsThis(t *testing.T) {
	src, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, code, ok := strings.Cut(string(src), "\npackage main\n")
	require.True(t, ok)
	require.Contains(t, string(readme), "```go\npackage main\n"+code+"```")
	require.Less(t, strings.Count(code, "\n"), 45, "the smallest embedding fits a screen")
}
