// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// EnvPrefix begins the environment variables that set variables of a job file.
const EnvPrefix = "NOMAD_VAR_"

// variable is a variable block.
type variable struct {
	name  string
	typ   cty.Type // DynamicPseudoType if the block has none
	text  bool     // values from outside are texts, not expressions
	value cty.Value
	wrong bool // one of its values was refused: that is told, and enough
	where hcl.Range
	set   hcl.Range // of the value
	rules hclsyntax.Blocks
}

// variables reads the variable blocks and gives each its value. From weak to
// strong: default, environment, variable files in their order, Vars. A name that
// the file does not declare is an error, for it is most likely misspelt; but in
// the environment, which is shared with other jobs. A variable whose value was
// refused is not reported as missing too.
func (p *parser) variables(blocks map[string]hclsyntax.Blocks) {
	vars := map[string]*variable{}
	for _, b := range blocks["variable"] {
		if v := p.variable(b); v != nil {
			if first := vars[v.name]; first != nil {
				p.diags.add(b.DefRange(), "Duplicate variable", "The variable %q is declared on line %d already.", v.name, first.where.Start.Line)
				continue
			}
			vars[v.name] = v
		}
	}
	p.defaults(blocks["variables"], vars)
	for _, kv := range p.cfg.Env {
		name, value, ok := strings.Cut(kv, "=")
		if name, has := strings.CutPrefix(name, EnvPrefix); ok && has && vars[name] != nil {
			p.assign(vars[name], EnvPrefix+name, value)
		}
	}
	for _, f := range p.cfg.VarFiles {
		p.varFile(f, vars)
	}
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Vars)) {
		if v := vars[name]; v != nil {
			p.assign(v, "-var "+name, p.cfg.Vars[name])
		} else {
			p.undeclared(hcl.Range{Filename: "-var " + name, Start: hcl.InitialPos, End: hcl.InitialPos}, name, vars)
		}
	}
	values := map[string]cty.Value{}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		v := vars[name]
		if v.value == cty.NilVal {
			if !v.wrong {
				p.diags.add(v.where, "Variable without a value", "Set it with -var %s=…, in a variable file or as %s%s, or give it a default.", name, EnvPrefix, name)
			}
			v.value = none
		}
		values[name] = v.value
	}
	p.eval.ctx.Variables["var"] = cty.ObjectVal(values)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		for _, b := range vars[name].rules {
			if !vars[name].wrong {
				p.rule(vars[name], b)
			}
		}
	}
}

func (p *parser) undeclared(r hcl.Range, name string, vars map[string]*variable) {
	names := slices.Sorted(maps.Keys(vars))
	declares := "it declares none"
	if len(vars) > 0 {
		declares = "it declares " + strings.Join(names, ", ")
	}
	how := meant(name, names)
	if how == "" && hclsyntax.ValidIdentifier(name) {
		how = fmt.Sprintf(" To declare one: variable %q {}, beside the job block; it is used as var.%s.", name, name)
	}
	tell := p.diags.add
	if p.cfg.Lenient {
		tell = p.diags.warn
	}
	tell(r, "Unknown variable", "The job file declares no variable %q; %s.%s", name, declares, how)
}

func (p *parser) variable(b *hclsyntax.Block) *variable {
	if len(b.Labels) != 1 || !hclsyntax.ValidIdentifier(b.Labels[0]) {
		p.diags.add(b.DefRange(), "Variable without a name", `A variable block has one name of letters, digits, "_" and "-": variable "name" { … }`)
		return nil
	}
	def := language().child("variable")
	v := &variable{name: b.Labels[0], typ: cty.DynamicPseudoType, text: true, where: b.DefRange()}
	if a := b.Body.Attributes["type"]; a != nil {
		t, diags := typeexpr.TypeConstraint(a.Expr)
		p.diags.hcl(diags)
		v.typ, v.text = t, t == cty.String
	}
	for _, a := range inOrder(b.Body.Attributes) {
		switch a.Name {
		case "type":
		case "description", "sensitive":
			p.convert(def.child(a.Name), &input{a.Name, p.eval.value(a.Expr), a.Expr.Range()})
		case "default":
			p.constant(v, a.Expr)
		default:
			p.unknown(a.NameRange, "argument", a.Name, def)
		}
	}
	for _, x := range b.Body.Blocks {
		if x.Type == "validation" {
			v.rules = append(v.rules, x)
		} else {
			p.unknown(x.TypeRange, "block", x.Type, def)
		}
	}
	return v
}

