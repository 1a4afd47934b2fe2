// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package pluginwire

import (
	"errors"
	"fmt"
	"math"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/internal/pluginpb"
)

// A schema comes from a foreign program and is compiled for every task, by code
// that recurses: it may be large, not boundless.
const (
	maxSchemaNodes = 10_000
	maxSchemaDepth = 64
	maxSchemaText  = 16 << 10 // of one type or literal
)

// ErrSchema says that a plugin declares a schema that is none.
var ErrSchema = errors.New("the plugin's schema is broken")

// SpecOf is a schema on the wire; nil is nil.
func SpecOf(s *driver.Schema) *pluginpb.Spec {
	if s == nil {
		return nil
	}
	switch s.Kind {
	case driver.KindObject:
		attrs := make(map[string]*pluginpb.Spec, len(s.Attrs))
		for k, a := range s.Attrs {
			attrs[k] = SpecOf(a)
		}
		return &pluginpb.Spec{Block: &pluginpb.Spec_Object{Object: &pluginpb.Object{Attributes: attrs}}}
	case driver.KindArray:
		var items []*pluginpb.Spec
		for _, i := range s.Items {
			items = append(items, SpecOf(i))
		}
		return &pluginpb.Spec{Block: &pluginpb.Spec_Array{Array: &pluginpb.Array{Values: items}}}
	case driver.KindAttr:
		return &pluginpb.Spec{Block: &pluginpb.Spec_Attr{Attr: &pluginpb.Attr{Name: s.Name, Type: s.Type, Required: s.Req}}}
	case driver.KindBlock:
		return &pluginpb.Spec{Block: &pluginpb.Spec_BlockValue{BlockValue: &pluginpb.Block{Name: s.Name, Required: s.Req, Nested: SpecOf(s.Nested)}}}
	case driver.KindBlockAttrs:
		return &pluginpb.Spec{Block: &pluginpb.Spec_BlockAttrs{BlockAttrs: &pluginpb.BlockAttrs{Name: s.Name, Type: s.Type, Required: s.Req}}}
	case driver.KindBlockList:
		return &pluginpb.Spec{Block: &pluginpb.Spec_BlockList{BlockList: &pluginpb.BlockList{Name: s.Name, MinItems: count(s.Min), MaxItems: count(s.Max), Nested: SpecOf(s.Nested)}}}
	case driver.KindBlockSet:
		return &pluginpb.Spec{Block: &pluginpb.Spec_BlockSet{BlockSet: &pluginpb.BlockSet{Name: s.Name, MinItems: count(s.Min), MaxItems: count(s.Max), Nested: SpecOf(s.Nested)}}}
	case driver.KindBlockMap:
		return &pluginpb.Spec{Block: &pluginpb.Spec_BlockMap{BlockMap: &pluginpb.BlockMap{Name: s.Name, Labels: s.Labels, Nested: SpecOf(s.Nested)}}}
	case driver.KindDefault:
		return &pluginpb.Spec{Block: &pluginpb.Spec_Default{Default: &pluginpb.Default{Primary: SpecOf(s.Nested), Default: SpecOf(s.Default)}}}
	case driver.KindLiteral:
		return &pluginpb.Spec{Block: &pluginpb.Spec_Literal{Literal: &pluginpb.Literal{Value: s.Literal}}}
	}
	return &pluginpb.Spec{}
}

// Named gives what stands in a Default or an Array the name of its property, which
// our schemas may leave out and the wire's may not. The argument is not changed.
func Named(s *driver.Schema, key string) *driver.Schema {
	if s == nil {
		return nil
	}
	c := *s
	switch s.Kind {
	case driver.KindObject:
		c.Attrs = make(map[string]*driver.Schema, len(s.Attrs))
		for k, a := range s.Attrs {
			name := ""
			if a != nil && (a.Kind == driver.KindDefault || a.Kind == driver.KindArray) {
				name = k
			}
			c.Attrs[k] = Named(a, name)
		}
		return &c
	case driver.KindArray:
		c.Items = nil
		for _, i := range s.Items {
			c.Items = append(c.Items, Named(i, key))
		}
		return &c
	case driver.KindDefault:
		c.Nested, c.Default = Named(s.Nested, key), Named(s.Default, key)
		return &c
	case driver.KindLiteral:
		return &c
	}
	if c.Name == "" {
		c.Name = key
	}
	c.Nested = Named(s.Nested, "")
	return &c
}

func count(n int64) uint64 { return uint64(max(0, n)) }

