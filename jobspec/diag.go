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

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
)

// Severity says whether a diagnostic refuses the file.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Diagnostic is one fault of a job file and where it is.
type Diagnostic struct {
	Severity  Severity `json:"severity"`
	Summary   string   `json:"summary"`          // what is wrong
	Detail    string   `json:"detail,omitempty"` // what was found, what is allowed, what was most likely meant
	File      string   `json:"file"`
	Line      int      `json:"line"`   // 1-based
	Column    int      `json:"column"` // 1-based, in characters
	EndLine   int      `json:"end_line"`
	EndColumn int      `json:"end_column"` // of what follows
	Width     int      `json:"width"`      // of what is meant on its first line, in characters
	Source    string   `json:"source"`     // that line
}

// String is the diagnostic on one line: "file:line:column: summary: detail".
func (d Diagnostic) String() string {
	s := fmt.Sprintf("%s:%d:%d: %s", d.File, d.Line, d.Column, d.Summary)
	if d.Detail != "" {
		s += ": " + strings.ReplaceAll(d.Detail, "\n", " ")
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
	return RenderDiagnostics(w, e.Diagnostics, color)
}

// RenderDiagnostics writes diagnostics as Error.Render does.
func RenderDiagnostics(w io.Writer, list []Diagnostic, color bool) error {
	bold, reset := "\x1b[1m", "\x1b[0m"
	if !color {
		bold, reset = "", ""
	}
	var b strings.Builder
	for i, d := range list {
		if i > 0 {
			b.WriteByte('\n')
		}
		word, mark := "Error", "\x1b[31m"
		if d.Severity == SeverityWarning {
			word, mark = "Warning", "\x1b[33m"
		}
		if !color {
			mark = ""
		}
		fmt.Fprintf(&b, "%s%s%s:%s %s%s%s\n  %s:%d:%d\n", mark, bold, word, reset, bold, d.Summary, reset, d.File, d.Line, d.Column)
		if d.Source != "" {
			fmt.Fprintf(&b, "%6d | %s\n       | %s%s%s%s\n", d.Line, d.Source,
				blank(d.Source, d.Column-1), mark, strings.Repeat("^", max(1, d.Width)), reset)
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
	all      []Diagnostic // errors
	warnings []Diagnostic
	sources  map[string][]byte
	starts   map[string][]int // of their lines
}

func (d *diagnostics) source(name string, src []byte) {
	if d.sources == nil {
		d.sources = map[string][]byte{}
	}
	d.sources[name] = src
	delete(d.starts, name)
}

func (d *diagnostics) add(r hcl.Range, summary, format string, args ...any) {
	d.all = append(d.all, d.make(r, SeverityError, summary, fmt.Sprintf(format, args...)))
}

func (d *diagnostics) warn(r hcl.Range, summary, format string, args ...any) {
	d.warnings = append(d.warnings, d.make(r, SeverityWarning, summary, fmt.Sprintf(format, args...)))
}

// maxSource is the longest line that is shown.
const maxSource = 400

func (d *diagnostics) make(r hcl.Range, s Severity, summary, detail string) Diagnostic {
	x := Diagnostic{
		Severity: s, Summary: summary, Detail: detail, File: r.Filename, Line: max(1, r.Start.Line), Column: max(1, r.Start.Column),
		EndLine: r.End.Line, EndColumn: r.End.Column, Width: 1,
	}
	if line, ok := d.line(r.Filename, r.Start.Line); ok && len(line) <= maxSource {
		x.Source = line
		x.Width = r.End.Column - r.Start.Column
		if r.End.Line != r.Start.Line {
			x.Width = utf8.RuneCountInString(x.Source) - r.Start.Column + 1
		}
		x.Width = min(max(x.Width, 1), maxSource)
	}
	return x
}

// line is the n-th line of a file.
func (d *diagnostics) line(file string, n int) (string, bool) {
	src, ok := d.sources[file]
	if !ok {
		return "", false
	}
	starts := d.starts[file]
	if starts == nil {
		starts = []int{0}
		for i, c := range src {
			if c == '\n' {
				starts = append(starts, i+1)
			}
		}
		if d.starts == nil {
			d.starts = map[string][]int{}
		}
		d.starts[file] = starts
	}
	if n < 1 || n > len(starts) {
		return "", false
	}
	line, _, _ := bytes.Cut(src[starts[n-1]:], []byte{'\n'})
	return strings.ToValidUTF8(strings.TrimRight(string(line), "\r"), "\ufffd"), true
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
	return &Error{Diagnostics: inFileOrder(d.all)}
}

// maxDiagnostics bounds how many faults of a file are told.
const maxDiagnostics = 100

func inFileOrder(list []Diagnostic) []Diagnostic {
	slices.SortStableFunc(list, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Summary, b.Summary), cmp.Compare(a.Detail, b.Detail))
	})
	list = slices.Compact(list)
	return list[:min(len(list), maxDiagnostics)]
}

// meant is " Did you mean …?" if one of names is close to name, else "". Close is
// a slip of one letter in three, an exchange of letters, another way to put words
// together, and the beginning of a name.
func meant(name string, names []string) string {
	plain := func(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "") }
	sorted := func(s string) string {
		letters := []rune(s)
		slices.Sort(letters)
		return string(letters)
	}
	best, least := "", 1<<30
	for _, n := range names {
		d := levenshtein.Distance(plain(name), plain(n), nil)
		switch {
		case sorted(plain(name)) == sorted(plain(n)):
			d = min(d, 1)
		case d > (len(name)+1)/3 && len(name) >= 3 && strings.HasPrefix(n, name):
			d = len(name)
		case d > (len(name)+1)/3:
			continue
		}
		if d < least {
			best, least = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" Did you mean %q?", best)
}
