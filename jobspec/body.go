// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// source is a block as it is written, or as a dynamic block makes it.
type source struct {
	name   string
	labels []string
	body   *hclsyntax.Body
	at     hcl.Range // of its head
	names  []hcl.Range
}

// block reads a block by its line of the table. Faults are collected and do not
// stop it, so that a file's faults are told all at once; what is wrong is not in
// the tree.
func (p *parser) block(def *node, b source, e *evaluator) *Block {
	t := &Block{Type: b.name, Labels: b.labels, Range: rangeOf(b.at), name: rangeOf(b.at), lang: def}
	if len(b.names) == 1 {
		t.name = rangeOf(b.names[0])
		p.label(t, b.names[0])
	}
	for _, a := range inOrder(b.body.Attributes) {
		p.argument(t, def, a, e)
	}
	firsts := map[string]hcl.Range{}
	for _, x := range b.body.Blocks {
		if x.Type == "dynamic" {
			p.dynamic(t, def, x, e, firsts)
			continue
		}
		p.child(t, def, source{x.Type, x.Labels, x.Body, x.DefRange(), x.LabelRanges}, e, firsts)
	}
	return t
}

// argument reads name = value into t.
func (p *parser) argument(t *Block, def *node, a *hclsyntax.Attribute, e *evaluator) {
	if now := def.renamed(a.Name); now != "" {
		p.diags.warn(a.NameRange, "Old spelling", "%s is called %s.", a.Name, now)
		renamed := *a
		renamed.Name = now
		a = &renamed
	}
	arg := def.child(a.Name)
	switch {
	case arg == nil:
		p.unknown(a.NameRange, "argument", a.Name, def)
		return
	case arg.block():
		p.diags.add(a.NameRange, "A block is needed", "%s is a block, without \"=\": %s", a.Name, p.asBlock(a))
		return
	case a.Name == def.label && def.kind == kindBlocks:
		p.sameAsLabel(t, a, e)
		return
	}
	before := len(p.diags.all)
	v := e.value(a.Expr)
	if len(p.diags.all) > before || v.IsNull() {
		return // null is as if it were not there
	}
	value, ok := p.convert(arg, &input{a.Name, v, a.Expr.Range()})
	if !ok {
		return
	}
	if value == "" { // as if it were not there either, as in the API
		if t.blank == nil {
			t.blank = map[string]Range{}
		}
		t.blank[a.Name] = rangeOf(a.Expr.Range())
		return
	}
	attr := Attr{Name: a.Name, Value: value, Range: rangeOf(a.Expr.Range())}
	if arg.kind == kindAny {
		c := config{parser: p, evaluator: e, origin: map[string]spec.Origin{}}
		c.mark("", a.NameRange)
		c.places(a.Expr, "")
		attr.origin = c.origin
	}
	p.put(t, arg, attr)
}

// label refuses what another tool has to fill in before it is a name.
func (p *parser) label(t *Block, r hcl.Range) {
	for _, brackets := range []string{"[[", "{{"} {
		if strings.Contains(t.Label(), brackets) {
			p.diags.add(r, "Template of another tool", "%s is not part of job files: a tool such as Levant or nomad-pack fills it in. Render the file with it first.", brackets)
		}
	}
}

// sameAsLabel refuses the argument that the label is, unless it says the same.
func (p *parser) sameAsLabel(t *Block, a *hclsyntax.Attribute, e *evaluator) {
	before := len(p.diags.all)
	if v := e.value(a.Expr); len(p.diags.all) == before && (v.Type() != cty.String || v.IsNull() || v.AsString() != t.Label()) {
		p.diags.add(a.NameRange, "Second name", "The %s of this block is its label, %q; take this line out.", a.Name, t.Label())
	}
}

// put adds an argument; those that may be blocks may come several times, the
// last one that sets a name wins.
func (p *parser) put(t *Block, arg *node, a Attr) {
	old := t.attr(a.Name)
	if old == nil {
		t.Attrs = append(t.Attrs, a)
		return
	}
	switch v := a.Value.(type) {
	case map[string]string:
		merged := maps.Clone(old.Value.(map[string]string))
		maps.Copy(merged, v)
		old.Value = merged
	case map[string][]string:
		merged := maps.Clone(old.Value.(map[string][]string))
		maps.Copy(merged, v)
		old.Value = merged
	default:
		p.diags.add(a.Range.hcl(), "Duplicate "+arg.name, "There is one %s here, on line %d already.", arg.name, old.Range.Line)
	}
}

