// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

func isJSON(src []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) }

// serverFields are what the API adds to a job and what no job file says. What is
// unknown and empty (null, 0, "", [] and so on) is passed over everywhere: the
// API's programs write out all fields that they know.
var serverFields = map[string][]string{
	"job": {
		"ConsulNamespace", "CreateIndex", "DispatchIdempotencyToken", "Dispatched", "JobModifyIndex", "ModifyIndex", "NomadTokenID", "ParentID",
		"Payload", "Stable", "Status", "StatusDescription", "Stop", "SubmitTime", "VaultNamespace", "Version", "VersionTag",
	},
	"check":    {"Id"},
	"network":  {"CIDR", "Device", "IP"},
	"periodic": {"SpecType"},
	"scaling":  {"CreateIndex", "ID", "ModifyIndex", "Namespace", "Target"},
	"service":  {"Id"},
	"volume":   {"Name"},

	"envoy_gateway_bind_addresses": {"Name"},
}

// fromJSON reads a job in the API's form, with or without {"Job": …} around it;
// nil if there is none.
func (p *parser) fromJSON(src []byte) *Block {
	name := p.cfg.File.Name
	if !p.checkJSON(name, src) {
		return nil
	}
	p.nanoseconds = true
	p.eval.ctx = &hcl.EvalContext{} // no variables here
	x, diags := hcljson.ParseExpression(src, name)
	p.diags.hcl(diags)
	if diags.HasErrors() {
		return nil
	}
	def := language().child("job")
	pairs, ok := p.pairs(x, "a job")
	for _, pair := range pairs {
		if pair.name == def.json {
			x = pair.value
			break
		}
	}
	if !ok {
		return nil
	}
	return p.jsonBlock(def, x, "")
}

// checkJSON refuses what would cost too much to parse, or is reserved.
func (p *parser) checkJSON(name string, src []byte) bool {
	if !p.diags.check(name, nil) {
		return false
	}
	at := func(i int) hcl.Range {
		line := 1 + bytes.Count(src[:i], []byte{'\n'})
		pos := hcl.Pos{Line: line, Column: 1}
		return hcl.Range{Filename: name, Start: pos, End: pos}
	}
	if i := reserved.FindIndex(src); i != nil {
		p.diags.add(at(i[0]), "Invalid character", "This line has U+FDD0 or U+FDD1, which stand for no character.")
		return false
	}
	depth, quoted := 0, false
	for i := 0; i < len(src); i++ {
		switch c := src[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case (c == 'e' || c == 'E') && hugeExponent(string(src[max(0, i-1):min(len(src), i+8)])):
			p.diags.add(at(i), "Invalid number", "A number here is too large or too small.")
			return false
		}
		if depth > maxDepth {
			p.diags.add(at(i), "Nested too deep", "More than %d levels of brackets.", maxDepth)
			return false
		}
	}
	return true
}

// pair is a field of a JSON object.
type pair struct {
	name  string
	at    hcl.Range // of the name
	value hcl.Expression
}

// pairs are the fields of an object that are not null, each once.
func (p *parser) pairs(x hcl.Expression, what string) ([]pair, bool) {
	all, diags := hcl.ExprMap(x)
	if diags.HasErrors() {
		p.diags.add(x.Range(), "Wrong type of value", "%s is an object here: { … }", what)
		return nil, false
	}
	var out []pair
	seen := map[string]bool{}
	for _, kv := range all {
		k, _ := kv.Key.Value(nil)
		key := pair{k.AsString(), kv.Key.Range(), kv.Value}
		if seen[key.name] {
			p.diags.add(key.at, "Duplicate name", "%q is there already.", key.name)
			continue
		}
		seen[key.name] = true
		if !isNull(kv.Value) {
			out = append(out, key)
		}
	}
	return out, true
}

func isNull(x hcl.Expression) bool {
	v, diags := x.Value(nil)
	return !diags.HasErrors() && v.IsNull()
}

