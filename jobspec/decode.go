// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// blockType says what may stand in a kind of block and where it goes in a T. All
// kinds together are the language: see blocks.go.
type blockType[T any] struct {
	name   string // for messages: "a task block"
	attrs  map[string]attr[T]
	blocks []child[T] // decoded in this order, which is theirs to rely on
	later  []string   // what the language has beyond this and this version cannot run
}

// attr is an argument. field is its path in spec, where Validate finds fault
// with it; "" is its own name.
type attr[T any] struct {
	field string
	set   func(p *parser, in *input, to *T)
}

// child is a nested block. once: a second one is an error.
type child[T any] struct {
	name   string
	once   bool
	labels int
	decode func(p *parser, b *hclsyntax.Block, path string, to *T)
}

// input is an argument's value.
type input struct {
	name  string
	value cty.Value
	where hcl.Range
}

// decode reads b into to. path is where in spec the block's fields are, with the
// dot that ends it. Faults are collected and do not stop it, so that a file's
// faults are told all at once; what is wrong keeps the value it had in to.
// Arguments come before blocks: what a block takes over is there.
func decode[T any](p *parser, t *blockType[T], b *hclsyntax.Body, path string, to *T) {
	var names []string
	for name := range t.attrs {
		names = append(names, name)
	}
	for _, c := range t.blocks {
		names = append(names, c.name)
	}
	for _, a := range inOrder(b.Attributes) {
		def, ok := t.attrs[a.Name]
		if !ok {
			p.unknown(a.NameRange, "argument", a.Name, t.name, names, t.later)
			continue
		}
		field := def.field
		if field == "" {
			field = a.Name
		}
		p.where[path+field] = place{a.Name, a.Expr.Range()}
		before := len(p.diags.all)
		v := p.value(a.Expr)
		if len(p.diags.all) > before {
			continue
		}
		if v.IsNull() {
			continue // as if it were not there
		}
		def.set(p, &input{a.Name, v, a.Expr.Range()}, to)
	}
	for _, x := range b.Blocks {
		if !slices.ContainsFunc(t.blocks, func(c child[T]) bool { return c.name == x.Type }) {
			p.unknown(x.TypeRange, "block", x.Type, t.name, names, t.later)
		}
	}
	for _, c := range t.blocks {
		decodeChildren(p, &c, b, path, to)
	}
}

func decodeChildren[T any](p *parser, c *child[T], b *hclsyntax.Body, path string, to *T) {
	var first *hclsyntax.Block
	for _, x := range b.Blocks {
		if x.Type != c.name {
			continue
		}
		switch {
		case len(x.Labels) != c.labels && c.labels == 0:
			p.diags.add(x.LabelRanges[0], "Unexpected label", "A %s block has none.", c.name)
		case len(x.Labels) != c.labels:
			p.diags.add(x.DefRange(), "Block without a name", "A %s block has one name: %s \"name\" { … }", c.name, c.name)
		case c.once && first != nil:
			p.diags.add(x.DefRange(), "Duplicate block", "There is one %s block here, on line %d already.", c.name, first.DefRange().Start.Line)
		default:
			first = x
			c.decode(p, x, path, to)
		}
	}
}

// unknown reports a name that has no place where it stands.
func (p *parser) unknown(r hcl.Range, kind, name, in string, allowed, later []string) {
	known := strings.Join(slices.Compact(slices.Sorted(slices.Values(allowed))), ", ")
	if slices.Contains(later, name) {
		p.diags.add(r, "Not supported", "This version cannot run a job with %q in %s; take it out. There may be: %s.", name, in, known)
		return
	}
	p.diags.add(r, "Unknown "+kind, "%q has no meaning in %s. There may be: %s.", name, in, known)
}

// invalid reports a value.
func (p *parser) invalid(in *input, format string, args ...any) {
	p.diags.add(in.where, "Invalid value for "+in.name, format, args...)
}

// text is the value as a string in the form f, if it can be one. Numbers and
// booleans can: people write ports and flags without quotes.
func (p *parser) text(in *input, f form) (string, bool) {
	v, err := convert.Convert(in.value, cty.String)
	if err != nil || v.IsNull() {
		p.invalid(in, "A text is needed, this is %s.", kind(in.value))
		return "", false
	}
	s := v.AsString()
	if f == formPlain && hasRef(s) {
		p.invalid(in, "This is known only when the task runs; a fixed value is needed here.")
		return "", false
	}
	if f == formText && strings.Contains(s, refOpen+"%{") {
		p.invalid(in, "A directive about what is known only when the task runs is possible in a config block, not here.")
		return "", false
	}
	return f.encode(s), true
}

