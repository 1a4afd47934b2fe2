// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/stretchr/testify/require"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// render is what a driver makes of a template at run time.
func render(t *testing.T, template string) string {
	t.Helper()
	x, diags := hclsyntax.ParseTemplate([]byte(template), "t", hcl.InitialPos)
	require.False(t, diags.HasErrors(), "%q: %v", template, diags)
	v, diags := x.Value(&hcl.EvalContext{Variables: map[string]cty.Value{"x": cty.StringVal("X")}})
	require.False(t, diags.HasErrors(), "%q: %v", template, diags)
	v, err := convert.Convert(v, cty.String)
	require.NoError(t, err)
	return v.AsString()
}

func TestEncode(t *testing.T) {
	for _, c := range []struct{ in, template, text string }{
		{"plain", "plain", "plain"},
		{"$HOME 100%", "$HOME 100%", "$HOME 100%"},
		{"${x}", "$${x}", "$${x}"},
		{"%{if}", "%%{if}", "%{if}"},
		{"$${x}", "$$${x}", "$$${x}"},
		{"${", "$${", "${"},
		{"${a{b}", "$${a{b}", "${a{b}"},
		{"${}", "$${}", "${}"},
		{ref("x"), "${x}", "${x}"},
		{"a" + ref("x") + "b" + ref("y"), "a${x}b${y}", "a${x}b${y}"},
		{"$" + ref("x"), `${"$"}${x}`, "$${x}"}, // a text cannot say it
		{"%" + ref("x"), "%${x}", "%${x}"},
		{"%" + ref("%{if x}y%{endif}"), `${"%"}%{if x}y%{endif}`, "%%{if x}y%{endif}"},
		{ref(`x == "` + ref("y") + `/z"`), `${x == "${y}/z"}`, `${x == "${y}/z"}`},
	} {
		require.Equal(t, c.template, formTemplate.encode(c.in), "%q", c.in)
		require.Equal(t, c.text, formText.encode(c.in), "%q", c.in)
	}
	require.Equal(t, "${x}", formPlain.encode("${x}"))
}

// Text comes out of a template as it went in, whatever is in it.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "a", "${x}", "$${x}", "%{if}", "$$", "%%{", "a$", "%", "{", "\"", "~}"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		if reserved.MatchString(before + after) {
			return
		}
		// HCL replaces what is no UTF-8 and brings the rest to Unicode's form C.
		before, after = strings.ToValidUTF8(before, ""), strings.ToValidUTF8(after, "")
		require.Equal(t, formC(before), formC(render(t, formTemplate.encode(before))))
		require.Equal(t, formC(before+"X"+after), formC(render(t, formTemplate.encode(before+ref("x")+after))))
	})
}

func formC(s string) string { return cty.StringVal(s).AsString() }