// child reads a block inside of t.
func (p *parser) child(t *Block, def *node, b source, e *evaluator, firsts map[string]hcl.Range) {
	in := def.child(b.name)
	switch {
	case in == nil:
		p.unknown(headName(b), "block", b.name, def)
	case in.kind.blocky():
		p.mapping(t, in, b, e)
	case !in.block():
		p.diags.add(b.at, "An argument is needed", "%s is an argument, with \"=\": %s = …", b.name, b.name)
	case in.label == "" && len(b.labels) > 0:
		p.diags.add(b.at, "Unexpected label", "%s block has none.", article(b.name))
	case in.label != "" && len(b.labels) != 1:
		p.diags.add(b.at, "Block without a name", "%s block has one name: %s \"name\" { … }", article(b.name), b.name)
	case in.kind == kindBlock && firsts[b.name] != (hcl.Range{}):
		p.diags.add(b.at, "Duplicate block", "There is one %s block here, on line %d already.", b.name, firsts[b.name].Start.Line)
	default:
		firsts[b.name] = b.at
		if p.room(b.at) {
			t.Blocks = append(t.Blocks, p.block(in, b, e))
		}
	}
}

// room counts blocks.
func (p *parser) room(at hcl.Range) bool {
	if p.budget.blocks++; p.budget.blocks == maxBlocks+1 {
		p.diags.add(at, "Too many blocks", "A job has %d blocks at most.", maxBlocks)
	}
	return p.budget.blocks <= maxBlocks
}

// mapping reads the block form of an argument: names and values, or a config.
func (p *parser) mapping(t *Block, arg *node, b source, e *evaluator) {
	if len(b.labels) > 0 {
		p.diags.add(b.at, "Unexpected label", "%s block has none.", article(b.name))
		return
	}
	before := len(p.diags.all)
	attr := Attr{Name: b.name, Range: rangeOf(b.at)}
	if arg.kind == kindAny {
		c := config{parser: p, evaluator: e, origin: map[string]spec.Origin{}}
		c.mark("", b.at)
		attr.Value, attr.origin = c.body(b.body, ""), c.origin
	} else {
		for _, x := range b.body.Blocks {
			p.diags.add(x.DefRange(), "Unexpected block", "%s block has lines of NAME = value only.", article(b.name))
		}
		values := map[string]cty.Value{}
		for _, a := range inOrder(b.body.Attributes) {
			values[a.Name] = none
			told := len(p.diags.all)
			if v := e.value(a.Expr); len(p.diags.all) == told && !v.IsNull() {
				// One by one, so that a fault is shown at its line.
				_, _ = p.object(arg, &input{b.name, cty.ObjectVal(map[string]cty.Value{a.Name: v}), a.Expr.Range()})
				values[a.Name] = v
			}
		}
		if len(p.diags.all) == before {
			attr.Value, _ = p.object(arg, &input{b.name, cty.ObjectVal(values), b.at})
		}
	}
	if len(p.diags.all) == before {
		p.put(t, arg, attr)
	}
}

// dynamic makes blocks of a dynamic block, where it stands.
func (p *parser) dynamic(t *Block, def *node, x *hclsyntax.Block, e *evaluator, firsts map[string]hcl.Range) {
	if len(x.Labels) == 1 && def.child(x.Labels[0]) == nil {
		p.unknown(x.LabelRanges[0], "block", x.Labels[0], def)
		return
	}
	p.each(x, e, func(in *evaluator, labels []string, content *hclsyntax.Body) {
		p.child(t, def, source{x.Labels[0], labels, content, x.DefRange(), nil}, in, firsts)
	})
}

