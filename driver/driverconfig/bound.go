// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// A number such as 1e999999999 is short to write, and a gigabyte of zeros once
// it becomes text. The agent evaluates configs again at every start and restore,
// so one job could take it down for good: such numbers are refused wherever one
// can come into being, in JSON, in an expression, or by arithmetic on a text.
var hugeExponent = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{5,}`)

const (
	tooLarge    = "has a number that is too large or too small"
	maxExponent = 4096 // of two, in a result
)

// bounded refuses huge numbers in v.
func (f *faults) bounded(v any, path []string) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			at := append(slices.Clone(path), k)
			f.template(k, at)
			f.bounded(v[k], at)
		}
	case []any:
		for i, e := range v {
			f.bounded(e, append(slices.Clone(path), strconv.Itoa(i)))
		}
	case json.Number:
		if hugeExponent.MatchString(v.String()) {
			f.add(path, tooLarge)
		}
	case string:
		f.template(v, path)
	}
}

// template refuses an expression that could make a huge number.
func (f *faults) template(s string, path []string) {
	if !strings.Contains(s, "${") && !strings.Contains(s, "%{") {
		return
	}
	tokens, diags := hclsyntax.LexTemplate([]byte(s), "", hcl.InitialPos)
	if diags.HasErrors() {
		return // found again, with its text, when the template is parsed
	}
	arithmetic := slices.ContainsFunc(tokens, func(t hclsyntax.Token) bool {
		return slices.Contains([]hclsyntax.TokenType{hclsyntax.TokenPlus, hclsyntax.TokenMinus,
			hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent}, t.Type)
	})
	for _, t := range tokens {
		number := t.Type == hclsyntax.TokenNumberLit || arithmetic && t.Type == hclsyntax.TokenQuotedLit
		if number && hugeExponent.Match(t.Bytes) {
			f.add(path, tooLarge)
			return
		}
	}
	if !arithmetic {
		return
	}
	expr, diags := hclsyntax.ParseTemplate([]byte(s), "", hcl.InitialPos)
	if diags.HasErrors() {
		return
	}
	for _, v := range expr.Variables() {
		used := traversal(v)
		for name, value := range f.vars {
			if (name == used || strings.HasPrefix(name, used+".")) && hugeExponent.MatchString(value) {
				f.add(path, tooLarge)
				return
			}
		}
	}
}

// printable refuses huge numbers in a result.
func (f *faults) printable(v cty.Value) {
	// The callback returns no error, so Walk has none.
	_ = cty.Walk(v, func(p cty.Path, v cty.Value) (bool, error) {
		if v.Type() == cty.Number && v.IsKnown() && !v.IsNull() {
			b := v.AsBigFloat()
			if e := b.MantExp(nil); b.IsInf() || e > maxExponent || e < -maxExponent {
				f.add(ctyPath(p), tooLarge)
			}
		}
		return true, nil
	})
}
