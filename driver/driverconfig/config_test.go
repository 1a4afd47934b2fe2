// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driverconfig_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nodekeep/nodekeep/driver"
	"github.com/nodekeep/nodekeep/driver/driverconfig"
	"github.com/nodekeep/nodekeep/spec"
	"github.com/stretchr/testify/require"
)

type attrs = map[string]*driver.Schema

func named(kind driver.SchemaKind, name string, nested *driver.Schema) *driver.Schema {
	return &driver.Schema{Kind: kind, Name: name, Nested: nested}
}

var (
	process = driver.Object(attrs{
		"command":  driver.Attr("string", true),
		"args":     driver.Attr("list(string)", false),
		"no_group": driver.Default(driver.Attr("bool", false), "false"),
	})
	mount = driver.Object(attrs{
		"target":   driver.Attr("string", true),
		"readonly": driver.Default(driver.Attr("bool", false), "true"),
	})
	everything = driver.Object(attrs{
		"text":    driver.Attr("string", false),
		"num":     driver.Attr("number", false),
		"flag":    driver.Attr("bool", false),
		"any":     driver.Attr("any", false),
		"list":    driver.Attr("list(string)", false),
		"nums":    driver.Attr("list(number)", false),
		"set":     driver.Attr("set(string)", false),
		"map":     driver.Attr("map(string)", false),
		"maps":    driver.Attr("list(map(string))", false),
		"obj":     driver.Attr("object({a=string,b=number})", false),
		"renamed": {Kind: driver.KindAttr, Name: "as_written", Type: "string"},
		"eight":   driver.Default(driver.Attr("number", false), `"8"`),
		"words":   driver.Default(driver.Attr("list(string)", false), `["a", "b"]`),
		"lit":     {Kind: driver.KindLiteral, Literal: `"fixed"`},
		"pair":    {Kind: driver.KindArray, Items: []*driver.Schema{{Kind: driver.KindAttr, Name: "first", Type: "string"}, {Kind: driver.KindLiteral, Literal: "2"}}},
		"block":   named(driver.KindBlock, "", mount),
		"free":    {Kind: driver.KindBlockAttrs, Type: "string"},
		"mounts":  named(driver.KindBlockList, "mount", mount),
		"unique":  named(driver.KindBlockSet, "", mount),
		"vols":    {Kind: driver.KindBlockMap, Name: "volume", Labels: []string{"name"}, Nested: mount},
		"deep":    {Kind: driver.KindBlockMap, Labels: []string{"a", "b"}, Nested: mount},
		"loose":   named(driver.KindBlockList, "", driver.Object(attrs{"v": driver.Attr("any", false)})),
		"looser":  {Kind: driver.KindBlockMap, Labels: []string{"a"}, Nested: driver.Object(attrs{"v": driver.Attr("any", false)})},
	})
	vars = map[string]string{
		"attr.cpu.numcores": "4", "attr.driver.x": "1", "attr.driver.x.version": "2.0", "attr.a.b.c": "deep",
		"node.class": "big", "node.unique.id": "n-1", "meta.rack-1": "r1", "env.HOME": "/root", "HOME": "/root", "SECRET": "hunter2",
		"NOMAD_TASK_DIR": "/a/web/local", "json": `{"a": ["${x}"]}`, "num": "3", "yes": "true", "attr.list.0": "zero", "env.BIG": "1e99999",
	}
)

