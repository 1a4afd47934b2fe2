// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package jobspec

import (
	"strings"
)

// While a file is evaluated, what belongs to run time stands in strings between
// two characters that no text has (Unicode noncharacters; Parse refuses files
// that hold them): "a-${node.class}" is "a-<refOpen>node.class<refClose>". So it
// can travel through variables, locals and concatenation, and literal text that
// looks like it, such as "$${node.class}", is told apart until the very end.
const (
	refOpen  = "\ufdd0"
	refClose = "\ufdd1"
)

// hasRef says whether s holds something that is known at run time only.
func hasRef(s string) bool { return strings.Contains(s, refOpen) }

func ref(src string) string { return refOpen + src + refClose }

// form is how a string is written for whoever reads it at run time.
type form int

const (
	formPlain    form = iota // nobody interpolates it: it must not hold run-time parts
	formText                 // taskenv's texts: ${name}, $${name} for a literal
	formTemplate             // HCL templates, in a driver's config
	formRaw                  // nobody interpolates it, and what looks like it is kept
)

// encode writes s, an evaluated string, in the form f.
func (f form) encode(s string) string {
	if f == formPlain || !strings.Contains(s, "${") && !strings.Contains(s, "%{") && !hasRef(s) {
		return s
	}
	var b strings.Builder
	for s != "" {
		literal, rest, found := strings.Cut(s, refOpen)
		src := ""
		if found {
			src, s = splitRef(rest)
		} else {
			s = ""
		}
		// A directive is written as it is, an expression needs its braces.
		open, end := "${", "}"
		if !found || strings.HasPrefix(src, "%{") {
			open, end = "", ""
		}
		b.WriteString(f.literal(literal, open+src))
		b.WriteString(open + src + end)
	}
	return b.String()
}

// splitRef returns the source of a reference whose opening was cut off, the
// ones inside it written out, and what follows it.
func splitRef(s string) (src, rest string) {
	var b strings.Builder
	for {
		i := strings.IndexAny(s, refOpen+refClose)
		if i < 0 {
			return b.String() + s, ""
		}
		b.WriteString(s[:i])
		closed := strings.HasPrefix(s[i:], refClose)
		s = s[i+len(refOpen):]
		if closed {
			return b.String(), s
		}
		var inner string
		inner, s = splitRef(s)
		b.WriteString("${" + inner + "}")
	}
}

// literal escapes text that would be read as a reference; next is how the
// template goes on behind it.
func (f form) literal(s string, next string) string {
	switch f {
	case formRaw:
		return s
	case formText:
		return escapeText(s)
	}
	// HCL's scanner does not see a reference behind a carriage return.
	const cr = `${"\r"}`
	var b strings.Builder
	for {
		line, rest, found := strings.Cut(s, "\r")
		if !found {
			b.WriteString(escapeTemplate(line, next))
			return b.String()
		}
		b.WriteString(escapeTemplate(line, cr) + cr)
		s = rest
	}
}

func escapeTemplate(s, next string) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, "${", "$${"), "%{", "%%{")
	// A $ right before ${ would make a literal of it; only an expression can say it.
	for _, c := range []string{"$", "%"} {
		if rest := strings.TrimRight(s, c); rest != s && strings.HasPrefix(next, c+"{") {
			return rest + `${"` + s[len(rest):] + `"}`
		}
	}
	return s
}

// escapeText escapes what taskenv would take for a reference: ${, up to the }
// on the same line, with no other brace between.
func escapeText(s string) string {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:i])
		s = s[i:]
		if end := strings.IndexAny(s[2:], "}{\n\x00"); end > 0 && s[2+end] == '}' && strings.TrimSpace(s[2:2+end]) != "" {
			b.WriteByte('$')
		}
		b.WriteString("${")
		s = s[2:]
	}
}
