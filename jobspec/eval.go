// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// evaluator evaluates expressions as far as a file goes. Names it knows (var and
// local) are replaced by their values; all others belong to run time: inside a
// string they stay, as text. An expression that mixes both keeps its text with
// the values put in: "${attr.x == var.y}" becomes "${attr.x == "z"}".
type evaluator struct {
	diags *diagnostics
	ctx   *hcl.EvalContext
}

// here says that a name is one of the file's.
func (e *evaluator) here(t hcl.Traversal) bool {
	_, ok := e.ctx.Variables[t.RootName()]
	return ok
}

// later says whether x needs names of run time, and whether all of the file's
// names it uses exist.
func (e *evaluator) later(x hcl.Expression) (later, ok bool) {
	ok = true
	for _, t := range x.Variables() {
		if !e.here(t) {
			later = true
			continue
		}
		root := e.ctx.Variables[t.RootName()]
		if len(t) < 2 {
			continue
		}
		if a, isAttr := t[1].(hcl.TraverseAttr); isAttr && !root.Type().HasAttribute(a.Name) {
			ok = false
			kind := map[string]string{"var": "variable", "local": "local value"}[t.RootName()]
			e.diags.add(t.SourceRange(), "Unknown "+kind, "There is no %s %q in this file%s.", kind, a.Name, known(root))
		}
	}
	return later, ok
}

func known(v cty.Value) string {
	names := slices.Sorted(maps.Keys(v.Type().AttributeTypes()))
	if len(names) == 0 {
		return ""
	}
	return "; there are: " + strings.Join(names, ", ")
}

// value evaluates x, which stands in nothing but lists and objects. What it
// cannot evaluate is reported and null.
func (e *evaluator) value(x hclsyntax.Expression) cty.Value { return e.eval(x, false) }

// eval is value, for an expression inside a string if quoted is set.
func (e *evaluator) eval(x hclsyntax.Expression, quoted bool) cty.Value {
	none := cty.NullVal(cty.DynamicPseudoType)
	later, ok := e.later(x)
	if !ok {
		return none
	}
	if !later {
		v, diags := x.Value(e.ctx)
		e.diags.hcl(diags)
		if diags.HasErrors() || !v.IsWhollyKnown() {
			return none
		}
		return v
	}
	switch x := x.(type) {
	case *hclsyntax.TemplateExpr:
		return e.template(x)
	case *hclsyntax.TemplateWrapExpr:
		return e.eval(x.Wrapped, true)
	case *hclsyntax.ObjectConsKeyExpr: // a quoted one: plain words are no names
		return e.eval(x.Wrapped, true)
	case *hclsyntax.ParenthesesExpr:
		return e.eval(x.Expression, quoted)
	case *hclsyntax.TupleConsExpr:
		if quoted {
			break
		}
		var list []cty.Value
		for _, item := range x.Exprs {
			list = append(list, e.eval(item, false))
		}
		return cty.TupleVal(list)
	case *hclsyntax.ObjectConsExpr:
		if quoted {
			break
		}
		return e.object(x)
	case *hclsyntax.ConditionalExpr:
		if later, ok := e.later(x.Condition); !later && ok {
			return e.branch(x, quoted)
		}
	}
	if !quoted && !e.bare(x) {
		return none
	}
	return cty.StringVal(ref(e.source(x)))
}

// template joins the parts of a string.
func (e *evaluator) template(x *hclsyntax.TemplateExpr) cty.Value {
	var b strings.Builder
	for _, part := range x.Parts {
		v := e.eval(part, true)
		s, err := convert.Convert(v, cty.String)
		if err != nil {
			e.diags.add(part.Range(), "Not a text", "This is %s, which cannot be part of a text.", kind(v))
			continue
		}
		if !s.IsNull() {
			b.WriteString(s.AsString())
		}
	}
	return cty.StringVal(b.String())
}

func (e *evaluator) object(x *hclsyntax.ObjectConsExpr) cty.Value {
	values := map[string]cty.Value{}
	for _, item := range x.Items {
		key, err := convert.Convert(e.eval(item.KeyExpr, true), cty.String)
		if err != nil || key.IsNull() {
			e.diags.add(item.KeyExpr.Range(), "Not a name", "A key must be a text.")
			continue
		}
		values[key.AsString()] = e.eval(item.ValueExpr, false)
	}
	return cty.ObjectVal(values)
}