// each case is a config and the part of the result it is about.
var evalCases = []struct{ name, raw, want string }{
	{"string", `{"text":"x"}`, `{"text":"x"}`},
	{"number to string", `{"text":5}`, `{"text":"5"}`},
	{"bool to string", `{"text":true}`, `{"text":"true"}`},
	{"string to number", `{"num":"8"}`, `{"num":8}`},
	{"string to bool", `{"flag":"true"}`, `{"flag":true}`},
	{"exact integers", `{"num":9007199254740993}`, `{"num":9007199254740993}`},
	{"exact fractions", `{"num":0.1}`, `{"num":0.1}`},
	{"large numbers", `{"num":"123456789012345678901234567890.5"}`, `{"num":123456789012345678901234567890.5}`},
	{"exponent", `{"num":1e3}`, `{"num":1000}`},
	{"null attribute", `{"text":null}`, `{"text":null}`},
	{"null takes the default", `{"eight":null}`, `{"eight":8}`},
	{"default, converted", `{}`, `{"eight":8,"words":["a","b"]}`},
	{"default, overridden", `{"eight":9,"words":[]}`, `{"eight":9,"words":[]}`},
	{"nothing", `{}`, `{"text":null,"num":null,"any":null,"list":null,"map":null,"obj":null,"block":null,"free":null,"mounts":[],"unique":[],"vols":{},"deep":{},"loose":[],"lit":"fixed","pair":[null,2]}`},
	{"any string", `{"any":"x"}`, `{"any":"x"}`},
	{"any object", `{"any":{"a":[1,"b",null,true]}}`, `{"any":{"a":[1,"b",null,true]}}`},
	{"list", `{"list":["a",1,true]}`, `{"list":["a","1","true"]}`},
	{"numbers", `{"nums":["1",2]}`, `{"nums":[1,2]}`},
	{"set", `{"set":["b","a","b"]}`, `{"set":["a","b"]}`},
	{"map", `{"map":{"a":"1","b":2}}`, `{"map":{"a":"1","b":"2"}}`},
	{"map as a block", `{"map":[{"a":"1"}]}`, `{"map":{"a":"1"}}`},
	{"map as blocks", `{"map":[{"a":"1","b":"1"},{"b":"2"}]}`, `{"map":{"a":"1","b":"2"}}`},
	{"list of maps", `{"maps":[{"a":"1"},{"b":"2"}]}`, `{"maps":[{"a":"1"},{"b":"2"}]}`},
	{"list of maps as an attribute", `{"maps":{"a":"1"}}`, `{"maps":[{"a":"1"}]}`},
	{"object type", `{"obj":{"a":1,"b":"2"}}`, `{"obj":{"a":"1","b":2}}`},
	{"object type as a block", `{"obj":[{"a":1,"b":"2"}]}`, `{"obj":{"a":"1","b":2}}`},
	{"name in the file", `{"as_written":"x"}`, `{"renamed":"x"}`},
	{"array", `{"first":"x"}`, `{"pair":["x",2]}`},
	{"block", `{"block":[{"target":"/x"}]}`, `{"block":{"target":"/x","readonly":true}}`},
	{"block as an attribute", `{"block":{"target":"/x","readonly":"false"}}`, `{"block":{"target":"/x","readonly":false}}`},
	{"block that is null", `{"block":null}`, `{"block":null}`},
	{"free attributes", `{"free":[{"a":"1","b":true}]}`, `{"free":{"a":"1","b":"true"}}`},
	{"block list", `{"mount":[{"target":"/b"},{"target":"/a"}]}`, `{"mounts":[{"target":"/b","readonly":true},{"target":"/a","readonly":true}]}`},
	{"block list, one", `{"mount":{"target":"/b"}}`, `{"mounts":[{"target":"/b","readonly":true}]}`},
	{"block set", `{"unique":[{"target":"/a"},{"target":"/a"}]}`, `{"unique":[{"target":"/a","readonly":true}]}`},
	{"block map", `{"volume":[{"x":[{"target":"/x"}]},{"y":{"target":"/y"}}]}`, `{"vols":{"x":{"target":"/x","readonly":true},"y":{"target":"/y","readonly":true}}}`},
	{"block map of two labels", `{"deep":{"x":{"y":{"target":"/x"},"z":{"target":"/z"}}}}`, `{"deep":{"x":{"y":{"target":"/x","readonly":true},"z":{"target":"/z","readonly":true}}}}`},
	{"any in blocks", `{"loose":[{"v":1},{"v":["x"]}],"looser":{"k":{"v":{}}}}`, `{"loose":[{"v":1},{"v":["x"]}],"looser":{"k":{"v":{}}}}`},
	{"comment", `{"//":"text","text":"x"}`, `{"text":"x"}`},

	{"interpolation", `{"text":"a-${node.class}-${node.unique.id}"}`, `{"text":"a-big-n-1"}`},
	{"bare names", `{"list":["${HOME}","${env.HOME}","${NOMAD_TASK_DIR}/x"]}`, `{"list":["/root","/root","/a/web/local/x"]}`},
	{"maps win over primitives", `{"text":"${attr.driver.x.version}"}`, `{"text":"2.0"}`},
	{"dashes", `{"text":"${meta.rack-1}"}`, `{"text":"r1"}`},
	{"numbers in names", `{"text":"${attr.list.0} ${attr.list[0]} ${attr.list[\"0\"]}"}`, `{"text":"zero zero zero"}`},
	{"literal", `{"text":"$${HOME} %%{if} $HOME $$ $"}`, `{"text":"${HOME} %{if} $HOME $$ $"}`},
	{"not evaluated twice", `{"text":"${json}"}`, `{"text":"{\"a\": [\"${x}\"]}"}`},
	{"variable to number", `{"num":"${num}"}`, `{"num":3}`},
	{"variable to bool", `{"flag":"${yes}"}`, `{"flag":true}`},
	{"arithmetic", `{"num":"${attr.cpu.numcores * 2 - 1}"}`, `{"num":7}`},
	{"condition", `{"text":"${node.class == \"big\" ? \"yes\" : \"no\"}"}`, `{"text":"yes"}`},
	{"directive", `{"text":"%{ if node.class == \"big\" }B%{ else }S%{ endif }"}`, `{"text":"B"}`},
	{"list expression", `{"list":"${[\"a\", HOME]}"}`, `{"list":["a","/root"]}`},
	{"keys", `{"map":{"${node.class}":"1"}}`, `{"map":{"big":"1"}}`},
	{"inside blocks", `{"mount":[{"target":"${HOME}/x"}]}`, `{"mounts":[{"target":"/root/x","readonly":true}]}`},
	{"lines", `{"text":"a\n${HOME}\n"}`, `{"text":"a\n/root\n"}`},
}

