// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-cty-funcs/cidr"
	"github.com/hashicorp/go-cty-funcs/crypto"
	"github.com/hashicorp/go-cty-funcs/encoding"
	"github.com/hashicorp/go-cty-funcs/uuid"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are those without access to anything outside. They are the
// libraries' own; fileFuncs and the forms in call are ours, for they need the
// host's leave or the evaluator.
var functions = sync.OnceValue(func() map[string]function.Function {
	return map[string]function.Function{
		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "log": stdlib.LogFunc, "max": stdlib.MaxFunc,
		"min": stdlib.MinFunc, "parseint": stdlib.ParseIntFunc, "pow": stdlib.PowFunc, "signum": stdlib.SignumFunc,

		"chomp": stdlib.ChompFunc, "format": stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc, "indent": stdlib.IndentFunc,
		"join": stdlib.JoinFunc, "lower": stdlib.LowerFunc, "regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc,
		"regex_replace": stdlib.RegexReplaceFunc, "replace": stdlib.ReplaceFunc, "split": stdlib.SplitFunc, "strlen": stdlib.StrlenFunc,
		"strrev": stdlib.ReverseFunc, "substr": stdlib.SubstrFunc, "title": stdlib.TitleFunc, "trim": stdlib.TrimFunc,
		"trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc, "trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc,

		"chunklist": stdlib.ChunklistFunc, "coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc, "compact": stdlib.CompactFunc,
		"concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc,
		"flatten": stdlib.FlattenFunc, "index": stdlib.IndexFunc, "keys": stdlib.KeysFunc, "length": stdlib.LengthFunc,
		"lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc, "range": stdlib.RangeFunc, "reverse": stdlib.ReverseListFunc,
		"setintersection": stdlib.SetIntersectionFunc, "setproduct": stdlib.SetProductFunc, "setsubtract": stdlib.SetSubtractFunc,
		"setsymmetricdifference": stdlib.SetSymmetricDifferenceFunc, "setunion": stdlib.SetUnionFunc, "slice": stdlib.SliceFunc,
		"sort": stdlib.SortFunc, "values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,

		"tobool": stdlib.MakeToFunc(cty.Bool), "tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String),
		"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
		"toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),

		"base64decode": encoding.Base64DecodeFunc, "base64encode": encoding.Base64EncodeFunc, "csvdecode": stdlib.CSVDecodeFunc,
		"jsondecode": stdlib.JSONDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc, "urlencode": encoding.URLEncodeFunc,
		"yamldecode": ctyyaml.YAMLDecodeFunc, "yamlencode": ctyyaml.YAMLEncodeFunc,

		"formatdate": stdlib.FormatDateFunc, "timeadd": stdlib.TimeAddFunc, "timestamp": timestampFunc,

		"bcrypt": crypto.BcryptFunc, "md5": crypto.Md5Func, "rsadecrypt": crypto.RsaDecryptFunc, "sha1": crypto.Sha1Func,
		"sha256": crypto.Sha256Func, "sha512": crypto.Sha512Func, "uuidv4": uuid.V4Func, "uuidv5": uuid.V5Func,

		"cidrhost": cidr.HostFunc, "cidrnetmask": cidr.NetmaskFunc, "cidrsubnet": cidr.SubnetFunc, "cidrsubnets": cidr.SubnetsFunc,
	}
})

var timestampFunc = function.New(&function.Spec{
	Type: function.StaticReturnType(cty.String),
	Impl: func([]cty.Value, cty.Type) (cty.Value, error) {
		return cty.StringVal(time.Now().UTC().Format(time.RFC3339)), nil
	},
})

// forms are functions whose arguments are not all plain values.
var forms = []string{"can", "convert", "templatefile", "try"}

// carriers pass their texts on whole, so that those may name what only run time
// knows. Any other function would work on the name instead of what it stands for.
var carriers = []string{
	"join", "format", "formatlist", "concat", "merge", "flatten", "coalesce", "coalescelist", "compact", "element", "keys", "values", "lookup",
	"length", "chunklist", "reverse", "slice", "zipmap", "tolist", "toset", "tomap", "tostring", "setunion", "setproduct", "distinct",
	"jsonencode", "yamlencode", "trimspace", "chomp", "indent", "contains", "index",
}

