// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// HCL is the job as a job file, formatted: what is in Tree, without variables,
// functions and comments. Parse gives the same job back.
func (j *Job) HCL() []byte {
	for mark := "code"; ; mark += "_" {
		w := &writer{mark: mark}
		w.block(j.Tree, 0)
		text := hclwrite.Format([]byte(w.String()))
		if bytes.Count(text, []byte(mark)) != len(w.code) {
			continue // the job's own texts have that word
		}
		var pairs []string
		for i := range w.code {
			pairs = append(pairs, w.places[i], w.code[i])
		}
		return []byte(strings.NewReplacer(pairs...).Replace(string(text)))
	}
}

// FormatHCL formats a job file as it is, comments and expressions included: only
// blanks change. What is no HCL is an *Error.
func FormatHCL(f File) ([]byte, error) {
	p := newParser(ParseConfig{File: f})
	src, ok := p.read(f)
	if !ok || p.syntax(f.Name, src) == nil {
		return nil, p.result()
	}
	return append([]byte{}, hclwrite.Format(src)...), nil
}

// writer writes HCL. Expressions inside texts are for others to read: they stand
// aside while the text is formatted.
type writer struct {
	strings.Builder
	mark         string
	code, places []string
}

// aside stands for code that formatting would change: as long as it, where it can
// be, so that columns fit.
func (w *writer) aside(code string) string {
	alone := `x = "` + code + "\"\n"
	if string(hclwrite.Format([]byte(alone))) == alone {
		return code
	}
	name := fmt.Sprintf("${%s%d", w.mark, len(w.places))
	name += strings.Repeat("_", max(0, utf8.RuneCountInString(code)-len(name)-1)) + "}"
	w.code, w.places = append(w.code, code), append(w.places, name)
	return name
}

func (w *writer) line(depth int, text string) {
	w.WriteString(strings.Repeat("  ", depth) + text + "\n")
}

func (w *writer) block(b *Block, depth int) {
	head := b.Type
	for _, l := range b.Labels {
		head += " " + w.quote(formPlain, l)
	}
	if len(b.Attrs)+len(b.Blocks) == 0 {
		w.line(depth, head+" {}")
		return
	}
	w.line(depth, head+" {")
	var blocks []Attr // arguments in block form come behind the others
	for _, a := range b.Attrs {
		if asBlock(b.lang.child(a.Name).kind, a.Value) {
			blocks = append(blocks, a)
			continue
		}
		w.line(depth+1, a.Name+" = "+w.expression(b.lang.child(a.Name).kind, a.Value))
	}
	for i, a := range blocks {
		if i > 0 || len(blocks) < len(b.Attrs) {
			w.WriteByte('\n')
		}
		w.mapping(b.lang.child(a.Name).kind, a, depth+1)
	}
	for i, x := range b.Blocks {
		if i > 0 || len(b.Attrs) > 0 {
			w.WriteByte('\n')
		}
		w.block(x, depth+1)
	}
	w.line(depth, "}")
}

// asBlock says whether an argument can be written as a block: all its names are
// plain words.
func asBlock(k kind, v any) bool {
	if !k.blocky() {
		return false
	}
	for _, name := range mapKeys(v) {
		if !hclsyntax.ValidIdentifier(name) {
			return false
		}
	}
	return true
}

func mapKeys(v any) []string {
	switch v := v.(type) {
	case map[string]string:
		return slices.Sorted(maps.Keys(v))
	case map[string][]string:
		return slices.Sorted(maps.Keys(v))
	case map[string]any:
		return slices.Sorted(maps.Keys(v))
	}
	return nil
}

func mapValue(v any, key string) any {
	switch v := v.(type) {
	case map[string]string:
		return v[key]
	case map[string][]string:
		return v[key]
	case map[string]any:
		return v[key]
	}
	return nil
}

// inside is the kind of what a map of that kind holds.
func (k kind) inside() kind {
	switch k {
	case kindMap:
		return kindText
	case kindLists:
		return kindTexts
	}
	return k
}

func (w *writer) mapping(k kind, a Attr, depth int) {
	keys := mapKeys(a.Value)
	if len(keys) == 0 {
		w.line(depth, a.Name+" {}")
		return
	}
	w.line(depth, a.Name+" {")
	for _, key := range keys {
		w.line(depth+1, key+" = "+w.expression(k.inside(), mapValue(a.Value, key)))
	}
	w.line(depth, "}")
}