func TestEval(t *testing.T) {
	for _, c := range evalCases {
		t.Run(c.name, func(t *testing.T) {
			got, err := driverconfig.Eval(everything, json.RawMessage(c.raw), nil, vars)
			require.NoError(t, err)
			var all, want map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(got, &all), "%s", got)
			require.NoError(t, json.Unmarshal([]byte(c.want), &want))
			require.Len(t, all, 23, "every attribute is there")
			for k, v := range want {
				require.Equal(t, exact(t, v), exact(t, all[k]), k)
			}
			require.NoError(t, driverconfig.Validate(everything, json.RawMessage(c.raw), nil))
		})
	}
}

// exact decodes without losing a digit.
func exact(t *testing.T, raw json.RawMessage) (v any) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&v))
	return v
}

func TestEvalWhole(t *testing.T) {
	got, err := driverconfig.Eval(process, json.RawMessage(`{"command":"sh","args":["-c","exit 0"]}`), nil, nil)
	require.NoError(t, err)
	require.Equal(t, `{"args":["-c","exit 0"],"command":"sh","no_group":false}`, string(got))
	for _, raw := range []string{"", " ", "{}", "null"} {
		got, err = driverconfig.Eval(nil, json.RawMessage(raw), nil, nil)
		require.NoError(t, err)
		require.Equal(t, `{}`, string(got))
	}
}