// branch evaluates the branch that a condition of the file chooses.
func (e *evaluator) branch(x *hclsyntax.ConditionalExpr, quoted bool) cty.Value {
	cond, err := convert.Convert(e.eval(x.Condition, true), cty.Bool)
	if err != nil || cond.IsNull() {
		e.diags.add(x.Condition.Range(), "Not a condition", "This must be true or false.")
		return cty.NullVal(cty.DynamicPseudoType)
	}
	if cond.True() {
		return e.eval(x.TrueResult, quoted)
	}
	return e.eval(x.FalseResult, quoted)
}

// bare says whether a run-time expression may stand outside a string. Names the
// node knows may, node.class is "${node.class}"; any other is most likely a
// text that lost its quotes.
func (e *evaluator) bare(x hclsyntax.Expression) bool {
	for _, t := range x.Variables() {
		name := t.RootName()
		if e.here(t) || slices.Contains([]string{"attr", "node", "meta", "env", "device"}, name) || strings.HasPrefix(name, "NOMAD_") {
			continue
		}
		e.diags.add(t.SourceRange(), "Unknown name", "%q is no variable of this file. A text needs quotes: %q; a value that is known when the task runs is written %q.",
			name, name, "${"+name+"}")
		return false
	}
	return true
}

// source is the text of x with the file's names replaced by their values.
func (e *evaluator) source(x hclsyntax.Expression) string {
	r := x.Range()
	src := e.diags.sources[r.Filename]
	names := x.Variables()
	slices.SortFunc(names, func(a, b hcl.Traversal) int { return b.SourceRange().Start.Byte - a.SourceRange().Start.Byte })
	text, end := "", r.End.Byte
	for _, t := range names {
		at := t.SourceRange()
		if !e.here(t) || at.End.Byte > end {
			continue
		}
		v, diags := t.TraverseAbs(e.ctx)
		e.diags.hcl(diags)
		if diags.HasErrors() {
			continue
		}
		literal := unescape.Replace(string(hclwrite.TokensForValue(v).Bytes()))
		if hasRef(literal) && strings.Contains(literal, `\`) {
			e.diags.add(at, "Too deep", "This value holds an expression of run time itself and cannot be part of another.")
		}
		text = literal + string(src[at.End.Byte:end]) + text
		end = at.Start.Byte
	}
	return string(src[r.Start.Byte:end]) + text
}

// unescape brings references back that hclwrite escaped as unprintable.
var unescape = strings.NewReplacer(`\ufdd0`, refOpen, `\ufdd1`, refClose)

// check refuses what the rest of this package relies on not to be there.
func (d *diagnostics) check(name string, src []byte) bool {
	before := len(d.all)
	start := hcl.Range{Filename: name, Start: hcl.InitialPos, End: hcl.InitialPos}
	if len(src) > MaxSize {
		d.add(start, "File too large", "A job file has %d bytes at most, this one has %d.", MaxSize, len(src))
		return false
	}
	if at := reserved.FindIndex(src); at != nil {
		pos := hcl.Pos{Line: 1 + strings.Count(string(src[:at[0]]), "\n"), Column: 1}
		d.add(hcl.Range{Filename: name, Start: pos, End: pos}, "Invalid character", "This line has U+FDD0 or U+FDD1, which stand for no character.")
	}
	tokens, _ := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	depth := 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote:
			depth--
		}
		if depth > maxDepth {
			d.add(t.Range, "Nested too deep", "More than %d levels of brackets.", maxDepth)
			break
		}
	}
	return len(d.all) == before
}

// MaxSize is the size of the largest job file, in bytes.
const MaxSize = 1 << 20

const maxDepth = 200

// reserved finds refOpen and refClose, also as escapes.
var reserved = regexp.MustCompile(`[\x{fdd0}\x{fdd1}]|\\u(?i:fdd[01])|\\U(?i:0000fdd[01])`)
