// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec_test

import (
	"strings"
	"testing"

	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{
		"a", "web", "web.1", "...", "-x", "a b", "üñî", "alloc1", "Web", strings.Repeat("x", 128),
	} {
		require.NoError(t, spec.CheckName(good), "%q", good)
	}
	for bad, want := range map[string]string{
		"":                       "has 0 bytes",
		".":                      "reserved",
		"..":                     "reserved",
		"alloc":                  "reserved",
		"ALLOC":                  "reserved",
		"a/b":                    "cannot be part",
		`a\b`:                    "cannot be part",
		"a\x00":                  "cannot be part",
		"\xff":                   "UTF-8",
		strings.Repeat("x", 129): "129 bytes; allowed: 1 to 128",
	} {
		require.ErrorContains(t, spec.CheckName(bad), want, "%q", bad)
	}
}

func TestFoldName(t *testing.T) {
	require.Equal(t, spec.FoldName("Web"), spec.FoldName("wEB"))
	require.Equal(t, spec.FoldName("kS"), spec.FoldName("\u212a\u017f"), "Kelvin sign, long s")
	require.NotEqual(t, spec.FoldName("web"), spec.FoldName("web2"))
}