// The texts of all errors a config gives, sorted by path.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		raw  string
		want []string // of Eval and of Validate, unless it begins with "eval "
	}{
		{`{`, []string{"config: is not a JSON object: unexpected EOF"}},
		{`[1]`, []string{"config: is not a JSON object: json: cannot unmarshal array into Go value of type map[string]interface {}"}},
		{`{} {}`, []string{"config: is not a JSON object: there is more after it"}},
		{`{"txt":"x","mount":[{"target":"x"},{"target":"x","read_only":true}]}`, []string{
			"config.mount[1].read_only: is unknown; allowed: readonly, target",
			"config.txt: is unknown; allowed: any, as_written, block, deep, eight, first, flag, free, list, loose, looser, map, maps, mount, num, nums, obj, set, text, unique, volume, words",
		}},
		{`{"block":"x","mount":[1]}`, []string{
			"config.block: is a block, not a value",
			"config.mount[0]: is a block, not a value",
		}},
		{`{"block":[{"target":"x"},{"target":"x"}],"free":[{},{}]}`, []string{
			"config.block[1]: is a second block where one is allowed",
			"config.free[1]: is a second block where one is allowed",
		}},
		{`{"block":[{}]}`, []string{`config.block[0]: Missing required argument: The argument "target" is required, but no definition was found.`}},
		{`{"num":"eight"}`, []string{`config.num: Incorrect attribute value type: Inappropriate value for attribute "num": a number is required.`}},
		{`{"nums":[1,"x"]}`, []string{`config.nums: Incorrect attribute value type: Inappropriate value for attribute "nums": a number is required.`}},
		{`{"list":"x"}`, []string{`config.list: Incorrect attribute value type: Inappropriate value for attribute "list": list of string required, but have string.`}},
		{`{"text":["x"]}`, []string{`config.text: Incorrect attribute value type: Inappropriate value for attribute "text": string required, but have tuple.`}},
		{`{"volume":["x"]}`, []string{"config.volume[0]: is a block, not a value"}},
		{`{"text":"${nowhere}"}`, []string{`eval config.text: ${nowhere} is not known when the task starts; $${…} is the text ${…}`}},
		{`{"mount":[{"target":"${node.datacenter}"}]}`, []string{`eval config.mount[0].target: ${node.datacenter} is not known when the task starts; $${…} is the text ${…}`}},
		{`{"list":["a","x ${HOME"]}`, []string{`config.list[1]: Unclosed template interpolation sequence: There is no closing brace for this interpolation sequence before the end of the file. This might be caused by incorrect nesting inside the given expression.`}},
		{`{"list":["${upper(HOME)}"]}`, []string{`config.list[0]: Function calls not allowed: Functions may not be called here. (in ${HOME})`}},
		{`{"text":"${node}"}`, []string{`eval config.text: Incorrect attribute value type: Inappropriate value for attribute "text": string required, but have object. (in ${node})`}},
		{`{"num":"${SECRET}"}`, []string{`eval config.num: Incorrect attribute value type: Inappropriate value for attribute "num": a number is required. (in ${SECRET})`}},
		{`{"num":"${HOME * 2}"}`, []string{`eval config.num: Invalid operand: Unsuitable value for left operand: a number is required. (in ${HOME})`}},
	} {
		for _, eval := range []bool{true, false} {
			var err error
			var want []string
			if eval {
				_, err = driverconfig.Eval(everything, json.RawMessage(c.raw), nil, vars)
			} else {
				err = driverconfig.Validate(everything, json.RawMessage(c.raw), nil)
			}
			for _, w := range c.want {
				if text, only := strings.CutPrefix(w, "eval "); eval || !only {
					want = append(want, text)
				}
			}
			require.Equal(t, want, texts(t, err), "%s eval=%v", c.raw, eval)
		}
	}
}

func texts(t *testing.T, err error) []string {
	if err == nil {
		return nil
	}
	var all []string
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%T %v", err, err)
	for _, e := range joined.Unwrap() {
		var typed *driverconfig.Error
		require.ErrorAs(t, e, &typed)
		require.NotContains(t, e.Error(), "hunter2", "values of variables are not told")
		all = append(all, e.Error())
	}
	return all
}

