// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
)

// config makes HCL-JSON of a block whose names only someone else knows, such as a
// driver: arguments as values, blocks as lists of objects, labels as objects
// around them. Strings are templates of run time. Every value's place in the
// file goes into the origin map, so that the driver's complaints can point there.
type config struct {
	*parser
	evaluator *evaluator
	origin    map[string]spec.Origin
}

func (c *config) mark(path string, r hcl.Range) {
	if _, ok := c.origin[path]; !ok {
		c.origin[path] = spec.Origin{File: r.Filename, Line: r.Start.Line, Column: r.Start.Column}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// body is a body as an object. A path is the keys and indices that lead to a
// value in the JSON, joined by dots; an origin is the first place that wrote it.
func (c *config) body(b *hclsyntax.Body, path string) map[string]any {
	out := map[string]any{}
	for _, a := range inOrder(b.Attributes) {
		at := join(path, a.Name)
		c.mark(at, a.NameRange)
		c.places(a.Expr, at)
		before := len(c.diags.all)
		if v := c.evaluator.value(a.Expr); len(c.diags.all) == before {
			out[a.Name] = c.json(v, a.Expr.Range())
		}
	}
	for _, x := range b.Blocks {
		if a := b.Attributes[x.Type]; a != nil {
			c.diags.add(x.DefRange(), "Duplicate name", "%q is an argument on line %d already; it cannot be a block as well.", x.Type, a.NameRange.Start.Line)
			continue
		}
		if x.Type == "dynamic" && len(x.Labels) > 0 {
			c.each(x, c.evaluator, func(e *evaluator, labels []string, content *hclsyntax.Body) {
				in := *c
				in.evaluator = e
				in.block(out, x.Labels[0], labels, content, x.TypeRange, join(path, x.Labels[0]))
			})
			continue
		}
		c.block(out, x.Type, x.Labels, x.Body, x.TypeRange, join(path, x.Type))
	}
	return out
}

// block adds a block to the list of those of its name, each below its labels:
// mount "a" "b" {…} is {"mount": [{"a": {"b": [{…}]}}]}.
func (c *config) block(to map[string]any, name string, labels []string, b *hclsyntax.Body, at hcl.Range, path string) {
	list, _ := to[name].([]any)
	c.mark(path, at)
	path = join(path, strconv.Itoa(len(list)))
	c.mark(path, at)
	for _, label := range labels {
		path = join(path, label)
		c.mark(path, at)
	}
	if len(labels) > 0 {
		path = join(path, "0")
	}
	var v any = c.body(b, path)
	for i, label := range slices.Backward(labels) {
		if i == len(labels)-1 {
			v = []any{v}
		}
		v = map[string]any{label: v}
	}
	to[name] = append(list, v)
}

// places marks the parts of lists and objects.
func (c *config) places(x hclsyntax.Expression, path string) {
	switch x := x.(type) {
	case *hclsyntax.TupleConsExpr:
		for i, e := range x.Exprs {
			at := join(path, strconv.Itoa(i))
			c.mark(at, e.Range())
			c.places(e, at)
		}
	case *hclsyntax.ObjectConsExpr:
		for _, item := range x.Items {
			key, diags := item.KeyExpr.Value(nil)
			if diags.HasErrors() || key.Type() != cty.String || key.IsNull() || !key.IsKnown() {
				continue
			}
			at := join(path, key.AsString())
			c.mark(at, item.KeyExpr.Range())
			c.places(item.ValueExpr, at)
		}
	}
}

// json is v as encoding/json takes it, its strings as templates.
func (p *parser) json(v cty.Value, r hcl.Range) any {
	t := v.Type()
	switch {
	case v.IsNull() || !v.IsKnown():
		return nil
	case t == cty.String:
		return formTemplate.encode(v.AsString())
	case t == cty.Bool:
		return v.True()
	case t == cty.Number:
		if hugeNumber(v) {
			p.diags.add(r, "Invalid number", "A number here is too large or too small.")
			return nil
		}
		return json.Number(v.AsBigFloat().Text('f', -1))
	case t.IsMapType() || t.IsObjectType():
		out := map[string]any{}
		values := v.AsValueMap()
		for _, k := range slices.Sorted(maps.Keys(values)) {
			out[formTemplate.encode(k)] = p.json(values[k], r)
		}
		return out
	case t.IsTupleType() || t.IsListType() || t.IsSetType():
		out := []any{}
		for _, e := range v.AsValueSlice() {
			out = append(out, p.json(e, r))
		}
		return out
	}
	p.diags.add(r, "Invalid value", "A %s cannot be part of a config.", t.FriendlyName())
	return nil
}