// each calls f for each element of a dynamic block's for_each, with the evaluator
// that knows it: as NAME.key and NAME.value, NAME being the block's or iterator.
func (p *parser) each(x *hclsyntax.Block, e *evaluator, f func(e *evaluator, labels []string, content *hclsyntax.Body)) {
	const form = `dynamic "NAME" { for_each = […] content { … } }, with iterator = NAME and labels = […] where needed`
	if len(x.Labels) != 1 {
		p.diags.add(x.DefRange(), "Dynamic block without a name", "It is written %s.", form)
		return
	}
	iterator := x.Labels[0]
	for _, a := range inOrder(x.Body.Attributes) {
		switch a.Name {
		case "for_each", "labels":
		case "iterator":
			if iterator = hcl.ExprAsKeyword(a.Expr); iterator == "" {
				p.diags.add(a.Expr.Range(), "Invalid iterator", "It is a name without quotes.")
			}
		default:
			p.diags.add(a.NameRange, "Unknown argument", "%q has no meaning in a dynamic block. It is written %s.", a.Name, form)
		}
	}
	var content *hclsyntax.Block
	for _, b := range x.Body.Blocks {
		if b.Type != "content" || content != nil {
			p.diags.add(b.DefRange(), "Unexpected block", "A dynamic block has one content block. It is written %s.", form)
		}
		content = b
	}
	over := x.Body.Attributes["for_each"]
	if content == nil || over == nil {
		p.diags.add(x.DefRange(), "Incomplete dynamic block", "It is written %s.", form)
		return
	}
	before := len(p.diags.all)
	coll := e.value(over.Expr)
	if len(p.diags.all) > before {
		return
	}
	if coll.IsNull() || !coll.CanIterateElements() {
		p.diags.add(over.Expr.Range(), "Not a list", "for_each goes over a list or an object of this file, this is %s.", kindOf(coll))
		return
	}
	for it := coll.ElementIterator(); it.Next() && !p.budget.spent && p.budget.blocks <= maxBlocks; {
		k, v := it.Element()
		if coll.Type().IsSetType() {
			k = v
		}
		in := e.inner(map[string]cty.Value{iterator: cty.ObjectVal(map[string]cty.Value{"key": k, "value": v})})
		labels, ok := p.labels(x.Body.Attributes["labels"], in)
		if !ok || !p.room(x.DefRange()) {
			return
		}
		f(in, labels, content.Body)
	}
}

func (p *parser) labels(a *hclsyntax.Attribute, e *evaluator) ([]string, bool) {
	if a == nil {
		return nil, true
	}
	before := len(p.diags.all)
	v := e.value(a.Expr)
	if len(p.diags.all) > before {
		return nil, false
	}
	return p.words(&input{a.Name, v, a.Expr.Range()}, formPlain)
}

// unknown reports a name that has no place where it stands: as a warning where
// the caller wants to read more than there is.
func (p *parser) unknown(r hcl.Range, what, name string, in *node) {
	if len(p.diags.all)+len(p.diags.warnings) > 10*maxDiagnostics { // nobody will read it
		p.diags.add(r, "Unknown "+what, "%q has no meaning here.", name)
		return
	}
	names := in.names()
	where := "a job file outside of blocks"
	if in.name != "" {
		where = strings.ToLower(article(in.name)) + " block"
	}
	detail := fmt.Sprintf("%q has no meaning in %s.%s%s There may be: %s.", name, where, meant(name, names), elsewhere(name, in), strings.Join(names, ", "))
	if p.cfg.Lenient {
		p.diags.warn(r, "Unknown "+what, "%s", detail)
		return
	}
	p.diags.add(r, "Unknown "+what, "%s", detail)
}

// elsewhere says where a name does have a place.
func elsewhere(name string, in *node) string {
	var places []string
	var walk func(n *node)
	walk = func(n *node) {
		for _, c := range n.inside {
			if c.name == name && n.name != "" && n.name != in.name {
				places = append(places, n.name)
			}
			walk(c)
		}
	}
	if walk(language()); len(places) == 0 || slices.Contains(in.names(), name) {
		return ""
	}
	slices.Sort(places)
	places = slices.Compact(places)
	if len(places) > 5 {
		return ""
	}
	return fmt.Sprintf(" It belongs into: %s.", strings.Join(places, ", "))
}

func article(name string) string {
	if strings.ContainsRune("aeiou", rune(name[0])) && name != "use" {
		return "An " + name
	}
	return "A " + name
}

// headName is the range of a block's type.
func headName(b source) hcl.Range {
	r := b.at
	if r.Start.Line == r.End.Line {
		r.End = r.Start
		r.End.Column += len(b.name)
	}
	return r
}

// asBlock shows what an argument looks like as a block, as far as it is short.
func (p *parser) asBlock(a *hclsyntax.Attribute) string {
	src := p.diags.sources[a.SrcRange.Filename]
	if r := a.Expr.Range(); r.End.Byte-r.Start.Byte < 60 && r.Start.Line == r.End.Line && r.End.Byte <= len(src) && src[r.Start.Byte] == '{' {
		return a.Name + " " + string(src[r.Start.Byte:r.End.Byte])
	}
	return a.Name + " { … }"
}

// truth converts a condition.
func truth(v cty.Value) (is, ok bool) {
	b, err := convert.Convert(v, cty.Bool)
	if err != nil || b.IsNull() || !b.IsKnown() {
		return false, false
	}
	return b.True(), true
}