// An error that is found at run time points at the line of the job file.
func TestOrigin(t *testing.T) {
	origin := map[string]spec.Origin{
		"":               {File: "web.hcl", Line: 9, Column: 5},
		"text":           {File: "web.hcl", Line: 10, Column: 7},
		"mount":          {File: "web.hcl", Line: 11, Column: 7},
		"mount.1":        {File: "web.hcl", Line: 15, Column: 7},
		"mount.1.target": {File: "web.hcl", Line: 16, Column: 9},
	}
	raw := json.RawMessage(`{"text":"${x}","mount":[{"target":1,"y":2},{"target":"${z}"}],"w":1}`)
	_, err := driverconfig.Eval(everything, raw, origin, nil)
	require.Equal(t, []string{
		`web.hcl:11:7: config.mount[0].y: is unknown; allowed: readonly, target`,
		`web.hcl:9:5: config.w: is unknown; allowed: ` + allowed(t),
	}, texts(t, err))
	raw = json.RawMessage(`{"text":"${x}","mount":[{"target":1},{"target":"${z}"}]}`)
	_, err = driverconfig.Eval(everything, raw, origin, nil)
	require.ElementsMatch(t, []string{
		`web.hcl:10:7: config.text: ${x} is not known when the task starts; $${…} is the text ${…}`,
		`web.hcl:16:9: config.mount[1].target: ${z} is not known when the task starts; $${…} is the text ${…}`,
	}, texts(t, err))
}

func allowed(t *testing.T) string {
	err := driverconfig.Validate(everything, json.RawMessage(`{"w":1}`), nil)
	_, after, ok := strings.Cut(err.Error(), "allowed: ")
	require.True(t, ok)
	return after
}

func TestNothingAllowed(t *testing.T) {
	require.ErrorContains(t, driverconfig.Validate(nil, json.RawMessage(`{"x":1}`), nil), "config.x: is unknown; nothing is allowed here")
}

func TestBounds(t *testing.T) {
	list := driver.Object(attrs{
		"list": {Kind: driver.KindBlockList, Name: "b", Nested: mount, Min: 1, Max: 2},
		"req":  {Kind: driver.KindBlock, Nested: mount, Req: true},
	})
	for raw, want := range map[string]string{
		`{"req":[{"target":"x"}]}`: `Insufficient b blocks: At least 1 "b" blocks are required.`,
		`{"req":[{"target":"x"}],"b":[{"target":"1"},{"target":"2"},{"target":"3"}]}`: `Too many b blocks: No more than 2 "b" blocks are allowed`,
		`{"b":[{"target":"1"}]}`: `config: Missing req block: A block of type "req" is required here.`,
	} {
		require.ErrorContains(t, driverconfig.Validate(list, json.RawMessage(raw), nil), want)
	}
}

// One job must not be able to exhaust the agent at every restore.
func TestExpensive(t *testing.T) {
	big := map[string]string{"X": strings.Repeat("x", 1<<20)}
	for raw, want := range map[string]string{
		`{"text":"${X}` + strings.Repeat("${X}", 20) + `"}`:      "config.text: is too large",
		`{"list":[` + strings.Repeat(`"${X}",`, 20) + `"${X}"]}`: "is too large",
		`{"list":"${[for x in [1,2]: x]}"}`:                      "config.list: has a for expression",
		`{"text":"%{ for x in [1,2] }${x}%{ endfor }"}`:          "config.text: has a for expression",
		`{"text":"${1` + strings.Repeat("*9e999", 5000) + `}"}`:  "config.text: has expressions that are too long",
		`{"text":"${` + strings.Repeat("(", 1<<13) + `}"}`:       "config.text: has expressions that are too long",
		`{"text":"${` + strings.Repeat("!", 1<<13) + `}"}`:       "config.text: has expressions that are too long",
		`{"text":"` + strings.Repeat("x", 1<<20) + `"}`:          "config: has 1048587 bytes, at most 1048576 are allowed",
	} {
		_, err := driverconfig.Eval(everything, json.RawMessage(raw), nil, big)
		require.ErrorContains(t, err, want)
	}
}

// Nor by a number.
func TestHugeNumbers(t *testing.T) {
	for _, raw := range []string{
		`{"text":1e99999}`, `{"num":1e99999}`, `{"num":"1e99999"}`, `{"text":"x${1e99999}"}`, `{"any":[1e-99999]}`,
		`{"text":"x${\"1e99999\" + 0}"}`, `{"text":"x${env.BIG + 0}"}`, `{"text":"x${env[\"BIG\"] + 0}"}`,
		`{"text":"x${env[true ? \"BIG\" : \"\"] + 0}"}`, `{"num":"${env.BIG}"}`, `{"map":{"${1e99999}":1}}`,
	} {
		_, err := driverconfig.Eval(everything, json.RawMessage(raw), nil, vars)
		require.ErrorContains(t, err, "too large or too small", raw)
	}
	got, err := driverconfig.Eval(everything, json.RawMessage(`{"text":"${env.BIG} 1e99999"}`), nil, vars)
	require.NoError(t, err, "as text it is harmless, and looks like many a commit id")
	require.Contains(t, string(got), `"1e99999 1e99999"`)
}

