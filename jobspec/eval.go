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
	"github.com/zclconf/go-cty/cty/function"
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
//	join(":", [node.class, "x"])  "${node.class}:x"
//	attr.n > var.v ? 1 : 2        "${attr.n > "val" ? 1 : 2}"
//
// Only loops and functions cannot wait: driverconfig refuses them, as they could
// run for ever where they must not.
//
// It walks the expression itself, leaving only single operations to the library:
// so that each step is counted against the budget of the file.
type evaluator struct {
	diags  *diagnostics
	ctx    *hcl.EvalContext
	funcs  map[string]function.Function
	files  *fileFuncs
	budget *budget
	why    string // the last fault of runTimeValue
}

var none = cty.NullVal(cty.DynamicPseudoType)

// inner is the evaluator of what is inside a loop, with names of its own.
func (e *evaluator) inner(vars map[string]cty.Value) *evaluator {
	in := *e
	in.ctx = e.ctx.NewChild()
	in.ctx.Variables = vars
	return &in
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
			e.diags.add(t.SourceRange(), "Unknown "+kind, "There is no %s %q in this file%s.%s", kind, a.Name, known(root),
				meant(a.Name, slices.Sorted(maps.Keys(root.Type().AttributeTypes()))))
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
func (e *evaluator) value(x hclsyntax.Expression) cty.Value {
	if _, ok := e.later(x); !ok {
		return none
	}
	v := e.eval(x, false)
	if !v.IsWhollyKnown() {
		return none
	}
	e.spend(size(v), x.Range())
	return v
}

// eval is value, for an expression inside a string if quoted is set.
func (e *evaluator) eval(x hclsyntax.Expression, quoted bool) cty.Value {
	if !e.spend(stepCost, x.Range()) {
		return none
	}
	switch x := x.(type) {
	case *hclsyntax.LiteralValueExpr:
		return e.checked(x.Val, x)
	case *hclsyntax.TemplateExpr:
		return e.template(x)
	case *hclsyntax.TemplateWrapExpr:
		return e.eval(x.Wrapped, true)
	case *hclsyntax.TemplateJoinExpr:
		return e.join(x)
	case *hclsyntax.ObjectConsKeyExpr:
		if name := hcl.ExprAsKeyword(x.Wrapped); name != "" && !x.ForceNonLiteral {
			return cty.StringVal(name)
		}
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
		return e.loop(x, quoted)
	case *hclsyntax.FunctionCallExpr:
		return e.call(x, quoted)
	case *hclsyntax.ConditionalExpr:
		if later, ok := e.later(x.Condition); !later && ok {
			return e.branch(x, quoted)
		}
	}
	if later, ok := e.later(x); !ok {
		return none
	} else if later {
		return e.keep(x, quoted)
	}
	return e.operation(x)
}

// keep leaves an expression to run time.
func (e *evaluator) keep(x hclsyntax.Expression, quoted bool) cty.Value {
	if !quoted && !e.bare(x) || !e.guard(x) {
		return none
	}
	switch found := costly(x); found {
	case "":
		return cty.StringVal(ref(e.source(x)))
	default:
		e.diags.add(x.Range(), "Not possible", "%s goes over values of this file only: what is known when the task runs cannot be in it.", found)
		return none
	}
}

// operation evaluates one operation of the language, its operands first.
func (e *evaluator) operation(x hclsyntax.Expression) cty.Value {
	before := len(e.diags.all)
	lit := func(x hclsyntax.Expression) hclsyntax.Expression {
		return &hclsyntax.LiteralValueExpr{Val: e.eval(x, true), SrcRange: x.Range()}
	}
	var simple hclsyntax.Expression
	switch x := x.(type) {
	case *hclsyntax.BinaryOpExpr:
		simple = &hclsyntax.BinaryOpExpr{LHS: lit(x.LHS), Op: x.Op, RHS: lit(x.RHS), SrcRange: x.SrcRange}
	case *hclsyntax.UnaryOpExpr:
		simple = &hclsyntax.UnaryOpExpr{Op: x.Op, Val: lit(x.Val), SrcRange: x.SrcRange, SymbolRange: x.SymbolRange}
	case *hclsyntax.IndexExpr:
		simple = &hclsyntax.IndexExpr{Collection: lit(x.Collection), Key: lit(x.Key), SrcRange: x.SrcRange, OpenRange: x.OpenRange, BracketRange: x.BracketRange}
	case *hclsyntax.RelativeTraversalExpr:
		simple = &hclsyntax.RelativeTraversalExpr{Source: lit(x.Source), Traversal: x.Traversal, SrcRange: x.SrcRange}
	case *hclsyntax.SplatExpr:
		if found := costly(x.Each); found != "" {
			e.diags.add(x.Range(), "Not possible", "%s cannot stand behind [*].", found)
			return none
		}
		source := lit(x.Source)
		e.spend(stepCost*length(source.(*hclsyntax.LiteralValueExpr).Val), x.Range())
		simple = &hclsyntax.SplatExpr{Source: source, Each: x.Each, Item: x.Item, SrcRange: x.SrcRange, MarkerRange: x.MarkerRange}
	case *hclsyntax.ScopeTraversalExpr:
		simple = x
	default:
		e.diags.add(x.Range(), "Not possible", "This form of expression is not part of job files.")
	}
	if _, name := x.(*hclsyntax.ScopeTraversalExpr); len(e.diags.all) > before || !name && !e.guard(simple) {
		return none
	}
	v, diags := simple.Value(e.ctx)
	e.diags.hcl(diags)
	if diags.HasErrors() || !v.IsWhollyKnown() {
		return none
	}
	return e.checked(v, x)
}

// checked refuses a huge number.
func (e *evaluator) checked(v cty.Value, x hclsyntax.Node) cty.Value {
	if v.Type() == cty.Number && hugeNumber(v) {
		e.diags.add(x.Range(), "Invalid number", "A number here is too large or too small.")
		return none
	}
	return v
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
		e.diags.add(r, "Not a text", "This is %s, which cannot be part of a text.", kindOf(v))
	} else if !s.IsNull() && e.spend(len(s.AsString())+b.Len()/16, r) {
		b.WriteString(s.AsString())
	}
}

