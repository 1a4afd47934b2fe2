// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// syntax parses HCL; nil if that failed. What only HCL's first version knew is
// either read (names in quotes) or shown with the spelling of today.
func (p *parser) syntax(name string, src []byte) *hclsyntax.Body {
	if !p.diags.check(name, src) {
		return nil
	}
	file, diags := hclsyntax.ParseConfig(p.unquoted(name, src), name, hcl.InitialPos)
	if !diags.HasErrors() {
		return file.Body.(*hclsyntax.Body)
	}
	if !p.otherTools(name, src) {
		p.syntaxError(name, firstFault(diags))
	}
	return nil
}

// firstFault is the fault that stands first in the file: the others are likely to
// come of it. So is a block that seems to have no end, which begins above them.
func firstFault(diags hcl.Diagnostics) *hcl.Diagnostic {
	place := func(d *hcl.Diagnostic) (group, at int) {
		if d.Subject != nil {
			at = d.Subject.Start.Byte
		}
		switch {
		case d.Severity != hcl.DiagError:
			group = 2
		case d.Summary == "Unclosed configuration block":
			group = 1
		}
		return group, at
	}
	return slices.MinFunc(diags, func(a, b *hcl.Diagnostic) int {
		ga, sa := place(a)
		gb, sb := place(b)
		return cmp.Or(cmp.Compare(ga, gb), cmp.Compare(sa, sb))
	})
}

// unquoted rewrites names in quotes, which HCL's first version took everywhere:
//
//	"command" = "x"          command = "x"
//	meta {                   meta ={
//	  "a.b" = "x"              "a.b" = "x"
//
// so that no byte moves and every message fits the file.
func (p *parser) unquoted(name string, src []byte) []byte {
	tokens, _ := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	out := bytes.Clone(src)
	var braces []int // the index in tokens of each open one; -1: not of a block
	for i, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			at := -1
			if i > 0 && t.Type == hclsyntax.TokenOBrace && (tokens[i-1].Type == hclsyntax.TokenIdent || tokens[i-1].Type == hclsyntax.TokenCQuote) {
				at = i
			}
			braces = append(braces, at)
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd:
			if len(braces) > 0 {
				braces = braces[:len(braces)-1]
			}
		case hclsyntax.TokenOQuote:
			inBlock := len(braces) == 0 || braces[len(braces)-1] >= 0
			if !inBlock || !quotedName(tokens, i) {
				continue
			}
			word := string(tokens[i+1].Bytes)
			if hclsyntax.ValidIdentifier(word) {
				out[t.Range.Start.Byte], out[tokens[i+2].Range.Start.Byte] = ' ', ' '
			} else if len(braces) > 0 {
				p.asMap(out, tokens[braces[len(braces)-1]])
			}
			p.diags.warn(hcl.RangeBetween(t.Range, tokens[i+2].Range), "Old spelling", "A name stands without quotes; in a map it may have them: NAME = { %q = … }.", word)
		}
	}
	return out
}

// quotedName says whether a string at the beginning of a line is the name of an
// argument or a block.
func quotedName(tokens hclsyntax.Tokens, i int) bool {
	if i > 0 && tokens[i-1].Type != hclsyntax.TokenNewline && tokens[i-1].Type != hclsyntax.TokenOBrace && tokens[i-1].Type != hclsyntax.TokenComment {
		return false
	}
	if i+3 >= len(tokens) || tokens[i+1].Type != hclsyntax.TokenQuotedLit || tokens[i+2].Type != hclsyntax.TokenCQuote {
		return false
	}
	next := tokens[i+3].Type
	return next == hclsyntax.TokenEqual || next == hclsyntax.TokenOBrace || next == hclsyntax.TokenOQuote
}

// asMap makes "meta {" to "meta ={", where there is a blank to write on.
func (p *parser) asMap(src []byte, brace hclsyntax.Token) {
	if at := brace.Range.Start.Byte; at > 0 && src[at-1] == ' ' {
		src[at-1] = '='
	}
}

