// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// FieldError is one fault of a spec.
type FieldError struct {
	Path    string `json:"path"`              // as in JSON, such as "tasks[0].restart.attempts"
	Value   any    `json:"value,omitempty"`   // what is there; nil if nothing is
	Problem string `json:"problem"`           // what is wrong with it
	Allowed string `json:"allowed,omitempty"` // what would be right
}

// Error says where, what and what is allowed, in one line.
func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.Path + ": ")
	switch v := e.Value.(type) {
	case nil:
	case string:
		fmt.Fprintf(&b, "%.64q ", v)
	default:
		fmt.Fprintf(&b, "%v ", v)
	}
	b.WriteString(e.Problem)
	if e.Allowed != "" {
		b.WriteString("; allowed: " + e.Allowed)
	}
	return b.String()
}

// Faults returns the field errors that err is or joins, in their order.
func Faults(err error) []*FieldError {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*FieldError
		for _, e := range joined.Unwrap() {
			all = append(all, Faults(e)...)
		}
		return all
	}
	var fe *FieldError
	if errors.As(err, &fe) {
		return []*FieldError{fe}
	}
	return nil
}

// faults collects field errors. Its methods take the path of the field they
// judge; a zero value that stands for a default is never a fault.
type faults struct{ errs []error }

func (f *faults) add(path string, value any, problem, allowed string) {
	f.errs = append(f.errs, &FieldError{path, value, problem, allowed})
}

func (f *faults) enum(path, v string, allowed ...string) {
	if v != "" && !slices.Contains(allowed, v) {
		f.add(path, v, "is unknown", strings.Join(allowed, ", "))
	}
}

func (f *faults) required(path, v, allowed string) {
	if v == "" {
		f.add(path, nil, "is required", allowed)
	}
}

func (f *faults) name(path, v string) bool {
	problem, allowed := checkName(v)
	if problem != "" {
		f.add(path, v, problem, allowed)
	}
	return problem == ""
}

func (f *faults) notNegative(path string, v int64) {
	if v < 0 {
		f.add(path, v, "is negative", "0 or more")
	}
}

func (f *faults) duration(path string, d time.Duration) {
	if d < 0 {
		f.add(path, d.String(), "is negative", "0 or more")
	}
}

// signalWith: a change mode and the signal that belongs to one of its values.
func (f *faults) signalWith(path, mode, signal string) {
	if mode == "signal" && signal == "" {
		f.add(path+".change_signal", nil, "is required with change_mode signal", `a signal's name such as "SIGHUP"`)
	}
	if mode != "signal" && signal != "" {
		f.add(path+".change_signal", signal, "is of no use with this change_mode", "change_mode signal")
	}
}

// text refuses what cannot be handed to a process.
func (f *faults) text(path, v string) {
	if strings.Contains(v, "\x00") {
		f.add(path, v, "contains NUL", "any other byte")
	}
}

func at(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
