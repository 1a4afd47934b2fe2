// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What functions make, each as JSON, where libraries, versions and documentation
// are most likely to be of several minds; "" is an error.
func TestFunctions(t *testing.T) {
	for expr, want := range map[string]string{
		`coalesce("", "x", "y")`:                     `"x"`,
		`coalesce(null, "", "x")`:                    `"x"`,
		`coalesce(["", "x"]...)`:                     `"x"`,
		`coalesce([]...)`:                            ``,
		`coalesce(0, 1)`:                             `0`,
		`coalesce("", "")`:                           `""`,
		`coalesce(null, null)`:                       ``,
		`length({ a = 1, b = "x" })`:                 `2`,
		`length("🕹️é")`:                              `2`,
		`length({}) + length([])`:                    `0`,
		`length(5)`:                                  ``,
		`index({ a = 1, b = "x" }, "b")`:             `"x"`,
		`index({ a = 1 }, "b")`:                      ``,
		`index(tomap({ a = 1 }), "a")`:               `1`,
		`index(["a", "b"], 1)`:                       `"b"`,
		`element(["a", "b", "c"], 4)`:                `"b"`,
		`range(1, 3, 0.5)`:                           `[1,1.5,2,2.5]`,
		`range(3, 0)`:                                `[3,2,1]`,
		`range(9, 3, -3)`:                            `[9,6]`,
		`range(1025)`:                                ``,
		`setproduct(["a", 2], ["b"])`:                `[["a","b"],["2","b"]]`,
		`setproduct(["a"], [])`:                      `[]`,
		`flatten([["a", ["b"]], [], "c"])`:           `["a","b","c"]`,
		`merge({ a = 1 }, { a = [2], b = "x" })`:     `{"a":[2],"b":"x"}`,
		`regex("(?P<n>[0-9]+)(?P<u>[a-z])", "x10m")`: `{"n":"10","u":"m"}`,
		`regex("([0-9])([a-z])", "4x")`:              `["4","x"]`,
		`regex_replace("ab", "(a)", "$1_")`:          `"b"`,
		`regex_replace("ab", "(a)", "$${1}_")`:       `"a_b"`,
		`substr("héllo", -3, -1)`:                    `"llo"`,
		`yamldecode("{a: &x [1], b: *x}")`:           `{"a":[1],"b":[1]}`,
		`yamldecode("a: !no x")`:                     ``,
		`parseint("zZ", 62)`:                         `2231`,
		`formatdate("h 'o''clock'", timeadd("2026-01-02T03:04:05Z", "1h"))`: `"4 o'clock"`,
		`can(1 + "x")`:    `false`,
		`can(local.none)`: ``, // no such name: that is a mistake, in a can too

		`try(tonumber("x"), 7)`:                `7`,
		`convert(["1"], list(number))`:         `[1]`,
		`tolist(["a", 1, true])`:               `["a","1","true"]`,
		`cidrsubnets("10.0.0.0/8", 8, 16)`:     `["10.0.0.0/16","10.1.0.0/24"]`,
		`cidrhost("10.0.0.0/8", -2)`:           `"10.255.255.254"`,
		`formatlist("%s-%s", "a", ["b", "c"])`: `["a-b","a-c"]`,
		`max([1, 3, 2]...)`:                    `3`,
	} {
		job, err := parse(t, "job \"j\" {\n meta {\n x = jsonencode("+expr+")\n }\n group \"g\" {\n task \"t\" {\n driver = \"d\"\n }\n }\n}\n")
		if want == "" {
			require.Error(t, err, expr)
			continue
		}
		require.NoError(t, err, expr)
		require.Equal(t, want, job.Meta["x"], expr)
	}
}