// otherTools finds templates that another program has to fill in first.
func (p *parser) otherTools(name string, src []byte) bool {
	tokens, _ := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	found := 0
	for i := 0; i+1 < len(tokens) && found < 5; i++ {
		a, b := tokens[i], tokens[i+1]
		double := a.Type == b.Type && a.Range.End == b.Range.Start && (a.Type == hclsyntax.TokenOBrack || a.Type == hclsyntax.TokenOBrace)
		if !double {
			continue
		}
		rest := src[b.Range.End.Byte:]
		line, _, _ := bytes.Cut(rest, []byte{'\n'})
		end := bytes.Index(line, []byte(map[hclsyntax.TokenType]string{hclsyntax.TokenOBrack: "]]", hclsyntax.TokenOBrace: "}}"}[a.Type]))
		if end < 0 || a.Type == hclsyntax.TokenOBrack && !goTemplate.Match(line[:end]) {
			continue
		}
		r := hcl.RangeBetween(a.Range, b.Range)
		r.End.Column += utf8.RuneCount(line[:end]) + 2
		r.End.Byte += end + 2
		text := string(a.Bytes) + string(b.Bytes)
		p.diags.add(r, "Template of another tool", "%s is not part of job files: a tool such as Levant, nomad-pack or consul-template fills it in. Render the file with it first; inside a string or a heredoc it would be text.", text)
		found++
		i++
	}
	return found > 0
}

// goTemplate is what stands between [[ and ]] if it is no list of lists.
var goTemplate = regexp.MustCompile(`^-?\s*(/\*|\.|\$|[a-z]+\s+["'.($]|(end|else)\b)`)

const shellText = "%s is for a shell; a job file has ${NAME}. Write $%s to leave it to a shell that the task runs, or give a variable of the file a default."

var (
	shellism  = regexp.MustCompile(`\$\{[!#]?[A-Za-z_][A-Za-z0-9_]*(:?[-=?+][^}"]*|:[0-9][^}"]*|##?[^}"]*|%%?[^}"]*|//?[^}"]*|\^\^?|,,?|\[[@*0-9]\])?\}`)
	dotted    = regexp.MustCompile(`^\s*([A-Za-z_][\w-]*(?:\.[\w-]+)+)\s*=`)
	escaped   = regexp.MustCompile(`\$\{[^}]*\\"`)
	directive = regexp.MustCompile(`%\{\s*[a-z_]+`)
	dots      = regexp.MustCompile(`^\s*(?:[\w-]+\s*=\s*|.*\{\s*)?(\.\.\.)\s*\}?\s*$`)
	decimal   = regexp.MustCompile(`[=,\[(]\s*(\.[0-9]+)`)
	blockIn   = regexp.MustCompile(`^\s*([A-Za-z_][\w-]*)\s*(?:"[^"]*"\s*)*\{`)
	colon     = regexp.MustCompile(`^\s*"?([A-Za-z_][\w-]*)"?\s*:`)
	unit      = regexp.MustCompile(`[=,\[(]\s*([0-9][0-9.]*[A-Za-z]\w*)`)
	marker    = regexp.MustCompile(`<<-?([A-Za-z_][\w-]*)`)
)

// syntaxError adds what the language's parser says, or something better.
func (p *parser) syntaxError(name string, d *hcl.Diagnostic) {
	var r hcl.Range
	if d.Subject != nil {
		r = *d.Subject
	}
	line, ok := p.diags.line(name, r.Start.Line)
	if !ok {
		p.diags.hcl(hcl.Diagnostics{d})
		return
	}
	if at, summary, detail := better(line, d); at != nil {
		p.diags.add(hcl.Range{
			Filename: name,
			Start:    hcl.Pos{Line: r.Start.Line, Column: 1 + utf8.RuneCountInString(line[:at[0]])},
			End:      hcl.Pos{Line: r.Start.Line, Column: 1 + utf8.RuneCountInString(line[:at[1]])},
		}, summary, "%s", detail)
		return
	}
	if m := p.openHeredoc(name, d); m != "" {
		p.diags.add(r, "Heredoc without an end", "The line that ends it holds %s and nothing else, not even a comma: that goes on the line below.", m)
		return
	}
	if brace := openBlock(name, p.diags.sources[name]); brace != nil && d.Summary == "Unclosed configuration block" {
		p.diags.add(*brace, "Block without an end", "By the indentation of the lines below, it is this brace that none closes.")
		return
	}
	if d.Summary == "Invalid multi-line string" {
		p.diags.add(r, "Text without an end", "A text in quotes ends on the line that it begins on: a quote is missing here, or there is one too many. One of several lines is a heredoc: <<EOT, the lines, EOT.")
		return
	}
	p.diags.hcl(hcl.Diagnostics{d})
}