// loop evaluates a for expression over values of the file; what it makes of them
// may name what only run time knows.
func (e *evaluator) loop(x *hclsyntax.ForExpr, quoted bool) cty.Value {
	if later, ok := e.later(x.CollExpr); later || !ok {
		if ok {
			e.keep(x, true) // tells that it is not possible
		}
		return none
	}
	before := len(e.diags.all)
	coll := e.eval(x.CollExpr, true)
	if len(e.diags.all) > before {
		return none
	}
	if coll.IsNull() || !coll.CanIterateElements() {
		e.diags.add(x.CollExpr.Range(), "Not a list", "A for expression goes over a list or an object, this is %s.", kindOf(coll))
		return none
	}
	r := result{isList: x.KeyExpr == nil, group: x.Group, object: map[string]cty.Value{}, groups: map[string][]cty.Value{}}
	for it := coll.ElementIterator(); it.Next(); {
		k, v := it.Element()
		vars := map[string]cty.Value{x.ValVar: v}
		if x.KeyVar != "" {
			vars[x.KeyVar] = k
		}
		if in := e.inner(vars); !in.turn(x, quoted, &r) || len(e.diags.all) > before {
			return none
		}
	}
	return r.value()
}

// result collects what a for expression makes.
type result struct {
	isList, group bool
	list          []cty.Value
	object        map[string]cty.Value
	groups        map[string][]cty.Value
}

func (r *result) value() cty.Value {
	if r.isList {
		return cty.TupleVal(r.list)
	}
	for k, list := range r.groups {
		r.object[k] = cty.TupleVal(list)
	}
	return cty.ObjectVal(r.object)
}