// defaults reads variables blocks: name = default for variables without a type.
func (p *parser) defaults(blocks hclsyntax.Blocks, vars map[string]*variable) {
	for _, b := range blocks {
		for _, x := range b.Body.Blocks {
			p.diags.add(x.DefRange(), "Unexpected block", "A variables block has lines of name = default only.")
		}
		for _, a := range inOrder(b.Body.Attributes) {
			if first := vars[a.Name]; first != nil {
				p.diags.add(a.NameRange, "Duplicate variable", "The variable %q is declared on line %d already.", a.Name, first.where.Start.Line)
				continue
			}
			v := &variable{name: a.Name, typ: cty.DynamicPseudoType, text: true, where: a.NameRange}
			p.constant(v, a.Expr)
			vars[a.Name] = v
		}
	}
}

// rule holds a variable's value against one of its validation blocks.
func (p *parser) rule(v *variable, b *hclsyntax.Block) {
	def := language().child("variable").child("validation")
	for _, a := range inOrder(b.Body.Attributes) {
		if def.child(a.Name) == nil {
			p.unknown(a.NameRange, "argument", a.Name, def)
		}
	}
	condition, message := b.Body.Attributes["condition"], b.Body.Attributes["error_message"]
	if condition == nil || message == nil {
		p.diags.add(b.DefRange(), "Incomplete validation", "A validation block has a condition and an error_message.")
		return
	}
	before := len(p.diags.all)
	is, ok := truth(p.eval.value(condition.Expr))
	text, told := p.text(&input{message.Name, p.eval.value(message.Expr), message.Expr.Range()}, formPlain)
	switch {
	case len(p.diags.all) > before || !told:
	case !ok:
		p.diags.add(condition.Expr.Range(), "Not a condition", "This must be true or false.")
	case !is:
		p.diags.add(v.set, "Invalid value for variable", "%s: %s", v.name, text)
	}
}

// assign gives v a value from outside a file: a text as it is where v is declared
// as string or without a type, else an expression of HCL, such as ["a", "b"].
func (p *parser) assign(v *variable, from, text string) {
	p.diags.source(from, []byte(text))
	if v.wrong = !p.diags.check(from, []byte(text)); v.wrong {
		return
	}
	r := hcl.Range{Filename: from, Start: hcl.InitialPos, End: hcl.Pos{Line: 1, Column: 1 + len(text), Byte: len(text)}}
	if v.text {
		p.set(v, cty.StringVal(text), r)
		return
	}
	expr, diags := hclsyntax.ParseExpression([]byte(text), from, hcl.InitialPos)
	p.diags.hcl(diags)
	if v.wrong = diags.HasErrors(); !v.wrong {
		p.constant(v, expr)
	}
}

// constant gives v the value of an expression that needs no other.
func (p *parser) constant(v *variable, x hclsyntax.Expression) {
	if names := x.Variables(); len(names) > 0 {
		p.diags.add(names[0].SourceRange(), "Variables not allowed", "The value of a variable is fixed: no other names can be used in it. A text needs quotes.")
		v.wrong = true
		return
	}
	before := len(p.diags.all)
	value := p.eval.value(x)
	if v.wrong = len(p.diags.all) > before; !v.wrong {
		p.set(v, value, x.Range())
	}
}

// set gives v a value, as its type.
func (p *parser) set(v *variable, value cty.Value, r hcl.Range) {
	if hugeTexts(value) && v.typ != cty.String && v.typ != cty.DynamicPseudoType {
		p.diags.add(r, "Invalid number", "A number here is too large or too small.")
		v.wrong = true
		return
	}
	value, err := convert.Convert(value, v.typ)
	if err != nil {
		p.diags.add(r, "Wrong type of value", "The variable %q is declared as %s: %v.", v.name, typeexpr.TypeString(v.typ), err)
		v.wrong = true
		return
	}
	if holds(value, hugeNumber) {
		p.diags.add(r, "Invalid number", "A number here is too large or too small.")
		v.wrong = true
		return
	}
	v.value, v.set = value, r
}

