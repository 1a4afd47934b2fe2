// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/nodekeep/nodekeep/driver"
)

// Conform brings a configuration that another program decoded into the form that
// Eval gives: every attribute present, null where nothing was said, and of the
// type the schema asks for. Agents send a number as text where it fits no type of
// theirs. Unknown attributes are dropped, as all decoders do; nothing is a
// template any more. Faults are *Error. A nil schema takes an empty object only.
func Conform(schema *driver.Schema, raw json.RawMessage) (_ json.RawMessage, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrSchema, r)
		}
	}()
	c := compiler{}
	root, _ := c.compile(schema)
	if len(c.errs) > 0 {
		return nil, errors.Join(c.errs...)
	}
	f := &faults{}
	if len(raw) > maxConfig {
		f.add(nil, fmt.Sprintf("has %d bytes, at most %d are allowed", len(raw), maxConfig))
		return nil, f.err()
	}
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	t, err := ctyjson.ImpliedType(raw)
	if err != nil {
		return nil, fmt.Errorf("driverconfig: config: %w", err)
	}
	v, err := ctyjson.Unmarshal(raw, t)
	if err != nil {
		return nil, fmt.Errorf("driverconfig: config: %w", err)
	}
	v, err = convert.Convert(v, optional(hcldec.ImpliedType(root)))
	if err != nil {
		var at cty.PathError
		errors.As(err, &at)
		f.add(ctyPath(at.Path), err.Error())
		return nil, f.err()
	}
	if f.printable(v); len(f.errs) > 0 {
		return nil, f.err()
	}
	return ctyjson.Marshal(v, v.Type())
}

// optional lets every attribute of every object in t be missing.
func optional(t cty.Type) cty.Type {
	switch {
	case t.IsObjectType():
		attrs := map[string]cty.Type{}
		for name, at := range t.AttributeTypes() {
			attrs[name] = optional(at)
		}
		var names []string
		for name := range attrs {
			names = append(names, name)
		}
		slices.Sort(names)
		return cty.ObjectWithOptionalAttrs(attrs, names)
	case t.IsListType():
		return cty.List(optional(t.ElementType()))
	case t.IsSetType():
		return cty.Set(optional(t.ElementType()))
	case t.IsMapType():
		return cty.Map(optional(t.ElementType()))
	case t.IsTupleType():
		var items []cty.Type
		for _, it := range t.TupleElementTypes() {
			items = append(items, optional(it))
		}
		return cty.Tuple(items)
	}
	return t
}
