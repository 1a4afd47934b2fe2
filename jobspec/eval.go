// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"maps"
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
//
//	"${var.v}-x"                  "val-x"
//	"${NOMAD_TASK_DIR}/${var.v}"  "${NOMAD_TASK_DIR}/val"
//	node.class                    "${node.class}"
//	["a", node.class]             ["a", "${node.class}"]
//	var.ok ? node.class : "none"  the branch that var.ok chooses
//	attr.n > var.v ? 1 : 2        "${attr.n > "val" ? 1 : 2}"
//
// Only a loop cannot wait: driverconfig refuses one, as it could run for ever
// where it must not.
type evaluator struct {
	diags *diagnostics
	ctx   *hcl.EvalContext
}

// here looks up a name of the file: var, local, or what a for expression sets.
func (e *evaluator) here(t hcl.Traversal) (v cty.Value, ok bool) {
	for c := e.ctx; c != nil && !ok; c = c.Parent() {
		v, ok = c.Variables[t.RootName()]
	}
	return v, ok
}

// later says whether x needs names of run time, and whether all of the file's
// names it uses exist.
func (e *evaluator) later(x hcl.Expression) (later, ok bool) {
	ok = true
	for _, t := range x.Variables() {
		root, here := e.here(t)
		if !here {
			later = true
			continue
		}
		kind := map[string]string{"var": "variable", "local": "local value"}[t.RootName()]
		if a, isAttr := at(t, 1).(hcl.TraverseAttr); isAttr && kind != "" && !root.Type().HasAttribute(a.Name) {
			ok = false
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
// cannot evaluate is reported and null: callers look whether something was
// reported before they use the value. References to run time are marked as ref
// does; whoever writes the value out encodes them.
func (e *evaluator) value(x hclsyntax.Expression) cty.Value { return e.eval(x, false) }

// eval is value, for an expression inside a string if quoted is set.
func (e *evaluator) eval(x hclsyntax.Expression, quoted bool) cty.Value {
	none := cty.NullVal(cty.DynamicPseudoType)
	later, ok := e.later(x)
	if !ok {
		return none
	}
	if !later {
		if !e.guard(x) {
			return none
		}
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
		var list []cty.Value
		for _, item := range x.Exprs {
			list = append(list, e.eval(item, quoted))
		}
		return cty.TupleVal(list)
	case *hclsyntax.ObjectConsExpr:
		return e.object(x, quoted)
	case *hclsyntax.ForExpr:
		if later, ok := e.later(x.CollExpr); !later && ok && !x.Group {
			return e.loop(x, quoted)
		}
	case *hclsyntax.TemplateJoinExpr:
		return e.join(x)
	case *hclsyntax.ConditionalExpr:
		if later, ok := e.later(x.Condition); !later && ok {
			return e.branch(x, quoted)
		}
	}
	if !quoted && !e.bare(x) || !e.guard(x) {
		return none
	}
	if loops(x) {
		e.diags.add(x.Range(), "Not possible", "A for expression goes over values of this file only, and its condition and keys are of this file.")
		return none
	}
	return cty.StringVal(ref(e.source(x)))
}

// template joins the parts of a string.
func (e *evaluator) template(x *hclsyntax.TemplateExpr) cty.Value {
	var b strings.Builder
	for _, part := range x.Parts {
		e.text(&b, e.eval(part, true), part.Range())
	}
	return cty.StringVal(b.String())
}

// join is what a %{ for } directive makes.
func (e *evaluator) join(x *hclsyntax.TemplateJoinExpr) cty.Value {
	var b strings.Builder
	list := e.eval(x.Tuple, true)
	if list.IsNull() || !list.CanIterateElements() {
		return cty.NullVal(cty.String) // told
	}
	for _, v := range list.AsValueSlice() {
		e.text(&b, v, x.Range())
	}
	return cty.StringVal(b.String())
}

func (e *evaluator) text(b *strings.Builder, v cty.Value, r hcl.Range) {
	s, err := convert.Convert(v, cty.String)
	if err != nil {
		e.diags.add(r, "Not a text", "This is %s, which cannot be part of a text.", kind(v))
	} else if !s.IsNull() {
		b.WriteString(s.AsString())
	}
}

// loop evaluates a for expression over values of the file whose results are not:
// [for p in var.paths : "${NOMAD_TASK_DIR}/${p}"]. What hcl itself would evaluate
// never gets here.
func (e *evaluator) loop(x *hclsyntax.ForExpr, quoted bool) cty.Value {
	coll := e.eval(x.CollExpr, true)
	if coll.IsNull() || !coll.CanIterateElements() {
		e.diags.add(x.CollExpr.Range(), "Not a list", "A for expression goes over a list or an object, this is %s.", kind(coll))
		return cty.NullVal(cty.DynamicPseudoType)
	}
	var list []cty.Value
	object := map[string]cty.Value{}
	for it := coll.ElementIterator(); it.Next(); {
		k, v := it.Element()
		in := &evaluator{diags: e.diags, ctx: e.ctx.NewChild()}
		in.ctx.Variables = map[string]cty.Value{x.ValVar: v}
		if x.KeyVar != "" {
			in.ctx.Variables[x.KeyVar] = k
		}
		if x.CondExpr != nil {
			cond, err := convert.Convert(in.eval(x.CondExpr, true), cty.Bool)
			if err != nil || cond.IsNull() {
				e.diags.add(x.CondExpr.Range(), "Not a condition", "This must be true or false, and known here.")
				break
			}
			if cond.False() {
				continue
			}
		}
		result := in.eval(x.ValExpr, quoted)
		if x.KeyExpr == nil {
			list = append(list, result)
			continue
		}
		key, err := convert.Convert(in.eval(x.KeyExpr, true), cty.String)
		if err != nil || key.IsNull() {
			e.diags.add(x.KeyExpr.Range(), "Not a name", "A key must be a text.")
			break
		}
		object[key.AsString()] = result
	}
	if x.KeyExpr == nil {
		return cty.TupleVal(list)
	}
	return cty.ObjectVal(object)
}

func (e *evaluator) object(x *hclsyntax.ObjectConsExpr, quoted bool) cty.Value {
	values := map[string]cty.Value{}
	for _, item := range x.Items {
		key, err := convert.Convert(e.eval(item.KeyExpr, true), cty.String)
		if err != nil || key.IsNull() {
			e.diags.add(item.KeyExpr.Range(), "Not a name", "A key must be a text.")
			continue
		}
		values[key.AsString()] = e.eval(item.ValueExpr, quoted)
	}
	return cty.ObjectVal(values)
}

// branch evaluates the branch that a condition of the file chooses, and that one
// only: unlike in HCL, the two need not have one type.
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
		if _, here := e.here(t); here || slices.Contains([]string{"attr", "node", "meta", "env", "device"}, name) || strings.HasPrefix(name, "NOMAD_") {
			continue
		}
		e.diags.add(t.SourceRange(), "Unknown name", "%q is no variable of this file. A text needs quotes: %q; a value that is known when the task runs is written %q.",
			name, name, "${"+name+"}")
		return false
	}
	return true
}

// source is the text of x with the file's names replaced by their values, from
// the end so that offsets in front stay right.
func (e *evaluator) source(x hclsyntax.Expression) string {
	r := x.Range()
	src := e.diags.sources[r.Filename]
	names := x.Variables()
	slices.SortFunc(names, func(a, b hcl.Traversal) int { return b.SourceRange().Start.Byte - a.SourceRange().Start.Byte })
	text, end := "", r.End.Byte
	for _, t := range names {
		at := t.SourceRange()
		if _, here := e.here(t); !here || at.End.Byte > end {
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
