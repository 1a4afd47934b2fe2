// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// input is an argument's value, for messages with its name and place.
type input struct {
	name  string
	value cty.Value
	where hcl.Range
}

// invalid reports a value.
func (p *parser) invalid(in *input, format string, args ...any) {
	p.diags.add(in.where, "Invalid value for "+in.name, format, args...)
}

// convert makes the value that a tree holds. People write numbers and booleans
// with and without quotes: both are taken everywhere.
func (p *parser) convert(def *node, in *input) (any, bool) {
	switch def.kind {
	case kindPlain:
		s, ok := p.text(in, formPlain)
		if ok && len(def.enum) > 0 && s != "" && !slices.Contains(def.enum, s) {
			p.invalid(in, "%q is unknown; allowed: %s.%s", s, strings.Join(def.enum, ", "), meant(s, def.enum))
			return nil, false
		}
		return s, ok
	case kindText:
		return p.text(in, formText)
	case kindRaw:
		return p.text(in, formRaw)
	case kindBool:
		v, err := convert.Convert(in.value, cty.Bool)
		if err != nil || v.IsNull() {
			p.invalid(in, "true or false is needed, this is %s.", kindOf(in.value))
			return nil, false
		}
		return v.True(), true
	case kindInt:
		return p.whole(def, in)
	case kindDuration:
		return p.duration(in)
	case kindPlains, kindTexts:
		return p.words(in, map[kind]form{kindPlains: formPlain, kindTexts: formText}[def.kind])
	case kindInts:
		list, ok := p.list(in)
		out := []int64{}
		for _, v := range list {
			n, is := p.whole(def, &input{in.name, v, in.where})
			ok = ok && is
			if n, is := n.(int64); is {
				out = append(out, n)
			}
		}
		return out, ok
	case kindMap, kindLists:
		return p.object(def, in)
	case kindAny:
		return p.free(in)
	}
	p.invalid(in, "%s is a block: %s { … }", in.name, in.name)
	return nil, false
}

// text is the value as a string in the form f, if it can be one.
func (p *parser) text(in *input, f form) (string, bool) {
	v, err := convert.Convert(in.value, cty.String)
	if err != nil || v.IsNull() {
		p.invalid(in, "A text is needed, this is %s.", kindOf(in.value))
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

// kindOf says what a value is, in words that stand in a job file.
func kindOf(v cty.Value) string {
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

// whole is a whole number. The upper bound keeps n*unit inside an int64. An empty
// text is 0, as for the API, or else as if it were not there.
func (p *parser) whole(def *node, in *input) (any, bool) {
	v := in.value
	if v.Type() == cty.String && !v.IsNull() {
		v = cty.StringVal(strings.TrimSpace(v.AsString()))
		switch {
		case v.AsString() == "" && def.least > 0:
			return "", true
		case v.AsString() == "":
			return int64(0), true
		}
		if hasRef(v.AsString()) {
			p.invalid(in, "This is known only when the task runs; a fixed value is needed here.")
			return nil, false
		}
		if hugeTexts(v) {
			p.invalid(in, "A number here is too large or too small.")
			return nil, false
		}
	}
	v, err := convert.Convert(v, cty.Number)
	if err != nil || v.IsNull() {
		without := ""
		if text := strings.TrimSpace(textOf([]cty.Value{in.value}, 0)); text != "" && text[0] >= '0' && text[0] <= '9' {
			without = " without a unit"
		}
		p.invalid(in, "A number%s is needed, this is %s.", without, kindOf(in.value))
		return nil, false
	}
	n, accuracy := v.AsBigFloat().Int64()
	if accuracy != big.Exact {
		p.invalid(in, "A whole number is needed.")
		return nil, false
	}
	if def.hasLeast && n < def.least || n > 1<<40 || n < -1<<40 {
		p.invalid(in, "%d is out of range, %d or more is needed.", n, def.least)
		return nil, false
	}
	return n, true
}

// duration is a text such as "30s". A bare number is nanoseconds, as everywhere in
// Nomad; in a job file, where some mean seconds by it, that is told.
func (p *parser) duration(in *input) (any, bool) {
	if in.value.Type() == cty.Number && !in.value.IsNull() {
		n, accuracy := in.value.AsBigFloat().Int64()
		if accuracy != big.Exact {
			p.invalid(in, `A whole number of nanoseconds is needed, or a text with a unit: "30s", "1m30s", "24h".`)
			return nil, false
		}
		if n != 0 && !p.nanoseconds {
			p.diags.warn(in.where, "Duration without a unit", "%d is read as %s, in nanoseconds as Nomad does; a text has a unit: \"30s\", \"1m30s\", \"24h\".", n, time.Duration(n))
		}
		return time.Duration(n), true
	}
	s, ok := p.text(in, formPlain)
	if !ok {
		return nil, false
	}
	d, err := time.ParseDuration(strings.TrimSpace(s))
	if err != nil {
		hint := ""
		if n := strings.TrimRight(s, "dD"); n != s && strings.Trim(n, "0123456789") == "" {
			hint = " There is no unit for days, 24h is one."
		} else if s != "" && strings.Trim(s, "0123456789") == "" {
			hint = " It needs a unit."
		}
		p.invalid(in, `%q is no duration; write "30s", "1m30s", "24h".%s`, s, hint)
		return nil, false
	}
	return d, true
}

// list is a list's elements. One text alone is not taken for a list: it may have
// been meant as several.
func (p *parser) list(in *input) ([]cty.Value, bool) {
	t := in.value.Type()
	if in.value.IsNull() || !t.IsTupleType() && !t.IsListType() && !t.IsSetType() {
		p.invalid(in, `A list is needed, this is %s: ["a", "b"].`, kindOf(in.value))
		return nil, false
	}
	return in.value.AsValueSlice(), true
}

func (p *parser) words(in *input, f form) ([]string, bool) {
	values, ok := p.list(in)
	list := []string{}
	for _, e := range values {
		s, is := p.text(&input{in.name, e, in.where}, f)
		ok = ok && is
		list = append(list, s)
	}
	return list, ok
}

// object is names and texts, or names and lists of texts. A name without a value
// is not there.
func (p *parser) object(def *node, in *input) (any, bool) {
	t := in.value.Type()
	if in.value.IsNull() || !t.IsObjectType() && !t.IsMapType() {
		p.invalid(in, "Names and values are needed, this is %s: %s { NAME = \"text\" } or %s = { \"NAME\" = \"text\" }.", kindOf(in.value), in.name, in.name)
		return nil, false
	}
	ok := true
	texts, lists := map[string]string{}, map[string][]string{}
	for it := in.value.ElementIterator(); it.Next(); {
		key, v := it.Element()
		k := key.AsString()
		if v.IsNull() {
			continue
		}
		if hasRef(k) {
			p.invalid(in, "The names in %s must be known when the file is read.", in.name)
			ok = false
			continue
		}
		item := &input{in.name + "." + k, v, in.where}
		var is bool
		switch {
		case def.kind == kindMap:
			texts[k], is = p.text(item, formText)
		case v.Type() == cty.String:
			var s string
			s, is = p.text(item, formText)
			lists[k] = []string{s}
		default:
			lists[k], is = p.words(item, formText)
		}
		ok = ok && is
	}
	if def.kind == kindMap {
		return texts, ok
	}
	return lists, ok
}

// free is a value of any form.
func (p *parser) free(in *input) (any, bool) {
	before := len(p.diags.all)
	v := p.json(in.value, in.where)
	return v, len(p.diags.all) == before
}
