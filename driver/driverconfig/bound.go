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

// The agent evaluates configs again at every start and restore, so one that
// takes all memory or all time would take the agent down for good. A number such
// as 1e999999999 is a gigabyte of zeros once it becomes text: it is refused
// wherever one can come into being, in JSON, in an expression, or by arithmetic
// on a text. Loops belong into the job file, and texts may grow so far only.
var hugeExponent = regexp.MustCompile(`[0-9.][eE][+-]?[0-9]{5,}`)

const (
	maxExponent = 4096     // of two, of a number
	maxConfig   = 1 << 20  // bytes
	maxTokens   = 5000     // of the expressions in one template
	maxResult   = 16 << 20 // bytes of variables in one config

	tooLarge = "has a number that is too large or too small"
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

// template refuses an expression that could cost too much.
func (f *faults) template(s string, path []string) {
	if !strings.Contains(s, "${") && !strings.Contains(s, "%{") {
		return
	}
	// The parser and what it makes recurse with the length of an expression.
	tokens, _ := hclsyntax.LexTemplate([]byte(s), "", hcl.InitialPos)
	n := 0
	for _, t := range tokens {
		if t.Type != hclsyntax.TokenStringLit && t.Type != hclsyntax.TokenQuotedLit {
			n++
		}
	}
	if n > maxTokens {
		f.add(path, "has expressions that are too long")
		return
	}
	x, diags := hclsyntax.ParseTemplate([]byte(s), "", hcl.InitialPos)
	if diags.HasErrors() {
		return // found again, with its text, when the template is evaluated
	}
	var c cost
	// The callback returns no diagnostics, so VisitAll has none.
	_ = hclsyntax.VisitAll(x, c.visit)
	if c.loop {
		f.add(path, "has a for expression, which is possible in a job file only and without what is known at run time")
	}
	huge := c.huge || c.arithmetic && c.hugeText
	for _, v := range x.Variables() {
		used := traversal(v)
		value, exact := f.vars[used]
		f.size += len(value)
		if !c.arithmetic || exact && !hugeExponent.MatchString(value) {
			continue
		}
		for name, value := range f.vars {
			huge = huge || (name == used || strings.HasPrefix(name, used+".")) && hugeExponent.MatchString(value)
		}
	}
	if huge {
		f.add(path, tooLarge)
	}
	if f.size > maxResult {
		f.add(path, "is too large with its variables filled in")
		f.size = 0
	}
}

// cost is what makes an expression expensive.
type cost struct {
	loop, huge, hugeText, arithmetic bool
}

func (c *cost) visit(n hclsyntax.Node) hcl.Diagnostics {
	switch n := n.(type) {
	case *hclsyntax.ForExpr:
		c.loop = true
	case *hclsyntax.BinaryOpExpr:
		c.arithmetic = c.arithmetic || n.Op.Type == cty.Number
	case *hclsyntax.UnaryOpExpr:
		c.arithmetic = c.arithmetic || n.Op.Type == cty.Number
	case *hclsyntax.LiteralValueExpr:
		switch {
		case n.Val.Type() == cty.String && !n.Val.IsNull():
			c.hugeText = c.hugeText || hugeExponent.MatchString(n.Val.AsString())
		case n.Val.Type() == cty.Number && !n.Val.IsNull():
			c.huge = c.huge || hugeNumber(n.Val)
		}
	}
	return nil
}

func hugeNumber(v cty.Value) bool {
	b := v.AsBigFloat()
	e := b.MantExp(nil)
	return b.IsInf() || e > maxExponent || e < -maxExponent
}

// printable refuses huge numbers in a result.
func (f *faults) printable(v cty.Value) {
	// The callback returns no error, so Walk has none.
	_ = cty.Walk(v, func(p cty.Path, v cty.Value) (bool, error) {
		if v.Type() == cty.Number && v.IsKnown() && !v.IsNull() && hugeNumber(v) {
			f.add(ctyPath(p), tooLarge)
		}
		return true, nil
	})
}
