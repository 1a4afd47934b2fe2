// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// field is what may be written under one name in a body. A schema nests by what
// comes out of it, fields by what is written: the attributes of an Object below an
// Object stand in one body.
type field struct {
	kind   driver.SchemaKind // Attr or one of the block kinds
	typ    cty.Type          // Attr
	nested map[string]*field // the block kinds but BlockAttrs
	labels int               // BlockMap
}

// compiler turns a schema into hcldec's form and collects its faults. Nothing is
// kept: a schema is small, and a cache would outlive the driver that sent it.
type compiler struct{ errs []error }

// compile returns the spec and the names that a config may use at the top.
func (c *compiler) compile(s *driver.Schema) (hcldec.Spec, map[string]*field) {
	fields := map[string]*field{}
	if s == nil {
		return hcldec.ObjectSpec{}, fields
	}
	return c.spec(s, "", fields, "schema"), fields
}

func (c *compiler) fail(at, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%w: %s: %s", ErrSchema, at, fmt.Sprintf(format, args...)))
}

// spec translates s, found under key in an Object; fields are those of the body
// it reads from, at says where s is.
func (c *compiler) spec(s *driver.Schema, key string, fields map[string]*field, at string) hcldec.Spec {
	if s == nil {
		c.fail(at, "is missing")
		return hcldec.ObjectSpec{}
	}
	switch s.Kind {
	case driver.KindObject:
		spec := hcldec.ObjectSpec{}
		for _, k := range slices.Sorted(maps.Keys(s.Attrs)) {
			spec[k] = c.spec(s.Attrs[k], k, fields, at+"."+k)
		}
		return spec
	case driver.KindArray:
		spec := hcldec.TupleSpec{}
		for i, item := range s.Items {
			spec = append(spec, c.spec(item, key, fields, fmt.Sprintf("%s[%d]", at, i)))
		}
		return spec
	case driver.KindLiteral:
		return &hcldec.LiteralSpec{Value: c.literal(s.Literal, at)}
	case driver.KindDefault:
		return c.defaulted(s, key, fields, at)
	case driver.KindAttr, driver.KindBlock, driver.KindBlockAttrs, driver.KindBlockList, driver.KindBlockSet, driver.KindBlockMap:
		return c.named(s, key, fields, at)
	}
	c.fail(at, "kind %q is unknown", s.Kind)
	return hcldec.ObjectSpec{}
}

// named translates what is written under a name of its own.
func (c *compiler) named(s *driver.Schema, key string, fields map[string]*field, at string) hcldec.Spec {
	name := s.Name
	if name == "" {
		name = key
	}
	if name == "" {
		c.fail(at, "has no name")
	}
	f := &field{kind: s.Kind, labels: len(s.Labels)}
	fields[name] = f
	switch s.Kind {
	case driver.KindAttr:
		f.typ = c.typ(s.Type, at)
		return &hcldec.AttrSpec{Name: name, Type: f.typ, Required: s.Req}
	case driver.KindBlockAttrs:
		return &hcldec.BlockAttrsSpec{TypeName: name, ElementType: c.typ(s.Type, at), Required: s.Req}
	}
	f.nested = map[string]*field{}
	nested := c.spec(s.Nested, "", f.nested, at+".nested")
	if len(c.errs) > 0 {
		return nested
	}
	// Lists, sets and maps have one element type; with "any" inside, tuples and
	// objects stand in, which are the same in JSON.
	dynamic := hcldec.ImpliedType(nested).HasDynamicTypes()
	switch s.Kind {
	case driver.KindBlockList, driver.KindBlockSet:
		if dynamic {
			return &hcldec.BlockTupleSpec{TypeName: name, Nested: nested, MinItems: int(s.Min), MaxItems: int(s.Max)}
		}
		if s.Kind == driver.KindBlockSet {
			return &hcldec.BlockSetSpec{TypeName: name, Nested: nested, MinItems: int(s.Min), MaxItems: int(s.Max)}
		}
		return &hcldec.BlockListSpec{TypeName: name, Nested: nested, MinItems: int(s.Min), MaxItems: int(s.Max)}
	case driver.KindBlockMap:
		if len(s.Labels) == 0 {
			c.fail(at, "a block map needs a label")
		}
		if dynamic {
			return &hcldec.BlockObjectSpec{TypeName: name, LabelNames: s.Labels, Nested: nested}
		}
		return &hcldec.BlockMapSpec{TypeName: name, LabelNames: s.Labels, Nested: nested}
	}
	return &hcldec.BlockSpec{TypeName: name, Nested: nested, Required: s.Req}
}

// defaulted gives a default the type of what it stands in for, so that a
// driver reads one type whether the job says something or not.
func (c *compiler) defaulted(s *driver.Schema, key string, fields map[string]*field, at string) hcldec.Spec {
	primary := c.spec(s.Nested, key, fields, at+".nested")
	def := c.spec(s.Default, key, fields, at+".default")
	if lit, ok := def.(*hcldec.LiteralSpec); ok && len(c.errs) == 0 {
		v, err := convert.Convert(lit.Value, hcldec.ImpliedType(primary))
		if err != nil {
			c.fail(at, "the default %s does not fit: %v", s.Default.Literal, err)
		}
		lit.Value = v
	}
	return &hcldec.DefaultSpec{Primary: primary, Default: def}
}

// typ reads a type such as "list(map(string))"; "any" is one.
func (c *compiler) typ(text, at string) cty.Type {
	expr, diags := hclsyntax.ParseExpression([]byte(text), "type", hcl.InitialPos)
	if diags.HasErrors() {
		c.fail(at, "type %q: %v", text, diags)
		return cty.DynamicPseudoType
	}
	t, diags := typeexpr.TypeConstraint(expr)
	if diags.HasErrors() {
		c.fail(at, "type %q: %v", text, diags)
		return cty.DynamicPseudoType
	}
	return t
}

// literal reads a constant such as "true", "\"x\"" or "null". The driver may be a
// foreign program: its constants cost no more than a job's expressions.
func (c *compiler) literal(text, at string) cty.Value {
	expr, diags := hclsyntax.ParseExpression([]byte(text), "literal", hcl.InitialPos)
	if diags.HasErrors() {
		c.fail(at, "literal %q: %v", text, diags)
		return cty.DynamicVal
	}
	var used cost
	_ = hclsyntax.VisitAll(expr, used.visit) // returns no diagnostics of its own
	if used.loop || used.huge || used.arithmetic && used.hugeText {
		c.fail(at, "literal %.100q has a for expression or a number that is too large", text)
		return cty.DynamicVal
	}
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		c.fail(at, "literal %q: %v", text, diags)
		return cty.DynamicVal
	}
	f := &faults{}
	if f.printable(v); len(f.errs) > 0 {
		c.fail(at, "literal %.100q %s", text, tooLarge)
		return cty.DynamicVal
	}
	return v
}
