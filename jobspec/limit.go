// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"regexp"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// The bounds of what reading a job file may cost. A file that reaches one is
// refused with the place where it did.
const (
	// MaxSize is the size of the largest job file, in bytes.
	MaxSize = 1 << 20

	maxDepth     = 200     // of brackets
	maxOperators = 10_000  // in a file: the parser recurses with them
	maxExponent  = 4096    // of two, of a number
	maxCost      = 8 << 20 // of evaluation: bytes of what is made, and
	stepCost     = 64      // for each step
	maxBlocks    = 10_000  // that dynamic blocks may make of a file
)

var (
	// reserved finds refOpen and refClose, also as escapes.
	reserved = regexp.MustCompile(`[\x{fdd0}\x{fdd1}]|\\u(?i:fdd[01])|\\U(?i:0000fdd[01])`)
	// wide finds formats that make more than a screen of blanks.
	wide = regexp.MustCompile(`%[^a-zA-Z%]*[0-9]{4,}`)
	// alias finds YAML's references to other parts.
	alias = regexp.MustCompile(`(?m)(^|[\s\[{,:-])\*[^\s,\]}]`)
)

// budget is what evaluation may still cost, for all of a file.
type budget struct {
	cost, blocks int
	spent        bool
}

// spend takes n off the budget; false if there is none left, which is told once.
func (e *evaluator) spend(n int, r hcl.Range) bool {
	if e.budget.cost += n; e.budget.cost <= maxCost && n >= 0 {
		return true
	}
	if !e.budget.spent {
		e.budget.spent = true
		e.diags.add(r, "Too much to evaluate", "The expressions of this file make too many or too large values; this one went over the limit.")
	}
	return false
}

// size is about how many bytes v takes when it is written out.
func size(v cty.Value) int {
	n := 0
	// The callback returns no error, so Walk has none.
	_ = cty.Walk(v, func(_ cty.Path, v cty.Value) (bool, error) {
		n++
		if v.IsKnown() && !v.IsNull() && v.Type() == cty.String {
			n += len(v.AsString())
		}
		return true, nil
	})
	return n
}

// length is how many elements v has.
func length(v cty.Value) int {
	if v.IsNull() || !v.IsKnown() || !v.CanIterateElements() {
		return 0
	}
	return v.LengthInt()
}

// check refuses what the rest of this package relies on not to be there.
func (d *diagnostics) check(name string, src []byte) bool {
	before := len(d.all)
	start := hcl.Range{Filename: name, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > MaxSize {
		d.add(start, "File too large", "A job file has %d bytes at most, this one has more.", MaxSize)
		return false
	}
	if at := reserved.FindIndex(src); at != nil {
		pos := hcl.Pos{Line: 1 + strings.Count(string(src[:at[0]]), "\n"), Column: 1}
		d.add(hcl.Range{Filename: name, Start: pos, End: pos}, "Invalid character", "This line has U+FDD0 or U+FDD1, which stand for no character.")
	}
	// Faults of the scanner are found again, with their texts, by the parser.
	tokens, _ := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	depth, operators := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote:
			depth--
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
			hclsyntax.TokenQuestion, hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual, hclsyntax.TokenDot:
			operators++
		}
		if depth > maxDepth {
			d.add(t.Range, "Nested too deep", "More than %d levels of brackets.", maxDepth)
			break
		}
		if operators > maxOperators {
			d.add(t.Range, "Too many operators", "More than %d in one file.", maxOperators)
			break
		}
	}
	return len(d.all) == before
}

// guard refuses an operation that makes a huge number.
func (e *evaluator) guard(x hclsyntax.Node) bool {
	arithmetic, huge := false, false
	var texts []cty.Value
	// The callback returns no diagnostics, so VisitAll has none.
	_ = hclsyntax.VisitAll(x, func(n hclsyntax.Node) hcl.Diagnostics {
		switch n := n.(type) {
		case *hclsyntax.BinaryOpExpr:
			arithmetic = arithmetic || n.Op.Type == cty.Number || n.Op == hclsyntax.OpGreaterThan || n.Op == hclsyntax.OpLessThan ||
				n.Op == hclsyntax.OpGreaterThanOrEqual || n.Op == hclsyntax.OpLessThanOrEqual
		case *hclsyntax.UnaryOpExpr:
			arithmetic = arithmetic || n.Op.Type == cty.Number
		case *hclsyntax.IndexExpr:
			arithmetic = true // a list's index is a number
		case *hclsyntax.LiteralValueExpr:
			huge = huge || hugeNumber(n.Val)
			texts = append(texts, n.Val)
		case *hclsyntax.ScopeTraversalExpr:
			if v, diags := n.Traversal.TraverseAbs(e.ctx); !diags.HasErrors() {
				texts = append(texts, v)
			}
		}
		return nil
	})
	for _, v := range texts {
		huge = huge || arithmetic && v.Type() == cty.String && hugeTexts(v)
	}
	if huge {
		e.diags.add(x.Range(), "Invalid number", "A number here is too large or too small.")
		return false
	}
	return true
}

// hugeNumber says whether v is a huge number, hugeTexts whether it holds a text
// that would be one.
func hugeNumber(v cty.Value) bool {
	if v.Type() != cty.Number || v.IsNull() || !v.IsKnown() {
		return false
	}
	b := v.AsBigFloat()
	e := b.MantExp(nil)
	return b.IsInf() || e > maxExponent || e < -maxExponent
}

func hugeTexts(v cty.Value) bool {
	return holds(v, func(v cty.Value) bool { return v.Type() == cty.String && hugeExponent(v.AsString()) })
}

// hugeExponent says whether s may hold a number that is a gigabyte of zeros once
// it is written out: an exponent of five digits or more.
func hugeExponent(s string) bool {
	for i := strings.IndexAny(s, "eE"); i >= 0; {
		digits := strings.TrimLeft(s[i+1:], "+-")
		if n := len(digits) - len(strings.TrimLeft(digits, "0123456789")); n >= 5 && i > 0 && strings.ContainsRune("0123456789.", rune(s[i-1])) {
			return true
		}
		next := strings.IndexAny(s[i+1:], "eE")
		if next < 0 {
			return false
		}
		i += 1 + next
	}
	return false
}

// foreign finds texts that hold refOpen or refClose.
func foreign(v cty.Value) bool {
	return v.Type() == cty.String && strings.ContainsAny(v.AsString(), refOpen+refClose)
}

func holds(v cty.Value, is func(cty.Value) bool) bool {
	found := false
	// The callback returns no error, so Walk has none.
	_ = cty.Walk(v, func(_ cty.Path, v cty.Value) (bool, error) {
		found = found || v.IsKnown() && !v.IsNull() && is(v)
		return !found, nil
	})
	return found
}

// costly names what in x must not wait for run time, "" if there is nothing.
func costly(x hclsyntax.Node) string {
	found := ""
	_ = hclsyntax.VisitAll(x, func(n hclsyntax.Node) hcl.Diagnostics {
		switch n.(type) {
		case *hclsyntax.ForExpr:
			found = "A for expression"
		case *hclsyntax.FunctionCallExpr:
			found = "A function"
		}
		return nil
	})
	return found
}

// costlyCall says whether x calls that function.
func costlyCall(x hclsyntax.Node, name string) bool {
	found := false
	_ = hclsyntax.VisitAll(x, func(n hclsyntax.Node) hcl.Diagnostics {
		call, ok := n.(*hclsyntax.FunctionCallExpr)
		found = found || ok && call.Name == name
		return nil
	})
	return found
}