func TestBrokenSchema(t *testing.T) {
	for name, s := range map[string]*driver.Schema{
		"kind":          {Kind: "strange"},
		"no name":       driver.Attr("string", false),
		"type":          driver.Object(attrs{"a": driver.Attr("strng", false)}),
		"type syntax":   driver.Object(attrs{"a": driver.Attr("list(", false)}),
		"literal":       driver.Object(attrs{"a": {Kind: driver.KindLiteral, Literal: "x y"}}),
		"literal ref":   driver.Object(attrs{"a": {Kind: driver.KindLiteral, Literal: "x"}}),
		"default":       driver.Object(attrs{"a": driver.Default(driver.Attr("number", false), `"x"`)}),
		"nested":        driver.Object(attrs{"a": {Kind: driver.KindBlock}}),
		"nil attribute": driver.Object(attrs{"a": nil}),
		"literal huge":  driver.Object(attrs{"a": driver.Default(driver.Attr("string", false), "1e999999999")}),
		"literal made":  driver.Object(attrs{"a": driver.Default(driver.Attr("string", false), "9e999*9e999*9e999*9e999*9e999*9e999")}),
		"literal loop":  driver.Object(attrs{"a": {Kind: driver.KindLiteral, Literal: "[for a in [1,2]: a]"}}),
		"no label":      driver.Object(attrs{"a": {Kind: driver.KindBlockMap, Nested: mount}}),
	} {
		_, err := driverconfig.Eval(s, nil, nil, nil)
		require.ErrorIs(t, err, driverconfig.ErrSchema, name)
		require.ErrorContains(t, err, "schema", name)
	}
}

// The tree must not depend on the order in which a map is walked.
func TestDeterministic(t *testing.T) {
	raw := json.RawMessage(`{"any":"${attr}","text":"${attr.driver.x.version}"}`)
	first, err := driverconfig.Eval(everything, raw, nil, vars)
	require.NoError(t, err)
	for range 100 {
		again, err := driverconfig.Eval(everything, raw, nil, vars)
		require.NoError(t, err)
		require.Equal(t, string(first), string(again))
	}
}

func FuzzEval(f *testing.F) {
	for _, c := range evalCases {
		f.Add(c.raw, "")
	}
	f.Add(`{"a":[{"b":"${x}"}]}`, `{"kind":"object","attrs":{"a":{"kind":"block_map","labels":["l"],"nested":{"kind":"attr","name":"b","type":"any"}}}}`)
	f.Fuzz(func(t *testing.T, raw, schema string) {
		s := everything
		if schema != "" {
			s = new(driver.Schema)
			if json.Unmarshal([]byte(schema), s) != nil {
				return
			}
		}
		structure := driverconfig.Validate(s, json.RawMessage(raw), nil)
		got, err := driverconfig.Eval(s, json.RawMessage(raw), nil, vars)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NoError(t, structure, "Validate refuses nothing that Eval accepts")
		require.True(t, json.Valid(got), "%s", got)
		again, err := driverconfig.Eval(s, json.RawMessage(raw), nil, vars)
		require.NoError(t, err)
		require.Equal(t, string(got), string(again))
	})
}

func BenchmarkEval(b *testing.B) {
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprintf("attr.group%d.name%d", i%20, i)] = "x"
	}
	many["NOMAD_TASK_DIR"] = "/t"
	raw := json.RawMessage(`{"command":"sh","args":["-c","exec ${NOMAD_TASK_DIR}/x"]}`)
	for b.Loop() {
		if _, err := driverconfig.Eval(process, raw, nil, many); err != nil {
			b.Fatal(errors.Unwrap(err))
		}
	}
}