// turn is one turn of a loop; false ends it.
func (e *evaluator) turn(x *hclsyntax.ForExpr, quoted bool, r *result) bool {
	if x.CondExpr != nil {
		cond, err := convert.Convert(e.eval(x.CondExpr, true), cty.Bool)
		if err != nil || cond.IsNull() {
			e.diags.add(x.CondExpr.Range(), "Not a condition", "This must be true or false, and known here.")
			return false
		}
		if cond.False() {
			return true
		}
	}
	v := e.eval(x.ValExpr, quoted)
	if r.isList {
		r.list = append(r.list, v)
		return true
	}
	key, err := convert.Convert(e.eval(x.KeyExpr, true), cty.String)
	if err != nil || key.IsNull() {
		e.diags.add(x.KeyExpr.Range(), "Not a name", "A key must be a text.")
		return false
	}
	k := key.AsString()
	if r.group {
		r.groups[k] = append(r.groups[k], v)
		return true
	}
	if _, twice := r.object[k]; twice {
		e.diags.add(x.KeyExpr.Range(), "Duplicate key", "The key %q comes twice; ... behind the value makes a list of those with one key.", k)
		return false
	}
	r.object[k] = v
	return true
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
	before := len(e.diags.all)
	cond, err := convert.Convert(e.eval(x.Condition, true), cty.Bool)
	if len(e.diags.all) > before {
		return none
	}
	if err != nil || cond.IsNull() {
		e.diags.add(x.Condition.Range(), "Not a condition", "This must be true or false.")
		return none
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
		if _, here := e.here(t); here || runTime(name) {
			continue
		}
		if first := t.RootName(); first == "vars" || first == "locals" || first == "variable" {
			e.diags.add(t.SourceRange(), "Unknown name", "Variables are var.NAME and local values local.NAME.")
			return false
		}
		e.diags.add(t.SourceRange(), "Unknown name", "%q is no variable of this file. A text needs quotes: %q; a value that is known when the task runs is written %q.",
			name, name, "${"+name+"}")
		return false
	}
	return true
}

// runTime says whether a name is one that a node knows.
func runTime(name string) bool {
	return slices.Contains([]string{"attr", "node", "meta", "env", "device", "secret"}, name) || strings.HasPrefix(name, "NOMAD_")
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
		if diags.HasErrors() || !e.spend(size(v), at) {
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

// fromText marks the references of a text that taskenv would fill in, as value
// does. One that HCL cannot write is taken for literal text: nobody knows a
// value for it, and so it would stay as it is.
func (e *evaluator) fromText(s string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			return b.String() + s
		}
		n := reference(s[i:])
		switch {
		case n == 0:
			n = 2
			b.WriteString(s[:i+2])
		case i > 0 && s[i-1] == '$':
			b.WriteString(s[:i-1] + s[i:i+n])
		default:
			v, ok := e.runTimeValue(s[i : i+n])
			b.WriteString(s[:i])
			if ok && v.Type() == cty.String && hasRef(v.AsString()) {
				b.WriteString(v.AsString())
			} else {
				b.WriteString(s[i : i+n])
			}
		}
		s = s[i+n:]
	}
}

// runTimeValue evaluates a template that names nothing of a file.
func (e *evaluator) runTimeValue(s string) (cty.Value, bool) {
	in := *e
	in.ctx = &hcl.EvalContext{}
	in.diags = &diagnostics{sources: map[string][]byte{"": []byte(s)}}
	if !in.diags.check("", []byte(s)) {
		return e.noValue(in.diags), false
	}
	x, diags := hclsyntax.ParseTemplate([]byte(s), "", hcl.InitialPos)
	if diags.HasErrors() {
		in.diags.hcl(diags)
		return e.noValue(in.diags), false
	}
	for _, t := range x.Variables() {
		if name := t.RootName(); name == "var" || name == "local" {
			in.diags.add(t.SourceRange(), "Unknown name", "%s.… is a value of a job file in HCL; there is none here.", name)
		}
	}
	v := in.eval(x, true)
	if len(in.diags.all) > 0 {
		return e.noValue(in.diags), false
	}
	return v, true
}

// noValue keeps why there is no value where fromTemplate finds it.
func (e *evaluator) noValue(d *diagnostics) cty.Value {
	e.why = d.all[0].Summary + ": " + d.all[0].Detail
	return none
}

// fromTemplate is a template as value gives it: evaluated as far as it goes.
func (e *evaluator) fromTemplate(s string, r hcl.Range) cty.Value {
	if !strings.Contains(s, "${") && !strings.Contains(s, "%{") {
		return cty.StringVal(s)
	}
	v, ok := e.runTimeValue(s)
	if !ok {
		if at := shellExpansion(s); at != nil {
			e.diags.add(r, "Shell expansion", shellText, s[at[0]:at[1]], s[at[0]:at[1]])
			return none
		}
		e.diags.add(r, "Invalid template", "%.60q: %s", s, e.why)
		return none
	}
	return v
}