// empty says whether x is a value that says nothing.
func empty(x hcl.Expression) bool {
	v, diags := x.Value(nil)
	switch {
	case diags.HasErrors():
		return false
	case v.IsNull() || !v.IsKnown():
		return v.IsNull()
	case v.Type() == cty.String:
		return v.AsString() == ""
	case v.Type() == cty.Bool:
		return v.False()
	case v.Type() == cty.Number:
		return v.AsBigFloat().Sign() == 0
	}
	return length(v) == 0
}

// jsonBlock reads an object by a block's line of the table.
func (p *parser) jsonBlock(def *node, x hcl.Expression, label string) *Block {
	b := &Block{Type: def.name, Range: rangeOf(x.Range()), name: rangeOf(x.Range()), lang: def}
	if def.keyed {
		b.Labels = []string{label}
	}
	pairs, ok := p.pairs(x, def.name)
	if !ok || !p.room(x.Range()) {
		return b
	}
	for _, f := range pairs {
		arg := def.jsonField(f.name)
		switch {
		case def.name == "network" && (f.name == "ReservedPorts" || f.name == "DynamicPorts"):
			p.jsonBlocks(b, def.child("port"), f)
		case def.name == "task" && f.name == "Identity":
			b.Blocks = append(b.Blocks, p.jsonBlock(def.child("identity"), f.value, ""))
		case slices.Contains(serverFields[def.name], f.name):
		case arg == nil:
			if !empty(f.value) {
				p.unknownField(f, def)
			}
		case arg.block():
			p.jsonBlocks(b, arg, f)
		case arg.name == def.label:
			p.jsonLabel(b, f)
		default:
			p.jsonArgument(b, arg, f)
		}
	}
	if def.label != "" && b.Labels == nil && def.name != "scaling" {
		p.diags.add(x.Range(), "Missing name", "%s has no %s.", article(def.name), def.child(def.label).json)
		b.Labels = []string{""}
	}
	return b
}

// jsonField is the line whose name in the API is name, as encoding/json finds
// it: exactly, or else in other case.
func (n *node) jsonField(name string) *node {
	var folded *node
	for _, c := range n.inside {
		switch {
		case c.old && (n.name == "constraint" || n.name == "affinity"): // spellings of HCL
		case c.json == name && c.json != "" || c.was == name:
			return c
		case c.json != "" && strings.EqualFold(c.json, name):
			folded = c
		}
	}
	return folded
}

func (p *parser) unknownField(f pair, def *node) {
	var names, lower []string
	for _, c := range def.inside {
		if c.json != "" && def.jsonField(c.json) == c {
			names, lower = append(names, c.json), append(lower, strings.ToLower(c.json))
		}
	}
	slices.Sort(names)
	text := meant(f.name, lower)
	for _, n := range names {
		text = strings.ReplaceAll(text, strconv.Quote(strings.ToLower(n)), strconv.Quote(n))
	}
	if p.cfg.Lenient {
		p.diags.warn(f.at, "Unknown field", "%q has no meaning in a %s.%s", f.name, def.name, text)
		return
	}
	p.diags.add(f.at, "Unknown field", "%q has no meaning in a %s.%s There may be: %s.", f.name, def.name, text, strings.Join(names, ", "))
}

func (p *parser) jsonLabel(b *Block, f pair) {
	v, _ := f.value.Value(nil)
	if s, err := convert.Convert(v, cty.String); err == nil && !s.IsNull() {
		b.Labels, b.name = []string{s.AsString()}, rangeOf(f.value.Range())
		return
	}
	p.diags.add(f.value.Range(), "Wrong type of value", "%s is a text.", f.name)
}

