// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nodekeep/nodekeep/api"
	"github.com/nodekeep/nodekeep/jobspec"
)

// printJSON prints an answer.
func (a *app) printJSON(v any) error { return encode(a.stdout, v, "  ") }

// encode writes v as JSON and a line end, in one write; on one line without an
// indent. <, > and & are written as they are: it is read by people and jq, not by
// browsers.
func encode(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(plainJSON(b.Bytes()))
	return err
}

// plainJSON is JSON with <, > and & as themselves, also where somebody before us,
// such as the writer of a job's file, has escaped them.
func plainJSON(data []byte) []byte {
	if !bytes.Contains(data, []byte(`\u00`)) {
		return data
	}
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' || i+1 == len(data) {
			out = append(out, data[i])
			continue
		}
		if c, ok := htmlEscapes[string(data[i:min(i+6, len(data))])]; ok {
			out = append(out, c)
			i += 5
			continue
		}
		out = append(out, data[i], data[i+1]) // a pair: the second is no escape's beginning
		i++
	}
	return out
}

var htmlEscapes = map[string]byte{`\u003c`: '<', `\u003e`: '>', `\u0026`: '&', `\u003C`: '<', `\u003E`: '>'}

// failure is how --json tells an error, on stderr: one object on one line, the last
// one there. Codes are those of package api and the ones below.
type failure struct {
	Level   string `json:"level"` // error; a warning is a notice
	Code    string `json:"code"`
	Message string `json:"message"` // what went wrong and, after a colon, what to do
	Exit    int    `json:"exit_code"`
	// Of several errors the first is told above, and all are here.
	Errors      []failure            `json:"errors,omitempty"`
	Diagnostics []jobspec.Diagnostic `json:"diagnostics,omitempty"` // of a job file
}

// The codes beside those of package api.
const (
	codeUsage       = "usage"        // wrong use of the command line
	codeJobFile     = "job_file"     // a job file is not valid, or not for this node
	codeAllocFailed = "alloc_failed" // an alloc will not become what was waited for
	codeTimeout     = "timeout"      // --timeout is over
	codeFailed      = "failed"       // anything else
)

// notice is a warning in JSON, on stderr.
type notice struct {
	Level       string               `json:"level"` // warning
	Message     string               `json:"message"`
	Diagnostics []jobspec.Diagnostic `json:"diagnostics,omitempty"`
}

// exitWith is an error that has an exit code of its own.
type exitWith struct {
	code int
	err  error
}

func (e *exitWith) Error() string { return e.err.Error() }
func (e *exitWith) Unwrap() error { return e.err }

// fail tells an error, unless that was done, and returns the exit code.
func (a *app) fail(err error) int {
	code := 1
	var said exitCode
	var own *exitWith
	var use *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &said):
		return int(said)
	case errors.As(err, &own):
		code, err = own.code, own.err
	case errors.As(err, &use):
		code, err = 2, use
	}
	if a.json {
		_ = encode(a.stderr, a.failure(err, code), "")
		return code
	}
	for _, err := range parts(err) {
		var file *fileError
		if errors.As(err, &file) {
			file.render(a.stderr)
		}
		fmt.Fprintf(a.stderr, "nodekeep: %s\n", cleanLines(a.explain(err)))
	}
	return code
}

// failure is err in JSON.
func (a *app) failure(err error, exit int) failure {
	var list []failure
	for _, err := range parts(err) {
		f := failure{Level: "error", Code: codeOf(err), Message: a.explain(err), Exit: exit}
		var file *fileError
		if errors.As(err, &file) {
			f.Diagnostics = file.faults.Diagnostics
		}
		list = append(list, f)
	}
	f := list[0]
	if len(list) > 1 {
		f.Errors = list
	}
	return f
}

func codeOf(err error) string {
	var e *api.Error
	var use *usageError
	var file *fileError
	var alloc *failedAlloc
	var late *lateError
	switch {
	case errors.As(err, &e):
		return string(e.Code)
	case errors.As(err, &use):
		return codeUsage
	case errors.As(err, &file):
		return codeJobFile
	case errors.As(err, &alloc):
		return codeAllocFailed
	case errors.As(err, &late):
		return codeTimeout
	}
	return codeFailed
}

// warn tells on stderr what does not keep the command from going on.
func (a *app) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if a.json {
		_ = encode(a.stderr, notice{Level: "warning", Message: strings.TrimPrefix(text, "warning: ")}, "")
		return
	}
	fmt.Fprintf(a.stderr, "nodekeep: %s\n", cleanLines(text))
}

// warnOf tells what was found in a job file that is no fault.
func (a *app) warnOf(list []jobspec.Diagnostic) {
	switch {
	case len(list) == 0:
	case a.json:
		texts := make([]string, len(list))
		for i, d := range list {
			texts[i] = d.String()
		}
		_ = encode(a.stderr, notice{"warning", strings.Join(texts, "; "), list}, "")
	default:
		_ = jobspec.RenderDiagnostics(a.stderr, list, colored(a.stderr))
	}
}

// wantsJSON finds --json where the flags could not be read.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.ContainsFunc(args, func(s string) bool {
		return slices.Contains([]string{"--json", "-json", "--json=true", "-json=true"}, s)
	})
}

// oneLine is a text of several lines, such as joined errors, for a place in a row.
func oneLine(s string) string {
	if !strings.Contains(s, "\n") {
		return s
	}
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