// call evaluates a function call.
func (e *evaluator) call(x *hclsyntax.FunctionCallExpr, quoted bool) cty.Value {
	switch x.Name {
	case "try", "can":
		return e.try(x, quoted)
	case "convert":
		return e.convert(x, quoted)
	case "templatefile":
		return e.templateFile(x)
	}
	f, ok := e.funcs[x.Name]
	if !ok {
		all := slices.Sorted(maps.Keys(e.funcs))
		e.diags.add(x.NameRange, "Unknown function", "There is no function %q.%s", x.Name, meant(x.Name, append(all, forms...)))
		return none
	}
	before := len(e.diags.all)
	simple := *x
	simple.Args = nil
	var args []cty.Value
	for _, arg := range x.Args {
		v := e.eval(arg, quoted)
		if !e.spend(size(v), arg.Range()) {
			return none
		}
		if x.Name == "length" && v.Type() == cty.String {
			simple.Name, f = "strlen", stdlib.StrlenFunc
		}
		if !slices.Contains(carriers, simple.Name) && holds(v, func(v cty.Value) bool { return v.Type() == cty.String && hasRef(v.AsString()) }) {
			e.diags.add(arg.Range(), "Not known yet", "%s works on values of the file; this is known only when the task runs.", x.Name)
		}
		if holds(v, hugeNumber) || numeric(f, len(args)) && hugeTexts(v) {
			e.diags.add(arg.Range(), "Invalid number", "A number here is too large or too small.")
		}
		args = append(args, v)
		simple.Args = append(simple.Args, &hclsyntax.LiteralValueExpr{Val: v, SrcRange: arg.Range()})
	}
	if len(e.diags.all) > before || !e.afford(x, args) {
		return none
	}
	v, diags := e.safely(documented(&simple, args), f)
	e.diags.hcl(diags)
	if diags.HasErrors() || !v.IsWhollyKnown() || !e.spend(size(v), x.Range()) {
		return none
	}
	if holds(v, hugeNumber) {
		e.diags.add(x.Range(), "Invalid number", "A number here is too large or too small.")
		return none
	}
	if holds(v, foreign) && !slices.Contains(carriers, x.Name) {
		e.diags.add(x.Range(), "Invalid character", "The result has U+FDD0 or U+FDD1, which stand for no character.")
		return none
	}
	return v
}

// documented makes a call of what the documentation of job files promises and the
// libraries do not do: coalesce passes over empty texts too, length and index take
// objects, which is what { … } makes, as they take maps.
func documented(x *hclsyntax.FunctionCallExpr, args []cty.Value) *hclsyntax.FunctionCallExpr {
	object := len(args) > 0 && args[0].Type().IsObjectType() && !args[0].IsNull()
	switch {
	case x.Name == "coalesce":
		if last := len(args) - 1; x.ExpandFinal && last >= 0 {
			if length(args[last]) == 0 {
				return x
			}
			args = append(args[:last:last], args[last].AsValueSlice()...)
		}
		args = slices.DeleteFunc(slices.Clone(args), func(v cty.Value) bool { return v.Type() == cty.String && textOf([]cty.Value{v}, 0) == "" })
		if len(args) == 0 {
			return x // all are empty: the library's answer to that
		}
	case x.Name == "length" && len(args) == 1 && object:
		args = []cty.Value{cty.TupleVal(slices.Collect(maps.Values(args[0].AsValueMap())))}
	case x.Name == "index" && len(args) == 2 && object && args[0].Type().HasAttribute(textOf(args, 1)):
		args = []cty.Value{cty.TupleVal([]cty.Value{args[0].GetAttr(textOf(args, 1))}), cty.NumberIntVal(0)}
	default:
		return x
	}
	call := *x
	call.Args, call.ExpandFinal = nil, false
	for _, v := range args {
		call.Args = append(call.Args, &hclsyntax.LiteralValueExpr{Val: v, SrcRange: x.Range()})
	}
	return &call
}

// safely calls a library's function; a panic of it is an error of the call.
func (e *evaluator) safely(x *hclsyntax.FunctionCallExpr, f function.Function) (v cty.Value, diags hcl.Diagnostics) {
	defer func() {
		if r := recover(); r != nil {
			v, diags = none, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Error in function call", Detail: fmt.Sprintf("%s: %v.", x.Name, r), Subject: x.Range().Ptr()}}
		}
	}()
	return x.Value(&hcl.EvalContext{Functions: map[string]function.Function{x.Name: f}})
}