// expression is a value in HCL.
func (w *writer) expression(k kind, v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		f := map[kind]form{kindText: formText, kindTexts: formText, kindRaw: formRaw, kindAny: formTemplate}[k]
		if h, ok := w.heredoc(f, v); ok {
			return h
		}
		return w.quote(f, v)
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case json.Number:
		return v.String()
	case time.Duration:
		return strconv.Quote(durationText(v))
	case []string:
		return w.list(k, anys(v))
	case []int64:
		return w.list(k, anys(v))
	case []any:
		return w.list(k, v)
	case map[string]string, map[string][]string, map[string]any:
		keys := mapKeys(v)
		if len(keys) == 0 {
			return "{}"
		}
		var b strings.Builder
		b.WriteString("{\n")
		for _, key := range keys {
			name := key
			if !hclsyntax.ValidIdentifier(key) || slices.Contains([]string{"for", "true", "false", "null"}, key) {
				name = w.quote(map[bool]form{true: formTemplate, false: formPlain}[k == kindAny], key)
			}
			b.WriteString(name + " = " + w.expression(k.inside(), mapValue(v, key)) + "\n")
		}
		return b.String() + "}"
	}
	return fmt.Sprintf("%q", fmt.Sprint(v)) // a tree that someone made otherwise
}

func (w *writer) list(k kind, items []any) string {
	texts := make([]string, len(items))
	size := 0
	for i, v := range items {
		texts[i] = w.expression(k, v)
		size += len(texts[i])
	}
	if size < 80 && !strings.Contains(strings.Join(texts, ""), "\n") {
		return "[" + strings.Join(texts, ", ") + "]"
	}
	// A comma cannot stand on the line that ends a heredoc.
	var b strings.Builder
	for _, t := range texts {
		comma := ","
		if strings.HasPrefix(t, "<<") {
			comma = "\n,"
		}
		b.WriteString(t + comma + "\n")
	}
	return "[\n" + b.String() + "]"
}

// durationText is d without units that are zero: 1h, not 1h0m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// heredoc is a text of several lines that a heredoc can hold as it is.
func (w *writer) heredoc(f form, s string) (string, bool) {
	if strings.Count(s, "\n") < 2 || !strings.HasSuffix(s, "\n") || f == formTemplate && strings.Contains(s, "%{") {
		return "", false
	}
	for _, r := range s {
		if r != '\n' && r != '\t' && !strconv.IsPrint(r) {
			return "", false
		}
	}
	marker := "EOF"
	for strings.Contains(s, marker) {
		marker += "_"
	}
	var b strings.Builder
	for _, p := range parts(f, s) {
		if p.code {
			p.text = w.aside(p.text)
		}
		b.WriteString(p.text)
	}
	return "<<" + marker + "\n" + b.String() + marker, true
}

// quote is a text in quotes.
func (w *writer) quote(f form, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, p := range parts(f, s) {
		if p.code {
			b.WriteString(w.aside(p.text))
			continue
		}
		for _, r := range p.text {
			switch {
			case r == '"' || r == '\\':
				b.WriteString(`\` + string(r))
			case r == '\n':
				b.WriteString(`\n`)
			case r == '\r':
				b.WriteString(`\r`)
			case r == '\t':
				b.WriteString(`\t`)
			case strconv.IsPrint(r):
				b.WriteRune(r)
			case r > 0xffff:
				fmt.Fprintf(&b, `\U%08x`, r)
			default:
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
	}
	return b.String() + `"`
}

// part is a piece of a text as HCL has it, before quoting: code, which stays as
// it is, or literal text with ${ and %{ escaped.
type part struct {
	text string
	code bool
}

// parts takes apart a text of the form f.
func parts(f form, s string) []part {
	switch f {
	case formTemplate:
		return templateParts(s)
	case formText:
		return textParts(s)
	}
	return []part{{text: escapeTemplate(s, "")}}
}

// textParts finds references as taskenv does.
func textParts(s string) []part {
	var all []part
	literal := ""
	for s != "" {
		i := strings.Index(s, "${")
		if i < 0 {
			break
		}
		n := reference(s[i:])
		switch {
		case n == 0:
			literal += s[:i+2]
			n = 2
		case i > 0 && s[i-1] == '$':
			literal += s[:i-1] + s[i:i+n]
		default:
			literal += s[:i]
			all = append(all, part{text: escapeTemplate(literal, s[i:])}, part{text: s[i : i+n], code: true})
			literal = ""
		}
		s = s[i+n:]
	}
	return append(all, part{text: escapeTemplate(literal+s, "")})
}

// reference is the length of "${name}" at the beginning of s, 0 if there is none.
func reference(s string) int {
	end := strings.IndexAny(s[2:], "}{\n\x00")
	if end < 0 || s[2+end] != '}' || strings.TrimSpace(s[2:2+end]) == "" {
		return 0
	}
	return end + 3
}

// templateParts are the literals and the sequences of an HCL template.
func templateParts(s string) []part {
	tokens, _ := hclsyntax.LexTemplate([]byte(s), "", hcl.InitialPos)
	var all []part
	depth, from := 0, 0 // from: where the sequence began
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			if depth == 0 {
				from = t.Range.Start.Byte
			}
			depth++
		case hclsyntax.TokenTemplateSeqEnd:
			if depth--; depth == 0 {
				all = append(all, part{s[from:t.Range.End.Byte], true})
			}
		case hclsyntax.TokenEOF:
		default:
			if depth == 0 {
				all = append(all, part{text: s[t.Range.Start.Byte:t.Range.End.Byte]})
			}
		}
	}
	return all
}