// SchemaOf reads a schema from the wire; nil is nil. It is ErrSchema when it has
// no kind somewhere or is larger than any schema is.
func SchemaOf(s *pluginpb.Spec) (*driver.Schema, error) {
	if s == nil {
		return nil, nil
	}
	r := reader{}
	out := r.read(s, "schema", 0)
	if r.err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, r.err)
	}
	return out, nil
}

// reader keeps the first fault.
type reader struct {
	nodes int
	err   error
}

func (r *reader) fail(at, format string, args ...any) *driver.Schema {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
	}
	return nil
}

func (r *reader) text(at, s string) string {
	if len(s) > maxSchemaText {
		r.fail(at, "has a text of %d bytes, at most %d are allowed", len(s), maxSchemaText)
	}
	return s
}

func (r *reader) bound(at string, n uint64) int64 {
	if n > math.MaxInt32 {
		r.fail(at, "has a bound of %d items", n)
		return 0
	}
	return int64(n)
}

func (r *reader) read(s *pluginpb.Spec, at string, depth int) *driver.Schema {
	r.nodes++
	switch {
	case r.err != nil:
		return nil
	case r.nodes > maxSchemaNodes:
		return r.fail(at, "has more than %d parts", maxSchemaNodes)
	case depth > maxSchemaDepth:
		return r.fail(at[:min(len(at), 100)], "is nested more than %d deep", maxSchemaDepth)
	}
	switch b := s.GetBlock().(type) {
	case *pluginpb.Spec_Object:
		out := driver.Object(map[string]*driver.Schema{})
		for k, a := range b.Object.GetAttributes() {
			out.Attrs[k] = r.read(a, at+"."+k, depth+1)
		}
		return out
	case *pluginpb.Spec_Array:
		out := &driver.Schema{Kind: driver.KindArray}
		for i, v := range b.Array.GetValues() {
			out.Items = append(out.Items, r.read(v, fmt.Sprintf("%s[%d]", at, i), depth+1))
		}
		return out
	case *pluginpb.Spec_Attr:
		return &driver.Schema{Kind: driver.KindAttr, Name: b.Attr.GetName(), Type: r.text(at, b.Attr.GetType()), Req: b.Attr.GetRequired()}
	case *pluginpb.Spec_BlockAttrs:
		return &driver.Schema{Kind: driver.KindBlockAttrs, Name: b.BlockAttrs.GetName(), Type: r.text(at, b.BlockAttrs.GetType()), Req: b.BlockAttrs.GetRequired()}
	case *pluginpb.Spec_Literal:
		return &driver.Schema{Kind: driver.KindLiteral, Literal: r.text(at, b.Literal.GetValue())}
	case *pluginpb.Spec_Default:
		return &driver.Schema{Kind: driver.KindDefault, Nested: r.read(b.Default.GetPrimary(), at+".primary", depth+1),
			Default: r.read(b.Default.GetDefault(), at+".default", depth+1)}
	}
	return r.block(s, at, depth)
}

// block reads the kinds that nest.
func (r *reader) block(s *pluginpb.Spec, at string, depth int) *driver.Schema {
	out := &driver.Schema{}
	var nested *pluginpb.Spec
	switch b := s.GetBlock().(type) {
	case *pluginpb.Spec_BlockValue:
		out.Kind, out.Name, out.Req, nested = driver.KindBlock, b.BlockValue.GetName(), b.BlockValue.GetRequired(), b.BlockValue.GetNested()
	case *pluginpb.Spec_BlockList:
		out.Kind, out.Name, nested = driver.KindBlockList, b.BlockList.GetName(), b.BlockList.GetNested()
		out.Min, out.Max = r.bound(at, b.BlockList.GetMinItems()), r.bound(at, b.BlockList.GetMaxItems())
	case *pluginpb.Spec_BlockSet:
		out.Kind, out.Name, nested = driver.KindBlockSet, b.BlockSet.GetName(), b.BlockSet.GetNested()
		out.Min, out.Max = r.bound(at, b.BlockSet.GetMinItems()), r.bound(at, b.BlockSet.GetMaxItems())
	case *pluginpb.Spec_BlockMap:
		out.Kind, out.Name, out.Labels, nested = driver.KindBlockMap, b.BlockMap.GetName(), b.BlockMap.GetLabels(), b.BlockMap.GetNested()
	default:
		return r.fail(at, "has no kind")
	}
	out.Nested = r.read(nested, at+".nested", depth+1)
	return out
}
