// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// Diagnostic is one fault of a job file and where it is.
type Diagnostic struct {
	Summary string `json:"summary"`          // what is wrong
	Detail  string `json:"detail,omitempty"` // what was found and what is allowed
	File    string `json:"file"`
	Line    int    `json:"line"`   // 1-based
	Column  int    `json:"column"` // 1-based, in characters
	Width   int    `json:"width"`  // of what is meant on that line, in characters
	Source  string `json:"source"` // the line
}

// String is the diagnostic on one line: "file:line:column: summary: detail".
func (d Diagnostic) String() string {
	s := fmt.Sprintf("%s:%d:%d: %s", d.File, d.Line, d.Column, d.Summary)
	if d.Detail != "" {
		s += ": " + d.Detail
	}
	return s
}

// Error says all that is wrong with a job file, in the order of the file.
type Error struct {
	Diagnostics []Diagnostic
}

// Error has one line per fault.
func (e *Error) Error() string {
	lines := make([]string, len(e.Diagnostics))
	for i, d := range e.Diagnostics {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}

// Render writes the faults for people, each with its source line and a mark
// under what is meant; color adds ANSI colours.
func (e *Error) Render(w io.Writer, color bool) error {
	red, bold, reset := "\x1b[31m", "\x1b[1m", "\x1b[0m"
	if !color {
		red, bold, reset = "", "", ""
	}
	var b strings.Builder
	for i, d := range e.Diagnostics {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s%sError:%s %s%s%s\n  %s:%d:%d\n", red, bold, reset, bold, d.Summary, reset, d.File, d.Line, d.Column)
		if d.Source != "" {
			fmt.Fprintf(&b, "%6d | %s\n       | %s%s%s%s\n", d.Line, d.Source,
				blank(d.Source, d.Column-1), red, strings.Repeat("^", max(1, d.Width)), reset)
		}
		if d.Detail != "" {
			fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(d.Detail, "\n", "\n  "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// blank is as wide as the first n characters of s on any terminal: tabs stay.
func blank(s string, n int) string {
	return strings.Map(func(r rune) rune {
		n--
		switch {
		case n < 0:
			return -1
		case r == '\t':
			return r
		}
		return ' '
	}, s)
}

// diagnostics collects what is wrong, with the texts it is wrong in.
type diagnostics struct {
	all     []Diagnostic
	sources map[string][]byte
}

func (d *diagnostics) source(name string, src []byte) {
	if d.sources == nil {
		d.sources = map[string][]byte{}
	}
	d.sources[name] = src
}

func (d *diagnostics) add(r hcl.Range, summary, format string, args ...any) {
	x := Diagnostic{Summary: summary, Detail: fmt.Sprintf(format, args...), File: r.Filename, Line: r.Start.Line, Column: r.Start.Column, Width: 1}
	lines := bytes.Split(d.sources[r.Filename], []byte{'\n'})
	if n := r.Start.Line - 1; n >= 0 && n < len(lines) {
		x.Source = strings.TrimRight(string(lines[n]), "\r")
		if !utf8.ValidString(x.Source) {
			x.Source = strings.ToValidUTF8(x.Source, "\ufffd")
		}
		x.Width = r.End.Column - r.Start.Column
		if r.End.Line != r.Start.Line {
			x.Width = utf8.RuneCountInString(x.Source) - r.Start.Column + 1
		}
		x.Width = max(x.Width, 1)
	}
	d.all = append(d.all, x)
}

// hcl takes over what the language's own library found.
func (d *diagnostics) hcl(diags hcl.Diagnostics) {
	for _, x := range diags {
		if x.Severity != hcl.DiagError {
			continue
		}
		var r hcl.Range
		if x.Subject != nil {
			r = *x.Subject
		}
		d.add(r, x.Summary, "%s", x.Detail)
	}
}

// err is all of it in the order of the files, each once; nil if there is none.
func (d *diagnostics) err() error {
	if len(d.all) == 0 {
		return nil
	}
	slices.SortStableFunc(d.all, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Summary, b.Summary), cmp.Compare(a.Detail, b.Detail))
	})
	return &Error{Diagnostics: slices.Compact(d.all)}
}