func numeric(f function.Function, i int) bool {
	params := f.Params()
	if i < len(params) {
		return params[i].Type == cty.Number
	}
	rest := f.VarParam()
	return rest == nil || rest.Type == cty.Number || rest.Type == cty.DynamicPseudoType
}

// afford refuses a call whose cost is not in proportion to its arguments.
func (e *evaluator) afford(x *hclsyntax.FunctionCallExpr, args []cty.Value) bool {
	total := 0
	for _, a := range args {
		total += size(a)
	}
	text := func(i int) int {
		if i < len(args) && args[i].Type() == cty.String && !args[i].IsNull() {
			return len(args[i].AsString())
		}
		return 0
	}
	whole := func(i int) int {
		if i < len(args) {
			if n, err := convert.Convert(args[i], cty.Number); err == nil && !n.IsNull() {
				f, _ := n.AsBigFloat().Float64()
				return int(min(max(f, 0), 1<<40))
			}
		}
		return 0
	}
	cost := total
	switch x.Name {
	case "distinct", "contains", "index", "setunion", "setintersection", "setsubtract", "setsymmetricdifference", "compact", "coalescelist":
		cost += total * total / 64
	case "setproduct":
		cost = 1
		for _, a := range args {
			cost = min(cost*max(1, length(a)), 1<<40)
		}
		cost *= max(1, len(args))
	case "replace":
		cost += text(0) * max(1, text(2)) / max(1, text(1))
	case "regex_replace":
		cost += text(0) * (1 + text(2)) * (1 + strings.Count(textOf(args, 2), "$"))
	case "join":
		for _, a := range args[min(1, len(args)):] {
			cost += length(a) * text(0)
		}
	case "indent":
		cost += whole(0) * (1 + strings.Count(textOf(args, 1), "\n"))
	case "format", "formatlist":
		if wide.MatchString(textOf(args, 0)) {
			cost = 1 << 40
		}
	case "bcrypt":
		if n := whole(1); n > 12 {
			cost = 1 << 40
		}
	case "yamldecode":
		if aliases := len(alias.FindAllStringIndex(textOf(args, 0), 21)); aliases > 20 {
			cost = 1 << 40
		}
	}
	return e.spend(cost, x.Range())
}

func textOf(args []cty.Value, i int) string {
	if i < len(args) && args[i].Type() == cty.String && !args[i].IsNull() {
		return args[i].AsString()
	}
	return ""
}

// try is the first argument that can be evaluated; can says whether its one can.
func (e *evaluator) try(x *hclsyntax.FunctionCallExpr, quoted bool) cty.Value {
	if len(x.Args) == 0 || x.Name == "can" && len(x.Args) > 1 {
		e.diags.add(x.Range(), "Wrong number of arguments", "can takes one argument, try one or more.")
		return none
	}
	var last []Diagnostic
	for _, arg := range x.Args {
		tried := *e
		tried.diags = &diagnostics{sources: e.diags.sources}
		v := none
		if _, ok := tried.later(arg); ok {
			v = tried.eval(arg, quoted)
		}
		switch {
		case e.budget.spent:
			return none
		case x.Name == "can":
			return cty.BoolVal(len(tried.diags.all) == 0)
		case len(tried.diags.all) == 0:
			return v
		}
		last = tried.diags.all
	}
	e.diags.add(x.Range(), "Nothing could be evaluated", "try: the last argument: %s: %s", last[0].Summary, last[0].Detail)
	return none
}

// convert makes a value of a type that is written as in a variable block.
func (e *evaluator) convert(x *hclsyntax.FunctionCallExpr, quoted bool) cty.Value {
	if len(x.Args) != 2 {
		e.diags.add(x.Range(), "Wrong number of arguments", "convert takes a value and a type: convert(x, list(string))")
		return none
	}
	t, diags := typeexpr.TypeConstraint(x.Args[1])
	e.diags.hcl(diags)
	if diags.HasErrors() {
		return none
	}
	before := len(e.diags.all)
	v := e.eval(x.Args[0], quoted)
	if len(e.diags.all) > before {
		return none
	}
	if hugeTexts(v) {
		e.diags.add(x.Range(), "Invalid number", "A number here is too large or too small.")
		return none
	}
	v, err := convert.Convert(v, t)
	if err != nil {
		e.diags.add(x.Args[0].Range(), "Wrong type of value", "convert: %v.", err)
		return none
	}
	return v
}