// varFile reads a file of name = value, or a JSON object of them.
func (p *parser) varFile(f File, vars map[string]*variable) {
	src, ok := p.read(f)
	if !ok {
		return
	}
	if isJSON(src) {
		p.varJSON(f.Name, src, vars)
		return
	}
	body := p.syntax(f.Name, src)
	if body == nil {
		return
	}
	for _, b := range body.Blocks {
		p.diags.add(b.DefRange(), "Unexpected block", "A variable file has lines of name = value only.")
	}
	for _, a := range inOrder(body.Attributes) {
		if vars[a.Name] == nil {
			p.undeclared(a.NameRange, a.Name, vars)
			continue
		}
		p.constant(vars[a.Name], a.Expr)
	}
}

// varJSON reads a variable file in JSON, where a text is a text and no template.
func (p *parser) varJSON(name string, src []byte, vars map[string]*variable) {
	if !p.checkJSON(name, src) {
		return
	}
	x, diags := hcljson.ParseExpression(src, name)
	p.diags.hcl(diags)
	if diags.HasErrors() {
		return
	}
	pairs, _ := p.pairs(x, "A variable file in JSON")
	for _, pair := range pairs {
		v := vars[pair.name]
		if v == nil {
			p.undeclared(pair.at, pair.name, vars)
			continue
		}
		value, diags := pair.value.Value(nil)
		p.diags.hcl(diags)
		if v.wrong = diags.HasErrors(); !v.wrong {
			p.set(v, value, pair.value.Range())
		}
	}
}

// locals evaluates the locals blocks. They may use variables and each other, in
// any order but not in a circle.
func (p *parser) locals(blocks hclsyntax.Blocks) {
	attrs := map[string]*hclsyntax.Attribute{}
	for _, b := range blocks {
		if len(b.Labels) > 0 {
			p.diags.add(b.LabelRanges[0], "Unexpected label", "A locals block has none.")
		}
		for _, x := range b.Body.Blocks {
			p.diags.add(x.DefRange(), "Unexpected block", "A locals block has lines of name = value only.")
		}
		for name, a := range b.Body.Attributes {
			if first := attrs[name]; first != nil {
				p.diags.add(a.NameRange, "Duplicate local value", "The local value %q is there on line %d already.", name, first.NameRange.Start.Line)
				continue
			}
			attrs[name] = a
		}
	}
	values := map[string]cty.Value{}
	for _, a := range inOrder(attrs) {
		p.local(a, attrs, values, nil)
	}
	p.eval.ctx.Variables["local"] = cty.ObjectVal(values)
}

// local evaluates a after those it uses; users are the ones that wait for it. In
// a circle all are null.
func (p *parser) local(a *hclsyntax.Attribute, attrs map[string]*hclsyntax.Attribute, values map[string]cty.Value, users []string) (ok bool) {
	if v, done := values[a.Name]; done {
		return !v.IsNull() || v.Type() != cty.DynamicPseudoType
	}
	if i := slices.Index(users, a.Name); i >= 0 {
		p.diags.add(a.NameRange, "Local values in a circle", "%s -> %s", strings.Join(users[i:], " -> "), a.Name)
		return false
	}
	for _, t := range a.Expr.Variables() {
		step, isAttr := at(t, 1).(hcl.TraverseAttr)
		if !isAttr || t.RootName() != "local" || attrs[step.Name] == nil {
			continue
		}
		if !p.local(attrs[step.Name], attrs, values, append(users, a.Name)) {
			values[a.Name] = none
			return false
		}
	}
	p.eval.ctx.Variables["local"] = cty.ObjectVal(values)
	values[a.Name] = p.eval.value(a.Expr)
	return true
}

func at(t hcl.Traversal, i int) hcl.Traverser {
	if i < len(t) {
		return t[i]
	}
	return nil
}

// inOrder returns attributes in the order they are written in.
func inOrder(attrs map[string]*hclsyntax.Attribute) []*hclsyntax.Attribute {
	return slices.SortedFunc(maps.Values(attrs), func(a, b *hclsyntax.Attribute) int {
		return a.NameRange.Start.Byte - b.NameRange.Start.Byte
	})
}