// kind says what a value is, in words that stand in a job file.
func kind(v cty.Value) string {
	switch t := v.Type(); {
	case v.IsNull():
		return "nothing"
	case t == cty.String:
		return "a text"
	case t == cty.Number:
		return "a number"
	case t == cty.Bool:
		return "true or false"
	case t.IsTupleType() || t.IsListType() || t.IsSetType():
		return "a list"
	default:
		return "a set of names and values"
	}
}

// The kinds of arguments. Each takes where the value goes.

func str[T any](field string, f form, to func(*T) *string) attr[T] {
	return attr[T]{field, func(p *parser, in *input, t *T) {
		if s, ok := p.text(in, f); ok {
			*to(t) = s
		}
	}}
}

func boolean[T any](field string, to func(*T) *bool) attr[T] {
	return attr[T]{field, func(p *parser, in *input, t *T) {
		v, err := convert.Convert(in.value, cty.Bool)
		if err != nil || v.IsNull() {
			p.invalid(in, "true or false is needed, this is %s.", kind(in.value))
			return
		}
		*to(t) = v.True()
	}}
}

// whole is a whole number of least or more, in units of unit. A least of 1 keeps
// a 0 that someone wrote from becoming spec's default. Texts that are numbers are
// accepted: count = "3". The upper bound keeps n*unit inside an int64.
func whole[T any, N int | int64](field string, least int64, unit N, to func(*T) *N) attr[T] {
	return attr[T]{field, func(p *parser, in *input, t *T) {
		v, err := convert.Convert(in.value, cty.Number)
		if err != nil || v.IsNull() {
			p.invalid(in, "A number is needed, this is %s.", kind(in.value))
			return
		}
		n, accuracy := v.AsBigFloat().Int64()
		if accuracy != big.Exact {
			p.invalid(in, "A whole number is needed.")
			return
		}
		if n < least || n > 1<<40 {
			p.invalid(in, "%d is out of range, %d or more is needed.", n, least)
			return
		}
		*to(t) = N(n) * unit
	}}
}

// duration is a text such as "30s". zero stands in for 0 where spec takes 0 for
// its default. A bare number is refused rather than guessed at: some would mean
// seconds by it.
func duration[T any](field string, zero time.Duration, to func(*T) *time.Duration) attr[T] {
	return attr[T]{field, func(p *parser, in *input, t *T) {
		if in.value.Type() == cty.Number {
			p.invalid(in, `A duration needs a unit: "30s", "1m30s", "24h".`)
			return
		}
		s, ok := p.text(in, formPlain)
		if !ok {
			return
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			p.invalid(in, `%q is no duration; write "30s", "1m30s", "24h".`, s)
			return
		}
		if d == 0 {
			d = zero
		}
		*to(t) = d
	}}
}

func words[T any](field string, to func(*T) *[]string) attr[T] {
	return attr[T]{field, func(p *parser, in *input, t *T) {
		v, err := convert.Convert(in.value, cty.List(cty.String))
		if err != nil || v.IsNull() || !v.IsWhollyKnown() {
			p.invalid(in, `A list of texts is needed: ["a", "b"].`)
			return
		}
		list := []string{}
		for _, e := range v.AsValueSlice() {
			if s, ok := p.text(&input{in.name, e, in.where}, formPlain); ok {
				list = append(list, s)
			}
		}
		*to(t) = list
	}}
}

// texts is an argument or a block of names and texts, such as env and meta. Both
// forms may be there, also repeatedly: the last one that sets a name wins. Names
// that are no identifiers, such as "dashed-name.x", need the form with "=".
func texts[T any](name string, to func(*T) *map[string]string) (attr[T], child[T]) {
	set := func(p *parser, in *input, t *T) {
		if !in.value.Type().IsObjectType() && !in.value.Type().IsMapType() {
			p.invalid(in, "Names and texts are needed: %s = { NAME = \"text\" }.", in.name)
			return
		}
		if *to(t) == nil {
			*to(t) = map[string]string{}
		}
		for k, v := range in.value.AsValueMap() {
			if v.IsNull() {
				continue
			}
			if hasRef(k) {
				p.invalid(in, "The names in %s must be known before the task runs.", name)
				continue
			}
			if s, ok := p.text(&input{in.name, v, in.where}, formText); ok {
				(*to(t))[k] = s
			}
		}
	}
	block := func(p *parser, b *hclsyntax.Block, path string, t *T) {
		for _, x := range b.Body.Blocks {
			p.diags.add(x.DefRange(), "Unexpected block", "A %s block has lines of NAME = \"text\" only.", name)
		}
		for _, a := range inOrder(b.Body.Attributes) {
			p.where[path+name+"."+a.Name] = place{a.Name, a.Expr.Range()}
			before := len(p.diags.all)
			if v := p.value(a.Expr); len(p.diags.all) == before {
				set(p, &input{a.Name, cty.ObjectVal(map[string]cty.Value{a.Name: v}), a.Expr.Range()}, t)
			}
		}
	}
	return attr[T]{name, set}, child[T]{name: name, decode: block}
}
