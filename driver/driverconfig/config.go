// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package driverconfig turns what a job says to a driver into the configuration
// the driver decodes. A task's config is HCL-JSON: an object whose strings are
// HCL templates and whose blocks are lists of objects.
//
//	schema (plain data) ──compile──▶ hcldec.Spec ─┐
//	raw ──reshape──▶ JSON of the schema's shape ──┼─▶ decode ──▶ object with every
//	flat variables ──tree──▶ attr.cpu.arch, … ────┘              attribute present
//
// Templates may use any HCL expression but no function: ${attr.cpu.arch},
// ${node.class == "x" ? 1 : 2}. A template that is one expression keeps the
// expression's type, and types are converted as the schema asks, so "8" is a
// number where one is wanted. $${x} is the text ${x}. Every name must be known:
// a driver is never started with a configuration that has a hole in it.
//
// Jobs come from people the node need not trust, and configs are evaluated in the
// agent: bound.go says what one may cost.
package driverconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hcldec"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// ErrSchema says that the driver's schema itself is wrong: a fault of the driver.
var ErrSchema = errors.New("driverconfig: the driver's schema is broken")

// Error is one fault of a task's config.
type Error struct {
	Path    string      // such as "config.mount[0].source"
	Origin  spec.Origin // where it was written; zero if that is not known
	Problem string      // what is wrong and what is allowed
}

// Error is "file:line:column: path: problem".
func (e *Error) Error() string {
	if e.Origin == (spec.Origin{}) {
		return e.Path + ": " + e.Problem
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", e.Origin.File, e.Origin.Line, e.Origin.Column, e.Path, e.Problem)
}

// Eval decodes raw against schema with the variables of the task: names as in
// taskenv, such as "attr.cpu.arch", "env.HOME" or "HOME". The result is a JSON
// object with every attribute of the schema, null where nothing is set and there
// is no default; numbers keep every digit.
//
// All faults are reported at once, joined, each an *Error; a name that is not
// among vars is one. Values of variables never appear in an error. Eval is pure
// and safe for concurrent use. A nil schema allows an empty config only.
func Eval(schema *driver.Schema, raw json.RawMessage, origin map[string]spec.Origin, vars map[string]string) (json.RawMessage, error) {
	f := &faults{origin: origin, vars: vars}
	v, err := f.decode(schema, raw, func(roots map[string]bool) map[string]cty.Value { return tree(vars, roots) })
	if err != nil {
		return nil, err
	}
	out, err := ctyjson.Marshal(v, v.Type())
	if err != nil {
		return nil, fmt.Errorf("driverconfig: %w", err)
	}
	return out, nil
}

// Validate checks what can be checked before variables are known: names,
// structure, and the types of everything that depends on none. It is pure. It
// refuses nothing that Eval would accept for every value of the variables.
func Validate(schema *driver.Schema, raw json.RawMessage, origin map[string]spec.Origin) error {
	f := &faults{origin: origin}
	_, err := f.decode(schema, raw, func(roots map[string]bool) map[string]cty.Value {
		unknown := map[string]cty.Value{}
		for name := range roots {
			unknown[name] = cty.DynamicVal
		}
		return unknown
	})
	return err
}

// decode makes the variables on demand: it tells variables the first parts of
// the names that raw uses.
func (f *faults) decode(schema *driver.Schema, raw json.RawMessage, variables func(map[string]bool) map[string]cty.Value) (_ cty.Value, err error) {
	// The schema may come from a foreign program, and hcldec panics on some
	// combinations it thinks of as bugs of its caller.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrSchema, r)
		}
	}()
	c := compiler{}
	root, fields := c.compile(schema)
	if len(c.errs) > 0 {
		return cty.NilVal, errors.Join(c.errs...)
	}
	value := f.read(raw)
	if len(f.errs) == 0 {
		value = f.body(fields, value, nil)
	}
	if len(f.errs) > 0 {
		return cty.NilVal, f.err()
	}
	src, err := json.Marshal(value)
	if err != nil {
		return cty.NilVal, fmt.Errorf("driverconfig: %w", err)
	}
	file, diags := hcljson.Parse(src, "config")
	if diags.HasErrors() {
		return cty.NilVal, fmt.Errorf("driverconfig: %w", diags)
	}
	roots := map[string]bool{}
	for _, v := range hcldec.Variables(file.Body, root) {
		roots[v.RootName()] = true
	}
	result, diags := hcldec.Decode(file.Body, root, &hcl.EvalContext{Variables: variables(roots)})
	f.diagnostics(src, diags)
	f.printable(result)
	if len(f.errs) > 0 {
		return cty.NilVal, f.err()
	}
	return result, nil
}

func ctyPath(p cty.Path) []string {
	var path []string
	for _, step := range p {
		switch s := step.(type) {
		case cty.GetAttrStep:
			path = append(path, s.Name)
		case cty.IndexStep:
			if s.Key.Type() == cty.Number {
				path = append(path, s.Key.AsBigFloat().String())
			} else if s.Key.Type() == cty.String {
				path = append(path, s.Key.AsString())
			}
		}
	}
	return path
}

// showPath writes a path for people: config.mount[0].source.
func showPath(path []string) string {
	var b strings.Builder
	b.WriteString("config")
	for _, p := range path {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			b.WriteString("[" + p + "]")
		} else {
			b.WriteString("." + p)
		}
	}
	return b.String()
}
