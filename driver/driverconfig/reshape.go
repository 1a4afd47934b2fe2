// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// faults collects the errors of one config.
type faults struct {
	origin map[string]spec.Origin
	vars   map[string]string
	size   int // of the variables used so far
	errs   []*Error
}

// err joins what was found, by path: hcldec goes through maps in any order.
func (f *faults) err() error {
	slices.SortStableFunc(f.errs, func(a, b *Error) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Problem, b.Problem))
	})
	var errs []error
	for _, e := range slices.CompactFunc(f.errs, func(a, b *Error) bool { return *a == *b }) {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// add reports a problem at path, with the nearest origin that is known.
func (f *faults) add(path []string, problem string) {
	e := &Error{Path: showPath(path), Problem: problem}
	for n := len(path); n >= 0; n-- {
		if o, ok := f.origin[strings.Join(path[:n], ".")]; ok {
			e.Origin = o
			break
		}
	}
	f.errs = append(f.errs, e)
}

// read decodes raw, which is an object or nothing. Numbers stay as they are
// written; of a name that is there twice the last one counts, as in all JSON here.
func (f *faults) read(raw json.RawMessage) map[string]any {
	if len(bytes.TrimSpace(raw)) == 0 {
		return map[string]any{}
	}
	if len(raw) > maxConfig {
		f.add(nil, fmt.Sprintf("has %d bytes, at most %d are allowed", len(raw), maxConfig))
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v map[string]any
	err := dec.Decode(&v)
	if err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = fmt.Errorf("there is more after it")
		}
	}
	if err != nil {
		f.add(nil, "is not a JSON object: "+err.Error())
	}
	f.bounded(v, nil)
	if v == nil {
		v = map[string]any{}
	}
	return v
}

// body checks the names in one body and brings what is below them into the form
// hcldec reads: people write a block once, many times or as an attribute, and a
// map as a block, without knowing which of them the driver declared.
func (f *faults) body(fields map[string]*field, v map[string]any, path []string) map[string]any {
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		at := append(slices.Clone(path), name)
		fl := fields[name]
		switch {
		case name == "//": // a comment, in JSON
		case fl == nil && len(fields) == 0:
			f.add(at, "is unknown; nothing is allowed here")
		case fl == nil:
			f.add(at, "is unknown; allowed: "+strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		case v[name] == nil: // as if it were not there
		case fl.kind == driver.KindAttr:
			out[name] = fl.attr(v[name])
		default:
			out[name] = f.block(fl, v[name], at, fl.labels)
		}
	}
	return out
}

// attr is v as an attribute of the field's type: blocks of a map are merged, and
// one map where a list of them is wanted is a list.
func (fl *field) attr(v any) any {
	t := fl.typ
	switch v := v.(type) {
	case []any:
		if !t.IsMapType() && !t.IsObjectType() {
			return v
		}
		merged := map[string]any{}
		for _, e := range v {
			m, ok := e.(map[string]any)
			if !ok {
				return v
			}
			maps.Copy(merged, m)
		}
		return merged
	case map[string]any:
		if (t.IsListType() || t.IsSetType()) && (t.ElementType().IsMapType() || t.ElementType().IsObjectType()) {
			return []any{v}
		}
	}
	return v
}

// block is v as a list of bodies, below labels more levels of names. How many of
// them are allowed hcldec judges; that there is one Block only is said here, as its
// own message would point into JSON nobody wrote.
func (f *faults) block(fl *field, v any, path []string, labels int) any {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	out := []any{}
	for i, e := range list {
		at := path
		if ok {
			at = append(slices.Clone(path), strconv.Itoa(i))
		}
		m, isMap := e.(map[string]any)
		switch {
		case !isMap:
			f.add(at, "is a block, not a value")
		case i > 0 && (fl.kind == driver.KindBlock || fl.kind == driver.KindBlockAttrs):
			f.add(at, "is a second block where one is allowed")
		case labels > 0:
			labelled := map[string]any{}
			for _, label := range slices.Sorted(maps.Keys(m)) {
				labelled[label] = f.block(fl, m[label], append(slices.Clone(at), label), labels-1)
			}
			out = append(out, labelled)
		case fl.kind == driver.KindBlockAttrs:
			out = append(out, m)
		default:
			out = append(out, f.body(fl.nested, m, at))
		}
	}
	return out
}

// diagnostics adds what hcldec found in src, at the paths it was found at.
func (f *faults) diagnostics(src []byte, diags hcl.Diagnostics) {
	index := spans(src)
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		var path []string
		if d.Subject != nil {
			path = index.at(d.Subject.Start.Byte)
		}
		text := d.Summary
		if d.Detail != "" {
			text += ": " + d.Detail
		}
		used, unknown := f.names(d.Expression)
		switch {
		case len(unknown) > 0 && (d.Summary == "Unknown variable" || d.Summary == "Unsupported attribute"):
			text = strings.Join(unknown, ", ") + " is not known when the task starts; $${…} is the text ${…}"
		case len(used) > 0:
			text += " (in " + strings.Join(used, ", ") + ")"
		}
		f.add(path, text)
	}
}

// names returns the names that an expression uses, and those of them that nobody
// knows, both as they are written in templates.
func (f *faults) names(x hcl.Expression) (used, unknown []string) {
	if x == nil {
		return nil, nil
	}
	for _, v := range x.Variables() {
		name := traversal(v)
		used = append(used, "${"+name+"}")
		_, known := f.vars[name]
		for n := range f.vars {
			known = known || strings.HasPrefix(n, name+".")
		}
		if !known {
			unknown = append(unknown, "${"+name+"}")
		}
	}
	slices.Sort(used)
	slices.Sort(unknown)
	return slices.Compact(used), slices.Compact(unknown)
}

// traversal writes a name as it stands among flat names: a.b.0.
func traversal(t hcl.Traversal) string {
	var b strings.Builder
	for _, step := range t {
		switch s := step.(type) {
		case hcl.TraverseRoot:
			b.WriteString(s.Name)
		case hcl.TraverseAttr:
			b.WriteString("." + s.Name)
		case hcl.TraverseIndex:
			if key, err := convert.Convert(s.Key, cty.String); err == nil && key.IsKnown() && !key.IsNull() {
				b.WriteString("." + key.AsString())
			}
		}
	}
	return b.String()
}