// jsonBlocks reads one block, a list of them, or an object of them by label.
func (p *parser) jsonBlocks(b *Block, def *node, f pair) {
	switch {
	case def.kind == kindBlock && b.First(def.name) != nil:
		p.diags.add(f.at, "Duplicate name", "%s is there already.", def.json)
		return
	case def.kind == kindBlock:
		b.Blocks = append(b.Blocks, p.jsonBlock(def, f.value, ""))
		return
	case def.keyed:
		pairs, _ := p.pairs(f.value, f.name)
		for _, x := range pairs {
			b.Blocks = append(b.Blocks, p.jsonBlock(def, x.value, x.name))
		}
		return
	}
	list, diags := hcl.ExprList(f.value)
	if diags.HasErrors() {
		p.diags.add(f.value.Range(), "Wrong type of value", "%s is a list here: [ … ]", f.name)
		return
	}
	for _, x := range list {
		if !isNull(x) {
			b.Blocks = append(b.Blocks, p.jsonBlock(def, x, ""))
		}
	}
}

// jsonArgument reads a value. A zero where 1 is the least is the API's way to say
// nothing.
func (p *parser) jsonArgument(b *Block, arg *node, f pair) {
	before := len(p.diags.all)
	v := p.written(arg.kind, f.value)
	if len(p.diags.all) > before || v.IsNull() {
		return
	}
	if v.Type() == cty.Number && arg.least > 0 && v.AsBigFloat().Sign() == 0 {
		return
	}
	value, ok := p.convert(arg, &input{f.name, v, f.value.Range()})
	if !ok || value == "" {
		return
	}
	a := Attr{Name: arg.name, Value: value, Range: rangeOf(f.value.Range())}
	if arg.kind == kindAny {
		if _, isObject := value.(map[string]any); !isObject {
			p.diags.add(f.value.Range(), "Wrong type of value", "%s is an object here: { … }", f.name)
			return
		}
		c := config{parser: p, origin: map[string]spec.Origin{}}
		c.mark("", f.at)
		c.jsonPlaces(f.value, "")
		a.origin = c.origin
	}
	b.set(a)
}

// jsonPlaces marks the parts of a value.
func (c *config) jsonPlaces(x hcl.Expression, path string) {
	if list, diags := hcl.ExprList(x); !diags.HasErrors() {
		for i, e := range list {
			at := join(path, strconv.Itoa(i))
			c.mark(at, e.Range())
			c.jsonPlaces(e, at)
		}
		return
	}
	pairs, diags := hcl.ExprMap(x)
	if diags.HasErrors() {
		return
	}
	for _, kv := range pairs {
		k, _ := kv.Key.Value(nil)
		at := join(path, k.AsString())
		c.mark(at, kv.Key.Range())
		c.jsonPlaces(kv.Value, at)
	}
}

// written is a value whose texts are as someone reads them at run time, in the
// evaluator's form: what of them refers to run time is marked.
func (p *parser) written(k kind, x hcl.Expression) cty.Value {
	if list, diags := hcl.ExprList(x); !diags.HasErrors() {
		var values []cty.Value
		for _, e := range list {
			values = append(values, p.written(k, e))
		}
		return cty.TupleVal(values)
	}
	if pairs, diags := hcl.ExprMap(x); !diags.HasErrors() {
		values := map[string]cty.Value{}
		for _, kv := range pairs {
			key, _ := kv.Key.Value(nil)
			if k == kindAny {
				if t, err := convert.Convert(p.eval.fromTemplate(key.AsString(), kv.Key.Range()), cty.String); err == nil && !t.IsNull() {
					key = t
				}
			}
			values[key.AsString()] = p.written(k, kv.Value)
		}
		return cty.ObjectVal(values)
	}
	v, diags := x.Value(nil)
	p.diags.hcl(diags)
	if v.IsNull() || v.Type() != cty.String {
		return v
	}
	switch k {
	case kindText, kindTexts, kindMap, kindLists:
		return cty.StringVal(p.eval.fromText(v.AsString()))
	case kindAny:
		return p.eval.fromTemplate(v.AsString(), x.Range())
	}
	return v
}