// better says what is wrong with a line, if that can be told better than the
// parser does.
func better(line string, d *hcl.Diagnostic) (at []int, summary, detail string) {
	says := func(text string) bool { return strings.Contains(d.Summary+"\n"+d.Detail, text) }
	find := func(x *regexp.Regexp) bool {
		at = x.FindStringSubmatchIndex(line)
		if len(at) > 2 {
			at = at[2:4]
		}
		return at != nil
	}
	part := func() string { return line[at[0]:at[1]] }
	if at = shellExpansion(line); at != nil {
		return at, "Shell expansion", fmt.Sprintf(shellText, part(), part())
	}
	switch {
	case find(dotted):
		return at, "Name with dots", fmt.Sprintf("Such a name stands in quotes, in a map: NAME = { %q = … }", part())
	case find(dots):
		return at, "Placeholder", "The three dots stand for lines that an example leaves out; put what belongs here, or nothing."
	case says("Invalid expression") && find(decimal):
		return at, "Number without a digit before the point", fmt.Sprintf("It is written 0%s.", part())
	case says("equals sign") && find(blockIn):
		return at, "Block among values", fmt.Sprintf("Inside of [ … ] and of NAME = { … } there are values only: %s = { … }. Blocks stand in blocks; without the \"=\" and the \"[\" around this one it is one.", part())
	case says("equals sign") && find(colon):
		return at, "Colon after a name", fmt.Sprintf("An argument is written %s = …, a block %[1]s { … }.", part())
	case (says("must end with a newline") || says("Expected a comma") || says("newline or comma")) && find(unit):
		return at, "Number with a unit", fmt.Sprintf("It is a text, in quotes: %q", part())
	case find(escaped):
		return at, "Escaped quote", `Inside ${…} quotes have no backslash: "${x["y"]}".`
	case says("control keyword") && find(directive):
		return at, "Unknown directive", "%{ begins a directive of the language (if, for). Write %%{ for the text %{."
	}
	return nil, "", ""
}

// openBlock is the first brace that seems to have none that closes it: the one that
// does stands further to the left than the line of this.
func openBlock(name string, src []byte) *hcl.Range {
	type open struct {
		at     hcl.Range
		indent int
	}
	tokens, _ := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	var stack []open
	line, indent := 0, 0
	for _, t := range tokens {
		first := t.Range.Start.Line != line
		if first {
			line, indent = t.Range.Start.Line, t.Range.Start.Column
		}
		switch t.Type {
		case hclsyntax.TokenOBrace:
			stack = append(stack, open{t.Range, indent})
		case hclsyntax.TokenCBrace:
			if len(stack) == 0 {
				return nil
			}
			last := stack[len(stack)-1]
			if first && indent < last.indent {
				return &last.at
			}
			stack = stack[:len(stack)-1]
		}
	}
	return nil
}

// shellExpansion is where a line has one that is not escaped.
func shellExpansion(line string) []int {
	for _, at := range shellism.FindAllStringSubmatchIndex(line, -1) {
		if at[2] >= 0 && at[2] < at[3] && (at[0] == 0 || line[at[0]-1] != '$') {
			return at[:2]
		}
	}
	return nil
}

// openHeredoc is the marker of a heredoc whose end was not found.
func (p *parser) openHeredoc(name string, d *hcl.Diagnostic) string {
	if !strings.Contains(d.Summary, "Unterminated") && !strings.Contains(d.Detail, "heredoc") && !strings.Contains(d.Detail, "closing marker") {
		return ""
	}
	for _, m := range marker.FindAllSubmatch(p.diags.sources[name], -1) {
		end := regexp.MustCompile(fmt.Sprintf(`(?m)^\s*%s\s*[,\])]`, regexp.QuoteMeta(string(m[1]))))
		if end.Match(p.diags.sources[name]) {
			return string(m[1])
		}
	}
	return ""
}
